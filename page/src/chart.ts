/** Small SVG charts: axes with ticks, lines, dots. Colours come from the style sheet by class. */

import { svg } from "./dom";

export interface Scale {
  (value: number): number;
  inverse(place: number): number;
  ticks: number[];
}

export function linear(low: number, high: number, from: number, to: number, count = 5): Scale {
  const span = high - low || 1;
  const scale = ((value: number) => from + ((value - low) / span) * (to - from)) as Scale;
  scale.inverse = (place: number) => low + ((place - from) / (to - from)) * span;
  scale.ticks = niceTicks(low, high, count);
  return scale;
}

export function logarithmic(low: number, high: number, from: number, to: number): Scale {
  const inner = linear(Math.log10(low), Math.log10(high), from, to);
  const scale = ((value: number) => inner(Math.log10(value))) as Scale;
  scale.inverse = (place: number) => 10 ** inner.inverse(place);
  const steps = high / low > 300 ? [1] : high / low > 80 ? [1, 3] : [1, 2, 5];
  scale.ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of steps) {
      const tick = step * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) scale.ticks.push(tick);
    }
  }
  return scale;
}

/** Round numbers between two ends. */
export function niceTicks(low: number, high: number, count = 5): number[] {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const share = raw / power;
  const step = power * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10);
  const ticks: number[] = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + 1e-9 * span; tick += step) {
    ticks.push(Number(tick.toPrecision(12)));
  }
  return ticks;
}

const PREFIXES: [number, string][] = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

/** 238 M, 4.1 M, 12.5. */
export function readable(value: number, digits = 3): string {
  const size = Math.abs(value);
  for (const [factor, name] of PREFIXES) {
    if (size >= factor) return `${trimmed(value / factor, digits)} ${name}`;
  }
  return trimmed(value, digits);
}

export function trimmed(value: number, digits = 3): string {
  if (value === 0) return "0";
  const text = value.toPrecision(digits);
  return text.includes("e") ? text : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** As many decimals as tell neighbouring ticks apart; large numbers with a prefix. */
export function written(ticks: readonly number[]): (value: number) => string {
  const step = Math.min(...ticks.slice(1).map((tick, i) => tick - (ticks[i] as number)));
  const most = Math.max(...ticks.map(Math.abs));
  if (!Number.isFinite(step) || most >= 1e4) return readable;
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return (value) => value.toFixed(Math.min(decimals, 6)).replace("-", "−");
}

const PHONE = 720;
const NARROW = 370;

export interface ChartWish {
  width: number;
  height: number;
  title: string;
  x: { label: string; range: [number, number]; log?: boolean; shown?: (value: number) => string };
  y: { label: string; range: [number, number]; log?: boolean; shown?: (value: number) => string };
  margin?: { left: number; right: number; top: number; bottom: number };
}

export class Chart {
  readonly root: SVGSVGElement;
  readonly x: Scale;
  readonly y: Scale;
  private readonly layers = new Map<string, SVGGElement>();
  private readonly plot: SVGGElement;
  readonly width: number;
  readonly height: number;
  /** Where the lowest value is drawn. */
  readonly floor: number;

  constructor(wish: ChartWish) {
    // on a phone a wide chart would shrink together with its numbers
    const width = innerWidth < PHONE ? Math.min(NARROW, wish.width) : wish.width;
    const { height } = wish;
    this.width = width;
    this.height = height;
    const margin = wish.margin ?? { left: 52, right: 22, top: 10, bottom: 40 };
    const right = width - margin.right;
    const bottom = height - margin.bottom;
    this.floor = bottom;
    this.root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart", "aria-label": wish.title });
    const make = (log: boolean | undefined, range: [number, number], from: number, to: number): Scale =>
      log ? logarithmic(range[0], range[1], from, to) : linear(range[0], range[1], from, to);
    this.x = make(wish.x.log, wish.x.range, margin.left, right);
    this.y = make(wish.y.log, wish.y.range, bottom, margin.top);
    const axes = svg("g", { class: "axes" });
    for (const tick of this.x.ticks) {
      const place = this.x(tick);
      const text = (wish.x.shown ?? written(this.x.ticks))(tick);
      axes.append(
        svg("line", { x1: place, x2: place, y1: margin.top, y2: bottom, class: "grid" }),
        svg("text", { x: place, y: bottom + 15, "text-anchor": "middle" }, text),
      );
    }
    for (const tick of this.y.ticks) {
      const place = this.y(tick);
      const text = (wish.y.shown ?? written(this.y.ticks))(tick);
      axes.append(
        svg("line", { x1: margin.left, x2: right, y1: place, y2: place, class: "grid" }),
        svg("text", { x: margin.left - 6, y: place + 4, "text-anchor": "end" }, text),
      );
    }
    const middle = (margin.top + bottom) / 2;
    axes.append(
      svg("text", { x: (margin.left + right) / 2, y: height - 6, "text-anchor": "middle", class: "label" }, wish.x.label),
      svg(
        "text",
        { x: 13, y: middle, "text-anchor": "middle", class: "label", transform: `rotate(-90 13 ${middle})` },
        wish.y.label,
      ),
    );
    this.plot = svg("g", {});
    this.root.append(axes, this.plot);
  }

  /** A group of marks that can be drawn anew. */
  layer(name: string): SVGGElement {
    let found = this.layers.get(name);
    if (found === undefined) {
      found = svg("g", { class: name });
      this.layers.set(name, found);
      this.plot.append(found);
    }
    return found;
  }

  path(points: readonly (readonly [number, number])[]): string {
    let text = "";
    let pen = false;
    for (const [x, y] of points) {
      if (!Number.isFinite(x) || !Number.isFinite(y)) {
        pen = false;
        continue;
      }
      text += `${pen ? "L" : "M"}${this.x(x).toFixed(2)} ${this.y(y).toFixed(2)}`;
      pen = true;
    }
    return text;
  }

  /** A line in a layer of its own, in the place of the one before. */
  line(name: string, points: readonly (readonly [number, number])[]): void {
    this.layer(name).replaceChildren(svg("path", { d: this.path(points), class: "line" }));
  }

  dots(name: string, points: readonly (readonly [number, number])[], radius = 3): void {
    const fit = points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
    this.layer(name).replaceChildren(...fit.map(([x, y]) => svg("circle", { cx: this.x(x), cy: this.y(y), r: radius })));
  }
}

/** The least and largest of some numbers with some air around. */
export function around(values: readonly number[], air = 0.06): [number, number] {
  const finite = values.filter(Number.isFinite);
  if (finite.length === 0) return [0, 1];
  const low = Math.min(...finite);
  const high = Math.max(...finite);
  const span = high - low || Math.abs(high) || 1;
  return [low - air * span, high + air * span];
}
