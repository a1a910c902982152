import { describe, expect, it } from "vitest";
import { parsed, written } from "./address";
import { linear, logarithmic, niceTicks, readable, trimmed, written as tickText } from "./chart";

describe("addresses", () => {
  it("go there and back", () => {
    const state = new Map([["scene", "sizes"], ["prompt", "def f(x): # 50% & more?\n"], ["d", "64"]]);
    expect(parsed(written(state))).toEqual(state);
    expect(written(state).startsWith("?scene=sizes&d=64&prompt=")).toBe(true);
  });
  it("leave out what is as usual", () => {
    expect(written(new Map([["d", "8"], ["h", "2"]]), new Map([["d", "8"]]))).toBe("?h=2");
    expect(written(new Map())).toBe("");
  });
});

describe("scales", () => {
  it("have inverses", () => {
    for (const scale of [linear(2, 10, 50, 600), logarithmic(1e3, 1e8, 20, 400)]) {
      expect(scale.inverse(scale(7777))).toBeCloseTo(7777, 6);
    }
  });
  it("have round ticks", () => {
    expect(niceTicks(0, 1)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
    expect(logarithmic(1e6, 2e8, 0, 1).ticks).toContain(1e8);
  });
  it("tell neighbouring ticks apart", () => {
    expect([60.9, 61, 61.1].map(tickText([60.9, 61, 61.1]))).toEqual(["60.9", "61.0", "61.1"]);
    expect([-1, 0, 1].map(tickText([-1, 0, 1]))).toEqual(["−1", "0", "1"]);
    expect(tickText([0, 50000])(50000)).toBe("50 k");
  });
  it("are written short", () => {
    expect([238026752, 1500, 0, 12.5].map((value) => readable(value))).toEqual(["238 M", "1.5 k", "0", "12.5"]);
    expect(trimmed(100, 3)).toBe("100");
  });
});
