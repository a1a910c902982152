/** A size of the file, what it costs, and what is known of it. */

import { Problem, type About, type Bundle, type Measured } from "../bundle";

export interface Size {
  d: number;
  h: number;
  e: number;
  m: number;
  steps: [layer: number, length: number][];
}

export interface Wish {
  d: number;
  h: number;
  z: number;
}

/** Half away from even, as Python rounds. */
export function rounded(value: number): number {
  const low = Math.floor(value);
  const rest = value - low;
  if (rest !== 0.5) return Math.round(value);
  return low % 2 === 0 ? low : low + 1;
}

/** The least of each axis that the file goes down to. */
export function least(about: About): Wish {
  const small = about.smallest;
  return { d: Math.max(about.native.d > 1 ? 2 : 1, small["d"] ?? 1), h: small["h"] ?? 1, z: small["z"] ?? 1 };
}

/** d takes m with it, as `at(d=…)` does. */
export function sizeOf(about: About, wish: Wish): Size {
  const native = about.native;
  const low = least(about);
  for (const letter of ["d", "h", "z"] as const) {
    const value = wish[letter];
    if (!Number.isInteger(value) || value < low[letter] || value > native[letter]) {
      const remedy = `Choose ${letter} from ${low[letter]} to ${native[letter]}.`;
      throw new Problem(`This model has no size ${letter}=${value}.`, remedy);
    }
  }
  const steps = about.steps[String(wish.z)];
  if (steps === undefined) throw new Problem(`This model has no depth z=${wish.z}.`, "Choose another depth.");
  const m = Math.max(1, rounded((native.m * wish.d) / native.d));
  return { d: wish.d, h: wish.h, e: native.e, m, steps };
}

/** Floating-point operations of one text of `tokens` tokens going forward, as `continua pareto` counts them. */
export function flops(size: Size, vocab: number, tokens: number): number {
  const inner = size.h * size.e;
  const step = 8 * size.d * inner + 4 * size.d * size.m + 4 * tokens * inner;
  return tokens * (size.steps.length * step + 2 * size.d * vocab);
}

/** Bytes of the matrices that this size reads, four each. */
export function weightBytes(size: Size, vocab: number, tied = true): number {
  const step = 4 * size.d * size.h * size.e + 2 * size.d * size.m;
  return 4 * (size.steps.length * step + (tied ? 1 : 2) * size.d * vocab);
}

export function measuredAt(bundle: Bundle, wish: Wish): Measured | undefined {
  return bundle.sizes.find((one) => one.d === wish.d && one.h === wish.h && one.z === wish.z);
}

/** Whether training drew a size. */
export function wasTrained(bundle: Bundle, wish: Wish): boolean {
  return bundle.trained.some(([d, h, z]) => d === wish.d && h === wish.h && z === wish.z);
}

/** Those sizes of the table that nothing cheaper beats. */
export function front(points: readonly Measured[]): Measured[] {
  const sorted = [...points].sort((a, b) => a.flops - b.flops || a.loss - b.loss);
  const kept: Measured[] = [];
  for (const point of sorted) {
    const last = kept.at(-1);
    if (last === undefined || point.loss < last.loss) kept.push(point);
  }
  return kept;
}
