import { describe, expect, it } from "vitest";
import { drawn, judged, likeliest, randomness, shares } from "./writing";
import { flops, front, rounded, sizeOf, weightBytes } from "./size";
import { surprise } from "./decoder";
import { Alphabet, BytePairs, streamed } from "./tokens";
import type { About } from "../bundle";

const about: About = {
  native: { d: 128, h: 4, e: 32, m: 512, z: 4 },
  steps: { "1": [[0, 4]], "2": [[0, 2], [2, 2]], "4": [[0, 1], [1, 1], [2, 1], [3, 1]] },
  smallest: {},
  vocab: 96,
  context: 128,
  tokens: { kind: "characters", alphabet: "ab" },
};

describe("sizes", () => {
  it("take m with d and count operations as continua pareto does", () => {
    const native = sizeOf(about, { d: 128, h: 4, z: 4 });
    expect(flops(native, 96, 128)).toBe(238026752);
    const half = sizeOf(about, { d: 64, h: 2, z: 2 });
    expect(half).toEqual({ d: 64, h: 2, e: 32, m: 256, steps: [[0, 2], [2, 2]] });
    expect(weightBytes(half, 96)).toBe(4 * (2 * (4 * 64 * 64 + 2 * 64 * 256) + 64 * 96));
  });
  it("are refused where the file has none", () => {
    for (const wish of [{ d: 1, h: 4, z: 4 }, { d: 129, h: 4, z: 4 }, { d: 8, h: 0, z: 4 }, { d: 8.5, h: 1, z: 1 }]) {
      expect(() => sizeOf(about, wish)).toThrow(/Choose/);
    }
    expect(() => sizeOf(about, { d: 8, h: 1, z: 3 })).toThrow(/depth/);
  });
  it("round as Python does", () => {
    expect([0.5, 1.5, 2.5, 2.4, 2.6].map(rounded)).toEqual([0, 2, 2, 2, 3]);
  });
  it("on the front are beaten by nothing cheaper", () => {
    const make = (work: number, loss: number) => ({ d: 1, h: 1, z: 1, loss, milliseconds: null, flops: work, bytes: null, trained: true });
    expect(front([make(3, 1), make(1, 3), make(2, 4), make(4, 2)]).map((one) => one.flops)).toEqual([1, 3]);
  });
});

describe("tokens", () => {
  it("go there and back", () => {
    const alphabet = new Alphabet("ab\n€");
    expect(alphabet.decode(alphabet.encode("a€b\n"))).toBe("a€b\n");
    expect(() => alphabet.encode("x")).toThrow(/does not know the character "x"/);
  });
  it("of byte pairs wait for one another", () => {
    const letters = ["Ã", "©", "a", "Ġ", "b", "ab"];
    const vocab = Object.fromEntries(letters.map((letter, id) => [letter, id]));
    const pairs = new BytePairs(JSON.stringify({ model: { vocab, merges: [["a", "b"]] }, pre_tokenizer: { type: "ByteLevel" } }));
    expect(pairs.encode("ab éa")).toEqual([5, 3, 0, 1, 2]);
    const told = streamed(pairs);
    expect([0, 1, 2].map(told)).toEqual(["", "é", "a"]);
    expect(() => new BytePairs(JSON.stringify({ model: {}, pre_tokenizer: null }))).toThrow(/does not know/);
  });
  it("are chosen first of the largest", () => {
    expect(likeliest(Float32Array.of(1, 3, 3, 2))).toBe(1);
  });
  it("have shares that sum to one and surprise accordingly", () => {
    const logits = Float32Array.of(1, 2, 3);
    const p = shares(logits, 1);
    expect(p.reduce((a, b) => a + b)).toBeCloseTo(1, 12);
    expect(surprise(logits, 2)).toBeCloseTo(-Math.log(p[2] as number), 6);
    expect([...shares(logits, 0)]).toEqual([0, 0, 1]);
  });
  it("are drawn as often as their shares say", () => {
    const draw = randomness(3);
    const counts = [0, 0, 0];
    for (let i = 0; i < 20000; i += 1) counts[drawn(Float64Array.of(0.2, 0.5, 0.3), draw)]! += 1;
    expect(counts[0]! / 20000).toBeCloseTo(0.2, 1);
    expect(counts[1]! / 20000).toBeCloseTo(0.5, 1);
  });
});

describe("speculation", () => {
  it("writes as the model alone would, whatever the draft says", () => {
    const draw = randomness(7);
    const p = Float64Array.of(0.6, 0.3, 0.1);
    const q = Float64Array.of(0.1, 0.2, 0.7);
    const counts = [0, 0, 0];
    const rounds = 40000;
    for (let i = 0; i < rounds; i += 1) {
      const round = judged([drawn(q, draw)], [q], [p, p], draw);
      counts[round.kept[0] ?? round.own]! += 1;
    }
    counts.forEach((count, token) => expect(Math.abs(count / rounds - (p[token] as number))).toBeLessThan(0.01));
  });
  it("keeps what is equal and rejects from the first that is not", () => {
    const sure = (token: number) => Float64Array.from({ length: 3 }, (_, i) => (i === token ? 1 : 0));
    const round = judged([1, 2, 0], [sure(1), sure(2), sure(0)], [sure(1), sure(0), sure(0), sure(1)], randomness(1));
    expect(round).toEqual({ kept: [1], rejected: [2, 0], own: 0 });
  });
});
