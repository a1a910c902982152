import { describe, expect, it } from "vitest";
import { burgers } from "./burgers";
import { fft } from "./fft";
import { laid, measure, solved } from "./wiener";

describe("fft", () => {
  it("goes there and back, and finds a wave", () => {
    const n = 64;
    const re = Float64Array.from({ length: n }, (_, i) => Math.cos((2 * Math.PI * 5 * i) / n));
    const im = new Float64Array(n);
    const before = re.slice();
    fft(re, im);
    expect(re[5]).toBeCloseTo(n / 2, 9);
    expect(Math.abs(re[6]!)).toBeLessThan(1e-9);
    fft(re, im, true);
    re.forEach((value, i) => expect(value).toBeCloseTo(before[i]!, 12));
  });
});

describe("burgers", () => {
  it("is the heat equation for small waves", () => {
    const n = 128;
    const u0 = Float64Array.from({ length: n }, (_, i) => 1e-4 * Math.sin((2 * Math.PI * i) / n));
    const { u } = burgers(u0, 0.05, 0.3);
    const decay = Math.exp(-0.05 * (2 * Math.PI) ** 2 * 0.3);
    u.forEach((value, i) => expect(Math.abs(value - decay * u0[i]!)).toBeLessThan(1e-7));
  });
  it("keeps the mean and converges with order four", () => {
    const u0 = Float64Array.from({ length: 256 }, (_, i) => 0.3 + Math.sin((2 * Math.PI * i) / 256));
    const [coarse, fine, best] = [64, 128, 1024].map((steps) => burgers(u0, 0.02, 0.5, steps).u) as [Float64Array, Float64Array, Float64Array];
    const off = (u: Float64Array): number => Math.max(...u.map((value, i) => Math.abs(value - best[i]!)));
    expect(off(coarse) / off(fine)).toBeGreaterThan(11);
    expect(best.reduce((a, b) => a + b) / 256).toBeCloseTo(0.3, 10);
  });
});

describe("wiener", () => {
  const prior = { spectrum: Array.from({ length: 12 }, (_, k) => (1 + k * k) ** -2), noise: 1e-4 };
  const wave = (t: number): number => Math.sin(2 * Math.PI * t) + 0.3 * Math.cos(2 * Math.PI * 3 * t);
  it("reads waves that it knows from scattered points", () => {
    const points = Array.from({ length: 40 }, (_, i) => ((i * 0.618034) % 1) ** 1.2);
    const found = laid(points, points.map(wave), 32, prior);
    found.forEach((value, i) => expect(Math.abs(value - wave(i / 32))).toBeLessThan(2e-3));
  });
  it("measures points by half their gaps", () => {
    expect(measure([0, 0.5, 0.25]).map((w) => Number(w.toFixed(3)))).toEqual([0.375, 0.375, 0.25]);
  });
  it("solves", () => {
    const x = solved([Float64Array.of(4, 0), Float64Array.of(2, 3)], Float64Array.of(2, 1));
    expect([...x].map((v) => Number(v.toFixed(6)))).toEqual([0.5, 0]);
  });
});
