/**
 * Burgers' equation u_t + u u_x = ν u_xx on the unit circle: waves in space (dealiased by the 2/3 rule), Runge–Kutta of
 * order four in time with the diffusion taken exactly (an integrating factor).
 */

import { fft } from "./fft";

export interface Solved {
  u: Float64Array;
  steps: number;
}

/** u at the time `until`, at as many equal nodes as it was given; a power of two. */
export function burgers(initial: Float64Array, viscosity: number, until: number, steps?: number): Solved {
  const n = initial.length;
  let speed = 0;
  for (const value of initial) speed = Math.max(speed, Math.abs(value));
  const count = steps ?? Math.max(64, Math.ceil(until * Math.max(128, Math.min((speed * speed) / viscosity, (speed * n) / 2))));
  const dt = until / count;
  const k = Float64Array.from({ length: n }, (_, i) => 2 * Math.PI * (i <= n / 2 ? i : i - n));
  const kept = Array.from({ length: n }, (_, i) => (i <= n / 2 ? i : n - i) < n / 3);
  const half = Float64Array.from(k, (wave) => Math.exp((-viscosity * wave * wave * dt) / 2));
  let re = initial.slice();
  let im = new Float64Array(n);
  fft(re, im);
  for (let i = 0; i < n; i += 1) if (!kept[i]) (re[i] = 0), (im[i] = 0);

  const slope = (a: Float64Array, b: Float64Array): [Float64Array, Float64Array] => {
    const x = a.slice();
    const y = b.slice();
    fft(x, y, true);
    for (let i = 0; i < n; i += 1) {
      x[i] = (x[i] as number) ** 2;
      y[i] = 0;
    }
    fft(x, y);
    const p = new Float64Array(n);
    const q = new Float64Array(n);
    for (let i = 0; i < n; i += 1) {
      if (!kept[i]) continue;
      p[i] = 0.5 * (k[i] as number) * (y[i] as number); // −½ i k (x + i y)
      q[i] = -0.5 * (k[i] as number) * (x[i] as number);
    }
    return [p, q];
  };

  for (let step = 0; step < count; step += 1) {
    const [a0, b0] = slope(re, im);
    const x1 = new Float64Array(n);
    const y1 = new Float64Array(n);
    for (let i = 0; i < n; i += 1) {
      x1[i] = (half[i] as number) * ((re[i] as number) + (dt / 2) * (a0[i] as number));
      y1[i] = (half[i] as number) * ((im[i] as number) + (dt / 2) * (b0[i] as number));
    }
    const [a1, b1] = slope(x1, y1);
    for (let i = 0; i < n; i += 1) {
      x1[i] = (half[i] as number) * (re[i] as number) + (dt / 2) * (a1[i] as number);
      y1[i] = (half[i] as number) * (im[i] as number) + (dt / 2) * (b1[i] as number);
    }
    const [a2, b2] = slope(x1, y1);
    for (let i = 0; i < n; i += 1) {
      const whole = (half[i] as number) ** 2;
      x1[i] = whole * (re[i] as number) + dt * (half[i] as number) * (a2[i] as number);
      y1[i] = whole * (im[i] as number) + dt * (half[i] as number) * (b2[i] as number);
    }
    const [a3, b3] = slope(x1, y1);
    const nextRe = new Float64Array(n);
    const nextIm = new Float64Array(n);
    for (let i = 0; i < n; i += 1) {
      const e = half[i] as number;
      nextRe[i] =
        e * e * ((re[i] as number) + (dt / 6) * (a0[i] as number)) +
        (dt / 3) * e * ((a1[i] as number) + (a2[i] as number)) +
        (dt / 6) * (a3[i] as number);
      nextIm[i] =
        e * e * ((im[i] as number) + (dt / 6) * (b0[i] as number)) +
        (dt / 3) * e * ((b1[i] as number) + (b2[i] as number)) +
        (dt / 6) * (b3[i] as number);
    }
    re = nextRe;
    im = nextIm;
  }
  fft(re, im, true);
  return { u: re, steps: count };
}
