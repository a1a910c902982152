/** Functions: draw the start of a flow, choose where it is measured, see the operator's answer beside the solver's. */

import { Chart, around, readable } from "../chart";
import { button, choice, h, panel, settled, slider, svg } from "../dom";
import { burgers } from "../functions/burgers";
import { laid, type Prior } from "../functions/wiener";
import { floats } from "../model/runtime";
import { randomness } from "../model/writing";
import type { Scene, Studio } from "../studio";

interface About extends Prior {
  nodes: number;
  viscosity: number;
  until: number;
  error: number;
  example: number[];
}

const FINE = 512; // nodes that a drawing has, and the solver
const MOST = 1.6; // of what can be drawn: beyond it training never was

export const functions: Scene = {
  name: "functions",
  title: "Functions",
  words:
    "Here a token is a point of space. Draw a wave with the pointer, choose the points where it is measured, and see where Burgers' equation takes it.",
  open: async (root, studio) => new FunctionsScene(root, studio, await studio.json<About>("burgers.json")).open(),
};

type Spread = "uniform" | "random" | "crowded";

class FunctionsScene {
  private readonly wave: Float64Array;
  private points: number[] = [];
  private readonly before: Chart;
  private readonly after = h("div", { class: "picture" });
  private readonly numbers = h("dl", { class: "numbers" });
  private readonly note = h("p", { class: "note", role: "status" });
  private turn = 0;
  private over = false;
  private pen: { t: number; u: number } | null = null;
  private held: number | null = null;

  constructor(
    private readonly root: HTMLElement,
    private readonly studio: Studio,
    private readonly about: About,
  ) {
    this.wave = this.begun();
    const title = "The start, which you draw, and the points where it is measured";
    this.before = chart(title, "u at time 0", [-MOST * 1.05, MOST * 1.05]);
  }

  /** The drawing of the address, a shape by name, or the example. */
  private begun(): Float64Array {
    const text = this.studio.address.text("wave", "");
    const numbers = text.split(".").map((part) => Number(part) / 100);
    const given = numbers.length >= 8 && numbers.every(Number.isFinite) ? numbers : this.about.example;
    const bounded = given.slice(0, 64).map((value) => Math.max(-MOST, Math.min(MOST, value)));
    return centred(resampled(bounded, FINE));
  }

  open(): () => void {
    const { address } = this.studio;
    const redo = settled(60, () => this.answer());
    const spread = choice(
      "Points",
      [["uniform", "Evenly spaced"], ["random", "At random"], ["crowded", "Crowded on one side"]],
      address.text("points", "uniform"),
      (points) => {
        address.set({ points, moved: null });
        this.place();
        this.answer();
      },
    );
    const many = slider({
      label: "How many points",
      min: 6,
      max: 256,
      value: this.count,
      moves: (count) => {
        address.set({ count, moved: null }, false);
        this.place();
        redo();
      },
      rests: (count) => address.set({ count }),
    });
    const grid = slider({
      label: "Points that are asked for",
      min: 8,
      max: FINE,
      step: 8,
      value: this.asked,
      moves: (asked) => {
        address.set({ asked }, false);
        redo();
      },
      rests: (asked) => address.set({ asked }),
    });
    const shapes = h("div", { class: "buttons" });
    for (const [name, shape] of Object.entries(SHAPES)) {
      shapes.append(
        button(
          name,
          () => {
            this.wave.set(centred(Float64Array.from(this.wave, (_, i) => shape(i / FINE))));
            this.keep();
            this.answer();
          },
          "quiet",
        ),
      );
    }
    shapes.append(
      button("Example", () => {
        this.wave.set(centred(resampled(this.about.example, FINE)));
        this.keep();
        this.answer();
      }, "quiet"),
    );
    const words = `Trained on ${this.about.nodes} even nodes, viscosity ${this.about.viscosity}. On functions it never saw its relative error is ${(100 * this.about.error).toFixed(2)} %.`;
    this.root.append(
      h(
        "div",
        { class: "column" },
        panel("Start", shapes, spread.row, many.row, grid.row, this.numbers, h("p", { class: "note" }, words)),
      ),
      h(
        "div",
        { class: "column wide" },
        panel("Draw with the pointer; drag a dot to measure elsewhere", h("div", { class: "picture drawable" }, this.before.root), this.note),
        panel(
          "Where it goes",
          this.after,
          h("p", { class: "legend" }, h("span", { class: "key trained" }, "operator, from the points alone"), h("span", { class: "key now" }, "solver, from the whole drawing")),
        ),
      ),
    );
    this.place();
    this.listen();
    this.answer();
    return () => {
      this.over = true;
      this.turn += 1;
    };
  }

  private get count(): number {
    return this.studio.address.whole("count", 48, 6, 256);
  }

  private get asked(): number {
    return this.studio.address.whole("asked", 256, 8, FINE);
  }

  /** The points, as the address says. */
  private place(): void {
    const kind = this.studio.address.text("points", "uniform") as Spread;
    const draw = randomness(5);
    const n = this.count;
    this.points = Array.from({ length: n }, (_, i) => {
      if (kind === "random") return draw();
      if (kind === "crowded") return (0.5 + Math.sign(draw() - 0.5) * 0.5 * draw() ** 2.2 + 1) % 1;
      return i / n;
    });
    for (const part of this.studio.address.text("moved", "").split("_")) {
      const [place, value] = part.split("-").map(Number);
      if (place !== undefined && value !== undefined && place in this.points && value >= 0 && value < 1000) {
        this.points[place] = value / 1000;
      }
    }
  }

  /** The drawing into the address: 64 numbers with two digits. */
  private keep(): void {
    const few = Array.from({ length: 64 }, (_, i) => Math.round(100 * (this.wave[(i * FINE) / 64] as number)));
    this.studio.address.set({ wave: few.join(".") });
  }

  private listen(): void {
    const { root } = this.before;
    const at = (event: PointerEvent): { t: number; u: number } => {
      const box = root.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * this.before.width;
      const y = ((event.clientY - box.top) / box.height) * this.before.height;
      return { t: this.before.x.inverse(x), u: Math.max(-MOST, Math.min(MOST, this.before.y.inverse(y))) };
    };
    const near = (t: number, u: number): number | null => {
      let best: number | null = null;
      let least = 0.012;
      this.points.forEach((point, i) => {
        const away = Math.hypot(point - t, (value(this.wave, point) - u) / 8);
        if (away < least) [least, best] = [away, i];
      });
      return best;
    };
    root.addEventListener("pointerdown", (event) => {
      const { t, u } = at(event);
      if (t < 0 || t > 1) return;
      root.setPointerCapture(event.pointerId);
      this.held = near(t, u);
      if (this.held === null) this.pen = { t, u };
    });
    root.addEventListener("pointermove", (event) => {
      const here = at(event);
      if (this.held !== null) {
        this.points[this.held] = Math.max(0, Math.min(0.999, here.t));
        this.answer();
      } else if (this.pen !== null) {
        const [from, to] = this.pen.t < here.t ? [this.pen, here] : [here, this.pen];
        for (let i = Math.max(0, Math.floor(from.t * FINE)); i <= Math.min(FINE - 1, to.t * FINE); i += 1) {
          const share = to.t === from.t ? 0 : (i / FINE - from.t) / (to.t - from.t);
          this.wave[i] = from.u + Math.min(1, Math.max(0, share)) * (to.u - from.u);
        }
        this.pen = here;
        this.draw();
      }
    });
    const end = (): void => {
      if (this.pen !== null) {
        this.wave.set(centred(smooth(this.wave, 6)));
        this.keep();
        this.answer();
      }
      if (this.held !== null) {
        const words = `${this.held}-${Math.round(1000 * (this.points[this.held] as number))}`;
        const old = this.studio.address.text("moved", "");
        this.studio.address.set({ moved: old ? `${old}_${words}` : words });
      }
      this.pen = null;
      this.held = null;
    };
    root.addEventListener("pointerup", end);
    root.addEventListener("pointercancel", end);
  }

  private draw(): void {
    this.before.line("start", Array.from(this.wave, (u, i) => [i / FINE, u]));
    const layer = this.before.layer("points");
    layer.replaceChildren(
      ...this.points.map((t) => svg("circle", { cx: this.before.x(t), cy: this.before.y(value(this.wave, t)), r: 4.5 })),
    );
  }

  private answer(): void {
    this.draw();
    this.turn += 1;
    const turn = this.turn;
    this.solve(() => this.over || turn !== this.turn).catch((problem: unknown) => {
      if (!this.over) this.studio.tell(problem);
    });
  }

  private async solve(stopped: () => boolean): Promise<void> {
    const { about, asked } = this;
    const runtime = await this.studio.operator("burgers.onnx");
    if (stopped()) return;
    const seen = this.points.map((t) => value(this.wave, t));
    const began = performance.now();
    const values = laid(this.points, seen, about.nodes, about);
    const places = Array.from({ length: asked }, (_, i) => i / asked);
    const feeds = {
      values: floats(Float32Array.from(values), [1, about.nodes, 1]),
      asked: floats(Float32Array.from(places), [asked, 1]),
    };
    const found = (await runtime.run(feeds, ["answer"]))["answer"];
    const operator = performance.now() - began;
    if (stopped() || found === undefined) return;
    const answer = found.data as Float32Array;
    const start = performance.now();
    const { u, steps } = burgers(this.wave, about.viscosity, about.until);
    const solver = performance.now() - start;
    const title = "The end: the answer of the operator and that of the solver";
    const picture = chart(title, `u at time ${about.until}`, around([...u, ...answer, -0.1, 0.1]));
    picture.line("truth", Array.from(u, (end, i) => [i / FINE, end]));
    picture.line("answer", places.map((t, i) => [t, answer[i] as number]));
    this.after.replaceChildren(picture.root);
    let error = 0;
    let size = 0;
    places.forEach((t, i) => {
      const wanted = value(u, t);
      error += ((answer[i] as number) - wanted) ** 2;
      size += wanted ** 2;
    });
    const share = 100 * Math.sqrt(error / (size || 1));
    const rows: [string, string][] = [
      ["Relative error", `${share.toFixed(2)} %`],
      ["Operator, ms", operator.toFixed(0)],
      [`Solver, ms (${readable(steps)} steps)`, solver.toFixed(0)],
    ];
    this.numbers.replaceChildren(...rows.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
    this.note.textContent = `Measured at ${this.points.length} points, answered at ${asked}.`;
  }
}

function chart(title: string, label: string, range: [number, number]): Chart {
  return new Chart({
    width: 760,
    height: 260,
    title,
    x: { label: "x, around the circle", range: [0, 1] },
    y: { label, range },
  });
}

const SHAPES: Record<string, (t: number) => number> = {
  Sine: (t) => Math.sin(2 * Math.PI * t),
  "Two waves": (t) => 0.7 * Math.sin(2 * Math.PI * t) + 0.5 * Math.cos(6 * Math.PI * t),
  Bump: (t) => 1.2 * Math.exp(-60 * (t - 0.4) ** 2) - 0.3,
};

/** A function on even nodes of the circle, linear in between. */
export function value(wave: ArrayLike<number>, t: number): number {
  const n = wave.length;
  const place = (((t % 1) + 1) % 1) * n;
  const low = Math.floor(place) % n;
  const rest = place - Math.floor(place);
  return (1 - rest) * (wave[low] as number) + rest * (wave[(low + 1) % n] as number);
}

/** The same function on more nodes, by its waves. */
export function resampled(few: readonly number[], n: number): Float64Array {
  const m = few.length;
  const found = new Float64Array(n);
  for (let k = 0; k <= m / 2; k += 1) {
    let a = 0;
    let b = 0;
    few.forEach((u, j) => {
      a += u * Math.cos((2 * Math.PI * k * j) / m);
      b += u * Math.sin((2 * Math.PI * k * j) / m);
    });
    const weight = (k === 0 || 2 * k === m ? 1 : 2) / m;
    for (let i = 0; i < n; i += 1) {
      const angle = (2 * Math.PI * k * i) / n;
      found[i] = (found[i] as number) + weight * (a * Math.cos(angle) + b * Math.sin(angle));
    }
  }
  return found;
}

/** Without its mean, which would only carry the whole wave along; the operator was trained without. */
export function centred(wave: Float64Array): Float64Array {
  const mean = wave.reduce((a, b) => a + b, 0) / wave.length;
  return wave.map((u) => Math.max(-MOST, Math.min(MOST, u - mean)));
}

/** A drawing by hand has corners that nothing physical has: a few passes of a mean over neighbours. */
function smooth(wave: Float64Array, passes: number): Float64Array {
  let now = wave.slice();
  for (let pass = 0; pass < passes; pass += 1) {
    const n = now.length;
    now = now.map((_, i) => ((now[(i + n - 2) % n] as number) + (now[(i + n - 1) % n] as number) + (now[i] as number) + (now[(i + 1) % n] as number) + (now[(i + 2) % n] as number)) / 5);
  }
  return now;
}
