/** A session of the runtime for each size, opened when it is first asked for; the oldest are closed. */

import type { About, Watch } from "../bundle";
import { fixed, type Constant } from "./fixed";
import { Runtime } from "./runtime";
import type { Size } from "./size";

const MOST = 5; // sessions at once: each holds the weights of its size

const bytesOf = (array: BigInt64Array | Float32Array): Uint8Array => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

/** The inputs of a file that a size decides, and the outputs that it does not have. */
export function decided(about: About, size: Size): { values: Map<string, Constant>; drop: Set<string> } {
  const values = new Map<string, Constant>();
  const longs = (numbers: number[]): Constant => ({ kind: "int64", dims: [numbers.length], data: bytesOf(BigInt64Array.from(numbers, BigInt)) });
  for (const letter of ["d", "h", "e", "m"] as const) {
    values.set(letter, longs(Array.from({ length: size[letter] }, (_, i) => i)));
  }
  values.set("layers", longs(size.steps.map(([layer]) => layer)));
  const lengths = Float32Array.from(size.steps, ([, length]) => length);
  values.set("lengths", { kind: "float32", dims: [lengths.length], data: bytesOf(lengths) });
  const drop = new Set<string>();
  for (let i = size.steps.length; i < about.native.z; i += 1) {
    for (const name of ["key", "value"]) {
      values.set(`${name}_${i}`, { kind: "float32", dims: [0, size.h, 0, size.e], data: new Uint8Array(0) });
      drop.add(`new_${name}_${i}`);
    }
  }
  return { values, drop };
}

export class Sessions {
  private readonly open = new Map<string, Promise<Runtime>>();

  constructor(
    private readonly content: ArrayBuffer,
    private readonly about: About,
  ) {}

  at(size: Size, watch: Watch = () => undefined): Promise<Runtime> {
    const key = JSON.stringify(size);
    const known = this.open.get(key);
    this.open.delete(key);
    const made = known ?? this.make(size, watch);
    this.open.set(key, made);
    for (const old of [...this.open.keys()].slice(0, -MOST)) {
      const gone = this.open.get(old);
      this.open.delete(old);
      void gone?.then((runtime) => runtime.close()).catch(() => undefined);
    }
    return made;
  }

  private make(size: Size, watch: Watch): Promise<Runtime> {
    const { values, drop } = decided(this.about, size);
    return Runtime.of(fixed(new Uint8Array(this.content), values, drop), watch);
  }
}
