/** The graph at one size, and the keys and values of the tokens so far: `continua.session.writing.Decoder` again. */

import type { About } from "../bundle";
import { flags, floats, longs, type Runtime, type Tensor } from "./runtime";
import type { Size } from "./size";

export class Decoder {
  private kept: Record<string, Tensor> = {};
  private readonly names: string[];
  /** Tokens that were read. */
  length = 0;

  constructor(
    private readonly runtime: () => Promise<Runtime>,
    private readonly about: About,
    readonly size: Size,
  ) {
    this.names = Array.from({ length: size.steps.length }, (_, i) => [`key_${i}`, `value_${i}`]).flat();
    this.forget();
  }

  /** Begin anew. */
  forget(): void {
    const { h, e } = this.size;
    const nothing = (): Tensor => floats(new Float32Array(0), [1, h, 0, e]);
    this.kept = {};
    for (let i = 0; i < this.size.steps.length; i += 1) {
      this.kept[`key_${i}`] = nothing();
      this.kept[`value_${i}`] = nothing();
    }
    this.length = 0;
  }

  /** Read further tokens; the logits behind those of `answers` (−1 is the last one), a row each. */
  async read(ids: readonly number[], answers: readonly number[] = [-1]): Promise<Float32Array[]> {
    const found = await this.run(ids, answers, []);
    return rows(found["logits"] as Tensor);
  }

  /** All that the graph answers of a text that is read from its start: logits, attention and states. */
  async probe(ids: readonly number[]): Promise<Record<string, Tensor>> {
    this.forget();
    return this.run(ids, Array.from(ids, (_, i) => i), ["attention", "states"]);
  }

  private async run(
    ids: readonly number[],
    answers: readonly number[],
    more: readonly string[],
  ): Promise<Record<string, Tensor>> {
    const begin = this.length;
    const room = this.about.context ?? Infinity;
    const places = ids.map((_, i) => Math.min(begin + i, room - 1));
    const feeds = {
      ...this.kept,
      ids: longs(ids, [1, ids.length]),
      positions: longs(places, [1, ids.length]),
      observed: flags(new Uint8Array(begin + ids.length).fill(1), [1, begin + ids.length]),
      answers: longs(answers),
    };
    const runtime = await this.runtime();
    const found = await runtime.run(feeds, ["logits", ...this.names.map((name) => `new_${name}`), ...more]);
    for (const name of this.names) this.kept[name] = found[`new_${name}`] as Tensor;
    this.length = begin + ids.length;
    return found;
  }

  /** Forget all but the first `length` tokens. */
  keep(length: number): void {
    if (length >= this.length) return;
    const { h, e } = this.size;
    for (const name of this.names) {
      const old = (this.kept[name] as Tensor).data as Float32Array;
      const made = new Float32Array(h * length * e);
      for (let head = 0; head < h; head += 1) {
        const start = head * this.length * e;
        made.set(old.subarray(start, start + length * e), head * length * e);
      }
      this.kept[name] = floats(made, [1, h, length, e]);
    }
    this.length = length;
  }
}

/** The rows of logits [1, a, v]. */
export function rows(logits: Tensor): Float32Array[] {
  const [, count, vocab] = logits.dims as [number, number, number];
  const data = logits.data as Float32Array;
  return Array.from({ length: count }, (_, i) => data.slice(i * vocab, (i + 1) * vocab));
}

/** Mean loss in nats a token of some texts, each read at once. */
export async function lossOf(decoder: Decoder, texts: readonly number[][], stopped: () => boolean): Promise<number> {
  let total = 0;
  let count = 0;
  for (const text of texts) {
    if (stopped()) return NaN;
    decoder.forget();
    const found = await decoder.read(text, Array.from(text, (_, i) => i));
    for (let i = 0; i + 1 < text.length; i += 1) {
      total += surprise(found[i] as Float32Array, text[i + 1] as number);
      count += 1;
    }
  }
  decoder.forget();
  return total / count;
}

/** −log p of a token. */
export function surprise(logits: Float32Array, token: number): number {
  let top = -Infinity;
  for (const value of logits) top = Math.max(top, value);
  let sum = 0;
  for (const value of logits) sum += Math.exp(value - top);
  return Math.log(sum) + top - (logits[token] as number);
}
