/** Tokens as particles on the unit sphere: the arithmetic of `continua.lab.particles`, in one loop over pairs. */

import { randomness } from "../model/writing";

export type Kind = "SA" | "USA";

export interface Law {
  kind: Kind;
  beta: number;
  causal: boolean;
  /** +1 attracts, −1 repels (V = −I). */
  sign: 1 | -1;
  /** Noise √(2/κ) dW; infinity is none. */
  kappa: number;
}

const BINS = 8192;
export const NOISY_STEP = 0.01;
const REACH = 0.1; // how far a token moves in one step at most, in radians

/** e^{β(c−1)} for cosines c in [−1, 1], by linear interpolation; and how many pairs have which cosine. */
class Table {
  readonly values = new Float64Array(BINS + 2);
  readonly counts = new Float64Array(BINS + 2);

  constructor(readonly beta: number) {
    const top = Math.abs(beta);
    for (let i = 0; i < this.values.length; i += 1) {
      const c = Math.min(1, (2 * i) / BINS - 1);
      this.values[i] = Math.exp(beta * c - top);
    }
  }
}

export interface Looks {
  energy: number;
  /** Power of the modes 0, 1, …: (1/n²) Σ_ij P_l(⟨x_i, x_j⟩), Chebyshev on the circle. */
  powers: number[];
}

export class Flow {
  readonly n: number;
  private table: Table;
  private readonly mix: Float64Array;
  private readonly total: Float64Array;
  time = 0;

  constructor(
    readonly x: Float64Array,
    readonly d: number,
    private law: Law,
  ) {
    this.n = x.length / d;
    this.table = new Table(law.beta);
    this.mix = new Float64Array(x.length);
    this.total = new Float64Array(this.n);
  }

  get beta(): number {
    return this.law.beta;
  }

  change(law: Law): void {
    this.law = law;
    if (law.beta !== this.table.beta) this.table = new Table(law.beta);
  }

  /** x' at x, tangent to the sphere; `counting` also counts cosines. */
  velocity(x: Float64Array, out: Float64Array, counting = false): void {
    if (this.d === 2) this.pairs2(x, counting);
    else if (this.d === 3) this.pairs3(x, counting);
    else this.pairs(x, counting);
    const { d, n, mix, total, law } = this;
    // the table has e^{β c − |β|}: USA puts the factor back
    const scale = (law.sign * Math.exp(Math.abs(law.beta))) / n;
    for (let i = 0; i < n; i += 1) {
      const factor = law.kind === "SA" ? law.sign / (total[i] as number) : scale;
      let along = 0;
      for (let k = i * d; k < i * d + d; k += 1) along += (mix[k] as number) * (x[k] as number);
      for (let k = i * d; k < i * d + d; k += 1) out[k] = factor * ((mix[k] as number) - along * (x[k] as number));
    }
  }

  private begin(x: Float64Array, counting: boolean): void {
    const own = this.table.values[BINS] as number; // a token and itself: c = 1
    for (let k = 0; k < x.length; k += 1) this.mix[k] = own * (x[k] as number);
    this.total.fill(own);
    if (counting) {
      this.table.counts.fill(0);
      this.table.counts[BINS] = this.n;
    }
  }

  private pairs2(x: Float64Array, counting: boolean): void {
    this.begin(x, counting);
    const { n, mix, total } = this;
    const { values, counts } = this.table;
    const both = !this.law.causal;
    for (let i = 1; i < n; i += 1) {
      const a = x[2 * i] as number;
      const b = x[2 * i + 1] as number;
      let p = 0;
      let q = 0;
      let z = 0;
      for (let j = 0; j < i; j += 1) {
        const e = x[2 * j] as number;
        const f = x[2 * j + 1] as number;
        const place = (a * e + b * f + 1) * (BINS / 2);
        const low = place < 0 ? 0 : place > BINS ? BINS : place | 0;
        const left = values[low] as number;
        const w = left + (place - low) * ((values[low + 1] as number) - left);
        p += w * e;
        q += w * f;
        z += w;
        if (both) {
          mix[2 * j] = (mix[2 * j] as number) + w * a;
          mix[2 * j + 1] = (mix[2 * j + 1] as number) + w * b;
          total[j] = (total[j] as number) + w;
        }
        if (counting) counts[low] = (counts[low] as number) + 2;
      }
      mix[2 * i] = (mix[2 * i] as number) + p;
      mix[2 * i + 1] = (mix[2 * i + 1] as number) + q;
      total[i] = (total[i] as number) + z;
    }
  }

  private pairs3(x: Float64Array, counting: boolean): void {
    this.begin(x, counting);
    const { n, mix, total } = this;
    const { values, counts } = this.table;
    const both = !this.law.causal;
    for (let i = 1; i < n; i += 1) {
      const a = x[3 * i] as number;
      const b = x[3 * i + 1] as number;
      const c = x[3 * i + 2] as number;
      let p = 0;
      let q = 0;
      let r = 0;
      let z = 0;
      for (let j = 0; j < i; j += 1) {
        const e = x[3 * j] as number;
        const f = x[3 * j + 1] as number;
        const g = x[3 * j + 2] as number;
        const place = (a * e + b * f + c * g + 1) * (BINS / 2);
        const low = place < 0 ? 0 : place > BINS ? BINS : place | 0;
        const left = values[low] as number;
        const w = left + (place - low) * ((values[low + 1] as number) - left);
        p += w * e;
        q += w * f;
        r += w * g;
        z += w;
        if (both) {
          mix[3 * j] = (mix[3 * j] as number) + w * a;
          mix[3 * j + 1] = (mix[3 * j + 1] as number) + w * b;
          mix[3 * j + 2] = (mix[3 * j + 2] as number) + w * c;
          total[j] = (total[j] as number) + w;
        }
        if (counting) counts[low] = (counts[low] as number) + 2;
      }
      mix[3 * i] = (mix[3 * i] as number) + p;
      mix[3 * i + 1] = (mix[3 * i + 1] as number) + q;
      mix[3 * i + 2] = (mix[3 * i + 2] as number) + r;
      total[i] = (total[i] as number) + z;
    }
  }

  private pairs(x: Float64Array, counting: boolean): void {
    this.begin(x, counting);
    const { n, d, mix, total } = this;
    const { values, counts } = this.table;
    const both = !this.law.causal;
    for (let i = 1; i < n; i += 1) {
      for (let j = 0; j < i; j += 1) {
        let c = 0;
        for (let k = 0; k < d; k += 1) c += (x[i * d + k] as number) * (x[j * d + k] as number);
        const place = Math.min(BINS, Math.max(0, (c + 1) * (BINS / 2)));
        const low = place | 0;
        const left = values[low] as number;
        const w = left + (place - low) * ((values[low + 1] as number) - left);
        for (let k = 0; k < d; k += 1) {
          mix[i * d + k] = (mix[i * d + k] as number) + w * (x[j * d + k] as number);
          if (both) mix[j * d + k] = (mix[j * d + k] as number) + w * (x[i * d + k] as number);
        }
        total[i] = (total[i] as number) + w;
        if (both) total[j] = (total[j] as number) + w;
        if (counting) counts[low] = (counts[low] as number) + 2;
      }
    }
  }

  /** E_β = (1/2βn²) Σ_ij e^{β⟨x_i, x_j⟩} and the powers of modes, from the cosines that were counted. */
  looks(modes: number): Looks {
    const { values, counts } = this.table;
    const square = this.n * this.n;
    const powers = new Array<number>(modes + 1).fill(0);
    let sum = 0;
    for (let i = 0; i <= BINS; i += 1) {
      const count = counts[i] as number;
      if (count === 0) continue;
      const middle = i === BINS ? 1 : (2 * (i + 0.5)) / BINS - 1;
      sum += count * (i === BINS ? (values[i] as number) : ((values[i] as number) + (values[i + 1] as number)) / 2);
      let before = 1;
      let now = middle;
      powers[0] = (powers[0] as number) + count;
      for (let l = 1; l <= modes; l += 1) {
        powers[l] = (powers[l] as number) + count * now;
        const next =
          this.d === 2 ? 2 * middle * now - before : ((2 * l + 1) * middle * now - l * before) / (l + 1);
        before = now;
        now = next;
      }
    }
    const { beta } = this.law;
    return {
      energy: beta === 0 ? NaN : (sum * Math.exp(Math.abs(beta))) / (2 * beta * square),
      powers: powers.map((power) => power / square),
    };
  }

  /** Runge–Kutta of order four up to a time; steps are at most `step` long, shorter where tokens are quick. */
  advance(until: number, step = 0.1): void {
    const { x } = this;
    const [k1, k2, k3, k4, at] = Array.from({ length: 5 }, () => new Float64Array(x.length)) as [
      Float64Array,
      Float64Array,
      Float64Array,
      Float64Array,
      Float64Array,
    ];
    while (this.time < until - 1e-12) {
      this.velocity(x, k1);
      const dt = Math.min(step, until - this.time, REACH / Math.max(1e-9, longest(k1, this.d)) + 1e-4);
      for (let k = 0; k < x.length; k += 1) at[k] = (x[k] as number) + (dt / 2) * (k1[k] as number);
      unit(at, this.d);
      this.velocity(at, k2);
      for (let k = 0; k < x.length; k += 1) at[k] = (x[k] as number) + (dt / 2) * (k2[k] as number);
      unit(at, this.d);
      this.velocity(at, k3);
      for (let k = 0; k < x.length; k += 1) at[k] = (x[k] as number) + dt * (k3[k] as number);
      unit(at, this.d);
      this.velocity(at, k4);
      for (let k = 0; k < x.length; k += 1) {
        const slope = (k1[k] as number) + 2 * (k2[k] as number) + 2 * (k3[k] as number) + (k4[k] as number);
        x[k] = (x[k] as number) + (dt / 6) * slope;
      }
      unit(x, this.d);
      this.time += dt;
    }
  }

  /** Euler–Maruyama with a return to the sphere, as the library has it. */
  advanceNoisy(until: number, draw: () => number): void {
    const { x, d } = this;
    const v = new Float64Array(x.length);
    while (this.time < until - 1e-12) {
      const dt = Math.min(NOISY_STEP, until - this.time);
      this.velocity(x, v);
      const size = Math.sqrt((2 * dt) / this.law.kappa);
      for (let i = 0; i < this.n; i += 1) {
        const noise = Array.from({ length: d }, () => normal(draw));
        let along = 0;
        for (let k = 0; k < d; k += 1) along += (noise[k] as number) * (x[i * d + k] as number);
        for (let k = 0; k < d; k += 1) {
          const place = i * d + k;
          const kick = (noise[k] as number) - along * (x[place] as number);
          v[place] = dt * (v[place] as number) + size * kick;
        }
      }
      for (let k = 0; k < x.length; k += 1) x[k] = (x[k] as number) + (v[k] as number);
      unit(x, d);
      this.time += dt;
    }
  }
}

function longest(v: Float64Array, d: number): number {
  let most = 0;
  for (let i = 0; i < v.length; i += d) {
    let square = 0;
    for (let k = i; k < i + d; k += 1) square += (v[k] as number) ** 2;
    most = Math.max(most, square);
  }
  return Math.sqrt(most);
}

/** Bring every token back to length one. */
export function unit(x: Float64Array, d: number): void {
  for (let i = 0; i < x.length; i += d) {
    let square = 0;
    for (let k = i; k < i + d; k += 1) square += (x[k] as number) ** 2;
    const length = Math.sqrt(square) || 1;
    for (let k = i; k < i + d; k += 1) x[k] = (x[k] as number) / length;
  }
}

export function normal(draw: () => number): number {
  return Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());
}

/** n independent tokens, uniform on the sphere of R^d. */
export function uniform(n: number, d: number, seed: number): Float64Array {
  const draw = randomness(seed);
  const x = Float64Array.from({ length: n * d }, () => normal(draw));
  unit(x, d);
  return x;
}

/** How many groups tokens fall into when those within an angle are linked. */
export function groups(x: Float64Array, d: number, angle: number): number {
  const n = x.length / d;
  const parent = Int32Array.from({ length: n }, (_, i) => i);
  const root = (i: number): number => {
    let at = i;
    while (parent[at] !== at) {
      parent[at] = parent[parent[at] as number] as number;
      at = parent[at] as number;
    }
    return at;
  };
  const least = Math.cos(angle);
  let count = n;
  for (let i = 1; i < n; i += 1) {
    for (let j = 0; j < i; j += 1) {
      let c = 0;
      for (let k = 0; k < d; k += 1) c += (x[i * d + k] as number) * (x[j * d + k] as number);
      if (c < least) continue;
      const a = root(i);
      const b = root(j);
      if (a !== b) {
        parent[a] = b;
        count -= 1;
      }
    }
  }
  return count;
}

/** |Σ x_i / n|² of unit vectors without the diagonal: the mean cosine of pairs. */
export function meanCosine(x: Float64Array, d: number): number {
  const n = x.length / d;
  const sum = new Float64Array(d);
  for (let i = 0; i < x.length; i += 1) sum[i % d] = (sum[i % d] as number) + (x[i] as number);
  let square = 0;
  for (const value of sum) square += value * value;
  return (square - n) / (n * (n - 1));
}
