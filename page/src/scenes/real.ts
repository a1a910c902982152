/** Real models: tokens of a trained encoder through depth, beside particles that begin at the same directions. */

import { Chart } from "../chart";
import { choice, h, panel, slider, svg, unique } from "../dom";
import { Flow, meanCosine } from "../lab/particles";
import { Stage } from "../lab/stage";
import type { Scene, Studio } from "../studio";
import { Color } from "three";

interface Told {
  tokens: string[];
  places: number[][][];
  start: number[][];
  axes: number[][];
  cosines: number[];
}

interface RealModel {
  name: string;
  texts: Told[];
  betas: number[];
  fits: number[];
  jumps: number[];
}

const FINE = 8; // states of the particles kept for each layer

export const real: Scene = {
  name: "real",
  title: "Real models",
  words: "Left, the tokens of a trained model from layer to layer. Right, particles that begin at the same directions and only attract one another.",
  open: async (root, studio) => new RealScene(root, studio, await studio.json<RealModel>("minilm.json")).open(),
};

class RealScene {
  private left: Stage | undefined;
  private right: Stage | undefined;
  private path: Float64Array[] = [];
  private cosines: number[] = [];
  private readonly list = h("ol", { class: "chips" });
  private readonly picture = h("div", { class: "picture" });
  private readonly numbers = h("dl", { class: "numbers" });

  constructor(
    private readonly root: HTMLElement,
    private readonly studio: Studio,
    private readonly model: RealModel,
  ) {}

  private get text(): Told {
    return this.model.texts[this.studio.address.whole("text", 0, 0, this.model.texts.length - 1)] as Told;
  }

  private get layers(): number {
    return this.model.betas.length;
  }

  private get depth(): number {
    return this.studio.address.number("depth", this.layers, 0, this.layers);
  }

  private get beta(): number {
    return this.studio.address.number("beta", this.usual, -20, 40);
  }

  private get pace(): number {
    return this.studio.address.number("pace", 0.3, 0.02, 2);
  }

  /** The median β of the layers. */
  private get usual(): number {
    const sorted = [...this.model.betas].sort((a, b) => a - b);
    return Math.round(10 * (sorted[Math.floor(sorted.length / 2)] as number)) / 10;
  }

  open(): () => void {
    const { address } = this.studio;
    const texts = this.model.texts.map((text, i): [string, string] => [String(i), `${text.tokens.slice(0, 6).join(" ").replaceAll(" ##", "")} …`]);
    const controls = panel(
      "Look",
      choice("Text", texts, address.text("text", "0"), (text) => {
        address.set({ text });
        this.begin();
      }).row,
      slider({
        label: "Depth, in layers",
        min: 0,
        max: this.layers,
        step: 0.05,
        value: this.depth,
        shown: (value) => `${value.toFixed(2)} of ${this.layers}`,
        moves: (depth) => {
          address.set({ depth }, false);
          this.draw();
        },
        rests: (depth) => address.set({ depth }),
      }).row,
      slider({
        label: "β of the particles",
        min: 0,
        max: 20,
        step: 0.1,
        value: this.beta,
        moves: (beta) => {
          address.set({ beta }, false);
          this.simulate();
          this.draw();
        },
        rests: (beta) => address.set({ beta }),
      }).row,
      slider({
        label: "Time that one layer takes",
        min: 0.05,
        max: 2,
        step: 0.05,
        value: this.pace,
        shown: (value) => value.toFixed(2),
        moves: (pace) => {
          address.set({ pace }, false);
          this.simulate();
          this.draw();
        },
        rests: (pace) => address.set({ pace }),
      }).row,
      this.numbers,
    );
    const first = h("div", { class: "stage-holder" });
    const second = h("div", { class: "stage-holder" });
    const wordsFor = `Directions of tokens in ${this.model.name}, along the three axes that show most of them`;
    this.left = new Stage(3, wordsFor, null, "axes");
    this.right = new Stage(3, "Particles along the same axes", null, "axes");
    first.append(this.left.canvas);
    second.append(this.right.canvas);
    const id = unique("tokens");
    const said = `${this.model.name}: β and R² of each layer are the slope and the fit of log-attention over cosines. A fit of a few per cent says that similarity alone explains little of what its heads look at.`;
    this.root.append(
      h("div", { class: "column" }, controls, panel("Layers", this.table(), h("p", { class: "note" }, said))),
      h(
        "div",
        { class: "column wide" },
        h("div", { class: "pair" }, panel(this.model.name, first), panel("Particles of the same β", second)),
        panel("Mean cosine between tokens", this.picture, h("p", { class: "legend" }, h("span", { class: "key trained" }, "model"), h("span", { class: "key now" }, "particles"))),
        h("section", { class: "panel", "aria-labelledby": id }, h("h3", { id }, "Tokens"), this.list),
      ),
    );
    const painted = (): void => {
      this.left?.paint();
      this.right?.paint();
      this.draw();
    };
    addEventListener("continua-theme", painted);
    this.begin();
    return () => {
      removeEventListener("continua-theme", painted);
      this.left?.close();
      this.right?.close();
    };
  }

  private table(): HTMLElement {
    const rows = this.model.betas.map((beta, i) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, i + 1),
        h("td", {}, beta.toFixed(2)),
        h("td", {}, (this.model.fits[i] as number).toFixed(3)),
        h("td", {}, (this.model.jumps[i] as number).toFixed(2)),
      ),
    );
    const names = ["layer", "β", "R²", "jump, rad"].map((name) => h("th", { scope: "col" }, name));
    return h("table", {}, h("thead", {}, h("tr", {}, ...names)), h("tbody", {}, ...rows));
  }

  private begin(): void {
    const { text } = this;
    const shades = new Float32Array(3 * text.tokens.length);
    const made = new Color();
    this.list.replaceChildren();
    text.tokens.forEach((token, i) => {
      made.setHSL(i / text.tokens.length, 0.62, 0.45);
      shades.set([made.r, made.g, made.b], 3 * i);
      const swatch = svg("svg", { viewBox: "0 0 10 10", width: 10, height: 10, "aria-hidden": "true" });
      swatch.append(svg("circle", { cx: 5, cy: 5, r: 5, fill: `#${made.getHexString()}` }));
      this.list.append(h("li", {}, swatch, token));
    });
    this.left?.begin(text.tokens.length, shades, 16);
    this.right?.begin(text.tokens.length, shades.slice(), 16);
    this.simulate();
    this.draw();
  }

  /** The flow of softmax attention from the same directions, in the whole space that they span. */
  private simulate(): void {
    const { text } = this;
    const d = text.axes.length;
    const flow = new Flow(Float64Array.from(text.start.flat()), d, { kind: "SA", beta: this.beta, causal: false, sign: 1, kappa: Infinity });
    this.path = [];
    this.cosines = [];
    for (let i = 0; i <= this.layers * FINE; i += 1) {
      flow.advance((i / FINE) * this.pace, 0.1);
      this.path.push(projected(flow.x, text.axes));
      this.cosines.push(meanCosine(flow.x, d));
    }
  }

  /** What makes the farthest token of the model fill the picture. */
  private scale(): number {
    const most = Math.max(...this.text.places.flat().map((row) => Math.hypot(...row)));
    return 0.98 / (most || 1);
  }

  private draw(): void {
    const { depth, text } = this;
    const low = Math.min(this.layers - 1, Math.floor(depth));
    const rest = depth - low;
    const a = text.places[low] as number[][];
    const b = text.places[low + 1] as number[][];
    const now = Float64Array.from(a.flatMap((row, i) => row.map((value, k) => (1 - rest) * value + rest * ((b[i] as number[])[k] as number))));
    const scale = this.scale();
    this.left?.draw(now.map((value) => value * scale), 3);
    this.right?.draw((this.path[Math.round(depth * FINE)] as Float64Array).map((value) => value * scale), 3);
    const model = text.cosines.map((value, i): [number, number] => [i, value]);
    const own = this.cosines.map((value, i): [number, number] => [i / FINE, value]);
    const chart = new Chart({
      width: 620,
      height: 210,
      title: "Mean cosine between tokens over depth, of the model and of particles",
      x: { label: "layers", range: [0, this.layers], shown: String },
      y: { label: "mean cosine", range: [Math.min(0, ...text.cosines, ...this.cosines), 1.02] },
    });
    chart.line("model", model);
    chart.line("own", own);
    const at = chart.x(depth);
    chart.layer("here").append(svg("line", { x1: at, x2: at, y1: 10, y2: chart.floor, class: "cursor" }));
    this.picture.replaceChildren(chart.root);
    const particles = this.cosines[Math.round(depth * FINE)] as number;
    const between = (1 - rest) * (text.cosines[low] as number) + rest * (text.cosines[low + 1] as number);
    const rows: [string, string][] = [
      ["Mean cosine, model", between.toFixed(3)],
      ["Mean cosine, particles", particles.toFixed(3)],
      ["Median β of its layers", this.usual.toFixed(1)],
    ];
    this.numbers.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  }
}

function projected(x: Float64Array, axes: number[][]): Float64Array {
  const d = axes.length;
  const n = x.length / d;
  const found = new Float64Array(3 * n);
  for (let i = 0; i < n; i += 1) {
    for (let k = 0; k < d; k += 1) {
      const row = axes[k] as number[];
      for (let c = 0; c < 3; c += 1) {
        found[3 * i + c] = (found[3 * i + c] as number) + (x[i * d + k] as number) * (row[c] as number);
      }
    }
  }
  return found;
}
