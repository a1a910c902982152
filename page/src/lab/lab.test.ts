import { describe, expect, it } from "vitest";
import { Flow, groups, meanCosine, uniform, type Law } from "./particles";
import { fastest, growthRates, meanWeight } from "./theory";

const law: Law = { kind: "SA", beta: 4, causal: false, sign: 1, kappa: Infinity };

/** All pairs with Math.exp: slow and plain. */
function exact(x: Float64Array, d: number, { kind, beta, causal, sign }: Law): Float64Array {
  const n = x.length / d;
  const out = new Float64Array(x.length);
  for (let i = 0; i < n; i += 1) {
    const mix = new Array<number>(d).fill(0);
    let total = 0;
    for (let j = 0; j < (causal ? i + 1 : n); j += 1) {
      let c = 0;
      for (let k = 0; k < d; k += 1) c += x[i * d + k]! * x[j * d + k]!;
      const w = Math.exp(beta * c);
      total += w;
      for (let k = 0; k < d; k += 1) mix[k]! += w * x[j * d + k]!;
    }
    const scale = sign / (kind === "SA" ? total : n);
    let along = 0;
    for (let k = 0; k < d; k += 1) along += scale * mix[k]! * x[i * d + k]!;
    for (let k = 0; k < d; k += 1) out[i * d + k] = scale * mix[k]! - along * x[i * d + k]!;
  }
  return out;
}

describe("particles", () => {
  for (const d of [2, 3, 5]) {
    for (const change of [{}, { kind: "USA" }, { causal: true }, { sign: -1 }, { beta: -3 }] as Partial<Law>[]) {
      it(`move as all pairs say: d=${d}, ${JSON.stringify(change)}`, () => {
        const own = { ...law, ...change };
        const x = uniform(60, d, 1);
        const found = new Float64Array(x.length);
        new Flow(x, d, own).velocity(x, found);
        const wanted = exact(x, d, own);
        const most = Math.max(...wanted.map(Math.abs));
        found.forEach((value, k) => expect(Math.abs(value - wanted[k]!)).toBeLessThan(1e-4 * most));
      });
    }
  }
  it("climb the energy and stay on the sphere", () => {
    const flow = new Flow(uniform(80, 3, 2), 3, law);
    const v = new Float64Array(flow.x.length);
    let before = -Infinity;
    for (let i = 1; i < 12; i += 1) {
      flow.advance(i * 0.3);
      flow.velocity(flow.x, v, true);
      const { energy } = flow.looks(4);
      expect(energy).toBeGreaterThan(before);
      before = energy;
    }
    for (let i = 0; i < flow.x.length; i += 3) expect(Math.hypot(flow.x[i]!, flow.x[i + 1]!, flow.x[i + 2]!)).toBeCloseTo(1, 12);
  });
  it("follow the closed form of equal cosines: β = 0, γ = (e^{2t} − 1)/(e^{2t} + n − 1)", () => {
    const n = 5;
    const x = Float64Array.from({ length: n * n }, (_, k) => (k % (n + 1) === 0 ? 1 : 0));
    const flow = new Flow(x, n, { ...law, beta: 0 });
    flow.advance(0.8, 0.05);
    const wanted = (Math.exp(1.6) - 1) / (Math.exp(1.6) + n - 1);
    expect(meanCosine(flow.x, n)).toBeCloseTo(wanted, 6);
  });
  it("are counted in groups", () => {
    const at = (...angles: number[]) => Float64Array.from(angles.flatMap((a) => [Math.cos(a), Math.sin(a)]));
    expect(groups(at(0, 0.1, 2, 6.2), 2, 0.2)).toBe(2);
  });
  it("have powers of modes: a polygon has the mode of its corners", () => {
    const x = Float64Array.from({ length: 12 }, (_, k) => (k % 2 === 0 ? Math.cos : Math.sin)((Math.PI * Math.floor(k / 2)) / 3));
    const flow = new Flow(x, 2, law);
    flow.velocity(x, new Float64Array(12), true);
    const { powers } = flow.looks(6);
    powers.slice(1, 6).forEach((power) => expect(Math.abs(power)).toBeLessThan(1e-2));
    expect(powers[6]).toBeGreaterThan(0.98);
  });
});

describe("theory", () => {
  it("has the growth rates of the library", () => {
    const wanted = [0.0, 0.105, 0.351, 0.591, 0.704, 0.664, 0.522]; // continua.lab.growth_rates(9.0, modes=6)
    growthRates(9, 2, "SA", 6).forEach((rate, l) => expect(rate).toBeCloseTo(wanted[l]!, 3));
    expect([0.1, 1, 9, 50].map((beta) => fastest(growthRates(beta, 2, "SA", 16)))).toEqual([1, 1, 4, 10]);
  });
  it("has the mean weight in closed form", () => {
    expect(meanWeight(2, 3)).toBeCloseTo(Math.sinh(2) / 2, 12);
    expect(meanWeight(2, 2)).toBeCloseTo(2.2795853, 6);
  });
  it("loses to noise", () => {
    const quiet = growthRates(9, 2, "SA", 6);
    growthRates(9, 2, "SA", 6, 10).forEach((rate, l) => expect(rate).toBeCloseTo(quiet[l]! - (l * l) / 10, 10));
  });
});
