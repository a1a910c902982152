/** Writing on: the likeliest token or a drawn one, alone, or with a small size that writes ahead. */

import { Decoder } from "./decoder";

/** A stream of numbers in [0, 1) that a seed decides (mulberry32). */
export function randomness(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** The first of the largest, as numpy and torch take it. */
export function likeliest(logits: Float32Array): number {
  let best = 0;
  for (let i = 1; i < logits.length; i += 1) if ((logits[i] as number) > (logits[best] as number)) best = i;
  return best;
}

export function shares(logits: Float32Array, temperature: number): Float64Array {
  const found = new Float64Array(logits.length);
  if (temperature <= 0) {
    found[likeliest(logits)] = 1;
    return found;
  }
  let top = -Infinity;
  for (const value of logits) top = Math.max(top, value);
  let sum = 0;
  for (let i = 0; i < logits.length; i += 1) {
    found[i] = Math.exp(((logits[i] as number) - top) / temperature);
    sum += found[i] as number;
  }
  for (let i = 0; i < found.length; i += 1) found[i] = (found[i] as number) / sum;
  return found;
}

export function drawn(weights: Float64Array, draw: () => number): number {
  let total = 0;
  for (const weight of weights) total += weight;
  let rest = draw() * total;
  for (let i = 0; i < weights.length; i += 1) {
    rest -= weights[i] as number;
    if (rest < 0) return i;
  }
  return weights.length - 1;
}

/** Each new token as it is made, with the milliseconds that it took. */
export async function* writes(
  decoder: Decoder,
  prompt: readonly number[],
  count: number,
  temperature: number,
  seed: number,
): AsyncGenerator<{ token: number; milliseconds: number }> {
  const draw = randomness(seed);
  decoder.forget();
  let given = prompt;
  for (let i = 0; i < count; i += 1) {
    const began = performance.now();
    const [logits] = await decoder.read(given);
    const token =
      temperature > 0 ? drawn(shares(logits as Float32Array, temperature), draw) : likeliest(logits as Float32Array);
    yield { token, milliseconds: performance.now() - began };
    given = [token];
  }
}

/** One round of self-speculation: what was kept of the tokens written ahead, what was not, and what came instead. */
export interface Round {
  kept: number[];
  rejected: number[];
  /** Written by the native size itself: in place of the first rejected one, or behind all. */
  own: number;
}

/**
 * A draft writes `ahead` tokens, the model reads them in one pass: a token x that the draft drew from q is kept with
 * probability min(1, p(x)/q(x)); in place of the first that is not, max(p − q, 0) is drawn from. The text is distributed
 * as without a draft; the likeliest tokens are the same ones.
 */
export async function* speculates(
  model: Decoder,
  draft: Decoder,
  prompt: readonly number[],
  count: number,
  ahead: number,
  temperature: number,
  seed: number,
): AsyncGenerator<Round> {
  const draw = randomness(seed);
  const text = [...prompt];
  model.forget();
  draft.forget();
  if (text.length > 1) {
    await model.read(text.slice(0, -1));
    await draft.read(text.slice(0, -1));
  }
  let written = 0;
  while (written < count) {
    const many = Math.min(ahead, Math.max(1, count - written - 1));
    const guesses: number[] = [];
    const guessed: Float64Array[] = [];
    let given = text.slice(draft.length);
    for (let i = 0; i < many; i += 1) {
      const [logits] = await draft.read(given);
      const q = shares(logits as Float32Array, temperature);
      const token = drawn(q, draw);
      guesses.push(token);
      guessed.push(q);
      given = [token];
    }
    const fresh = [...text.slice(model.length), ...guesses];
    const places = Array.from({ length: many + 1 }, (_, i) => fresh.length - many - 1 + i);
    const wanted = (await model.read(fresh, places)).map((logits) => shares(logits, temperature));
    const round = judged(guesses, guessed, wanted, draw);
    text.push(...round.kept, round.own);
    written += round.kept.length + 1;
    model.keep(text.length - 1);
    draft.keep(Math.min(draft.length, text.length - 1));
    yield round;
  }
}

/** The rule of keeping. */
export function judged(
  guesses: readonly number[],
  guessed: readonly Float64Array[],
  wanted: readonly Float64Array[],
  draw: () => number,
): Round {
  for (let i = 0; i < guesses.length; i += 1) {
    const token = guesses[i] as number;
    const p = wanted[i] as Float64Array;
    const q = guessed[i] as Float64Array;
    if (draw() * (q[token] as number) < (p[token] as number)) continue;
    const rest = p.map((value, k) => Math.max(0, value - (q[k] as number)));
    const own = drawn(rest.some((value) => value > 0) ? rest : p, draw);
    return { kept: guesses.slice(0, i), rejected: guesses.slice(i), own };
  }
  return { kept: [...guesses], rejected: [], own: drawn(wanted[guesses.length] as Float64Array, draw) };
}
