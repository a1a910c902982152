/** Growth rates of the modes of the uniform measure: `continua.lab.growth_rates` for the circle and the sphere. */

import type { Kind } from "./particles";

/** r_l = I_{l+ν}(β)/I_ν(β), l = 0, …, modes, by the continued fraction of ratios. */
export function ratios(beta: number, d: number, modes: number): number[] {
  const nu = d / 2 - 1;
  const far = modes + 40 + Math.ceil(6 * Math.sqrt(Math.abs(beta)));
  let next = 0;
  const step = new Array<number>(modes + 1).fill(0);
  for (let l = far; l >= 0; l -= 1) {
    next = beta === 0 ? 0 : 1 / ((2 * (nu + l + 1)) / beta + next);
    if (l < modes) step[l] = next;
  }
  const found = [1];
  for (let l = 0; l < modes; l += 1) found.push((found[l] as number) * (step[l] as number));
  return found;
}

/** c_0: the mean of e^{β⟨x, y⟩} over the sphere. */
export function meanWeight(beta: number, d: number): number {
  if (d === 3) return beta === 0 ? 1 : Math.sinh(beta) / beta;
  let term = 1;
  let sum = 1;
  for (let k = 1; k < 400; k += 1) {
    term *= (beta * beta) / (4 * k * k);
    sum += term;
    if (term < 1e-17 * sum) break;
  }
  return sum;
}

/** λ_l for l = 0, …, modes: SA l(l+d−2) r_l/β, USA the same times c_0, each −l(l+d−2)/κ with noise; V = −I turns the sign. */
export function growthRates(beta: number, d: number, kind: Kind, modes: number, kappa = Infinity, sign = 1): number[] {
  const near = Math.abs(beta) < 1e-6;
  const r = ratios(near ? 1e-6 : beta, d, modes);
  const scale = kind === "USA" ? meanWeight(beta, d) : 1;
  return r.map((ratio, l) => {
    const degree = l * (l + d - 2);
    return (sign * degree * ratio * scale) / (near ? 1e-6 : beta) - degree / kappa;
  });
}

/** The mode that grows fastest. */
export function fastest(rates: readonly number[]): number {
  let best = 1;
  for (let l = 2; l < rates.length; l += 1) if ((rates[l] as number) > (rates[best] as number)) best = l;
  return best;
}
