/** One batch, all the way: a text, its tokens, the field over depth and width, attention, logits; and the grids. */

import { trimmed } from "../chart";
import { choice, h, panel, settled, slider, svg, unique, type Slider } from "../dom";
import { Heat } from "../heat";
import { rows as rowsOf } from "../model/decoder";
import type { Tensor } from "../model/runtime";
import { least, sizeOf, type Wish } from "../model/size";
import { shares } from "../model/writing";
import type { Scene, Studio } from "../studio";

const SHOWN = 8; // likeliest tokens
const MOST = 64; // characters of the text

export const batch: Scene = {
  name: "batch",
  title: "One batch",
  words: "A text becomes tokens, tokens a field over depth and width, and the field the next token. Refine any axis and see its grid.",
  open: (root, studio) => new BatchScene(root, studio).open(),
};

interface Seen {
  ids: number[];
  attention: Float32Array; // [steps, h, t, t]
  states: Float32Array; // [steps + 1, t, d]
  logits: Float32Array[];
  wish: Wish;
}

class BatchScene {
  private seen: Seen | undefined;
  private turn = 0;
  private over = false;
  private readonly field = new Heat((row, column) => this.pointField(row, column));
  private readonly look = new Heat((row, column) => this.pointLook(row, column));
  private readonly tokens = h("div", { class: "tokens", role: "group", "aria-label": "Tokens: choose one" });
  private readonly likely = h("ol", { class: "likely" });
  private readonly fieldNote = h("p", { class: "note" });
  private readonly lookNote = h("p", { class: "note" });
  private readonly grids = h("div", { class: "grids" });
  private readonly depth: Slider;
  private readonly head: { row: HTMLElement; select: HTMLSelectElement };
  private readonly text = h("input", { type: "text", maxlength: MOST, spellcheck: "false" });

  constructor(
    private readonly root: HTMLElement,
    private readonly studio: Studio,
  ) {
    const { address } = studio;
    this.depth = slider({
      label: "Depth",
      min: 0,
      max: studio.bundle.about.native.z,
      step: 0.02,
      value: this.at,
      shown: (value) => `${value.toFixed(2)} of ${studio.bundle.about.native.z} native steps`,
      moves: (depth) => {
        address.set({ depth }, false);
        this.draw();
      },
      rests: (depth) => address.set({ depth }),
    });
    this.head = choice("Head", [["0", "1"]], "0", (head) => {
      address.set({ head });
      this.draw();
    });
  }

  private get at(): number {
    const { z } = this.studio.bundle.about.native;
    return this.studio.address.number("depth", z, 0, z);
  }

  private get wish(): Wish {
    const { about } = this.studio.bundle;
    const low = least(about);
    const { address } = this.studio;
    const at = (letter: "d" | "h" | "z"): number => address.whole(letter, about.native[letter], low[letter], about.native[letter]);
    return { d: at("d"), h: at("h"), z: at("z") };
  }

  open(): () => void {
    const { address, bundle } = this.studio;
    const again = settled(120, () => this.again());
    const low = least(bundle.about);
    const names = { d: "Width d", h: "Heads h", z: "Steps z" };
    const axes = (["d", "h", "z"] as const).map(
      (letter) =>
        slider({
          label: names[letter],
          min: low[letter],
          max: bundle.about.native[letter],
          value: this.wish[letter],
          shown: (value) => `${value} of ${bundle.about.native[letter]}`,
          moves: (value) => {
            address.set({ [letter]: value }, false);
            this.drawGrids();
            again();
          },
          rests: (value) => address.set({ [letter]: value }),
        }).row,
    );
    const id = unique("text");
    this.text.id = id;
    this.text.value = address.text("text", `${bundle.prompt}add(one, two):`.slice(0, MOST));
    this.text.addEventListener("input", () => {
      address.set({ text: this.text.value }, false);
      again();
    });
    this.root.append(
      h(
        "div",
        { class: "column" },
        panel("Text", h("label", { for: id }, "Your text"), this.text, this.tokens),
        panel("Refine an axis", ...axes, this.grids),
        panel("What comes next", this.likely),
      ),
      h(
        "div",
        { class: "column wide" },
        panel("Where in depth", this.depth.row, this.head.row),
        h(
          "div",
          { class: "pair" },
          panel("The field: width (down) of every token (across)", this.field.root, this.fieldNote),
          panel("Attention: a token (down) looks at earlier ones (across)", this.look.root, this.lookNote),
        ),
      ),
    );
    const painted = (): void => this.draw();
    addEventListener("continua-theme", painted);
    this.drawGrids();
    this.again();
    return () => {
      this.over = true;
      this.turn += 1;
      removeEventListener("continua-theme", painted);
    };
  }

  private again(): void {
    this.turn += 1;
    const turn = this.turn;
    this.read(() => this.over || turn !== this.turn).catch((problem: unknown) => {
      if (!this.over) this.studio.tell(problem);
    });
  }

  private async read(stopped: () => boolean): Promise<void> {
    const model = await this.studio.model();
    if (stopped()) return;
    const room = Math.min(MOST, this.studio.bundle.about.context ?? MOST);
    const ids = model.tokens.encode(this.text.value || "\n").slice(0, room);
    this.studio.clearProblems();
    const { wish } = this;
    const found = await model.decoder(wish).probe(ids);
    if (stopped()) return;
    this.seen = {
      ids,
      wish,
      attention: (found["attention"] as Tensor).data as Float32Array,
      states: (found["states"] as Tensor).data as Float32Array,
      logits: rowsOf(found["logits"] as Tensor),
    };
    const heads = Array.from({ length: wish.h }, (_, i) => h("option", { value: i }, `${i + 1} of ${wish.h}`));
    this.head.select.replaceChildren(...heads);
    this.head.select.value = String(this.headNumber);
    this.drawTokens(model.tokens.decode.bind(model.tokens));
    this.draw();
  }

  private get headNumber(): number {
    return Math.min((this.seen?.wish.h ?? 1) - 1, this.studio.address.whole("head", 0, 0, 1000));
  }

  private get token(): number {
    const last = (this.seen?.ids.length ?? 1) - 1;
    return Math.min(last, this.studio.address.whole("token", last, 0, MOST));
  }

  private drawTokens(decode: (ids: number[]) => string): void {
    const { seen } = this;
    if (seen === undefined) return;
    this.tokens.replaceChildren(
      ...seen.ids.map((id, i) => {
        const made = h("button", { type: "button", class: "token", "aria-pressed": i === this.token ? "true" : "false" }, visible(decode([id])));
        made.addEventListener("click", () => {
          this.studio.address.set({ token: i });
          this.drawTokens(decode);
          this.draw();
        });
        return made;
      }),
    );
    const probabilities = shares(seen.logits[this.token] as Float32Array, 1);
    const best = [...probabilities.keys()].sort((a, b) => (probabilities[b] as number) - (probabilities[a] as number)).slice(0, SHOWN);
    this.likely.replaceChildren(
      ...best.map((id) => {
        const share = probabilities[id] as number;
        return h("li", {}, h("code", {}, visible(decode([id]))), h("meter", { min: 0, max: 1, value: share, "aria-label": `probability of ${decode([id])}` }), h("span", {}, `${(100 * share).toFixed(1)} %`));
      }),
    );
  }

  /** Which step the depth is in, and how far. */
  private place(): { step: number; rest: number } {
    const steps = sizeOf(this.studio.bundle.about, this.seen?.wish ?? this.wish).steps;
    for (let i = 0; i < steps.length; i += 1) {
      const [start, length] = steps[i] as [number, number];
      if (this.at <= start + length + 1e-9) return { step: i, rest: Math.max(0, (this.at - start) / length) };
    }
    return { step: steps.length - 1, rest: 1 };
  }

  /** The state at a depth: between two ends of a step it is a straight line, as the step itself is. */
  private state(token: number, node: number): number {
    const { seen } = this;
    if (seen === undefined) return 0;
    const { step, rest } = this.place();
    const t = seen.ids.length;
    const { d } = seen.wish;
    const at = (layer: number): number => seen.states[(layer * t + token) * d + node] as number;
    return (1 - rest) * at(step) + rest * at(step + 1);
  }

  private weight(query: number, key: number): number {
    const { seen } = this;
    if (seen === undefined) return 0;
    const { step } = this.place();
    const t = seen.ids.length;
    return seen.attention[((step * seen.wish.h + this.headNumber) * t + query) * t + key] as number;
  }

  /** Nodes of the width in the order of their places on the axis. */
  private order(): number[] {
    const places = this.studio.bundle.nodes.d.slice(0, this.seen?.wish.d ?? 0);
    return places.map((_, i) => i).sort((a, b) => (places[a] as number) - (places[b] as number));
  }

  private draw(): void {
    const { seen } = this;
    if (seen === undefined) return;
    const t = seen.ids.length;
    const order = this.order();
    const { step, rest } = this.place();
    this.field.draw(order.length, t, (row, column) => this.state(column, order[row] as number), true, `The field at depth ${this.at.toFixed(2)}: ${order.length} nodes of ${t} tokens`);
    this.look.draw(t, t, (row, column) => this.weight(row, column), false, `Attention of head ${this.headNumber + 1} in step ${step + 1}`);
    this.fieldNote.textContent = `Depth ${this.at.toFixed(2)}: ${Math.round(100 * rest)} % through step ${step + 1}. Point at a cell for its number.`;
    this.pointLook(this.token, -1);
  }

  private name(token: number): string {
    return `${token + 1} ${this.tokens.children[token]?.textContent ?? ""}`;
  }

  private pointField(row: number, column: number): void {
    const node = this.order()[row];
    if (node === undefined) return;
    const place = this.studio.bundle.nodes.d[node] as number;
    this.fieldNote.textContent = `Token ${this.name(column)}, coordinate ${place.toFixed(3)}: ${trimmed(this.state(column, node), 3)}`;
  }

  private pointLook(row: number, column: number): void {
    if (column >= 0 && column <= row) {
      this.lookNote.textContent = `Token ${this.name(row)} looks at ${this.name(column)}: ${(100 * this.weight(row, column)).toFixed(1)} %`;
      return;
    }
    const most = Array.from({ length: row + 1 }, (_, key) => key).sort((a, b) => this.weight(row, b) - this.weight(row, a));
    const words = most.slice(0, 3).map((key) => `${this.name(key)} ${(100 * this.weight(row, key)).toFixed(0)} %`);
    this.lookNote.textContent = `Token ${this.name(row)} looks most at: ${words.join(", ")}`;
  }

  /** Nodes and weights of each axis. */
  private drawGrids(): void {
    const { bundle } = this.studio;
    const { wish } = this;
    const { native } = bundle.about;
    const width = (letter: "d" | "h"): [number, number][] =>
      bundle.nodes[letter].slice(0, wish[letter]).map((place) => [place, native[letter] / wish[letter]]);
    const steps = sizeOf(bundle.about, wish).steps.map(([start, length]): [number, number] => [start / native.z, length]);
    this.grids.replaceChildren(
      stems("d", width("d"), `each of weight ${trimmed(native.d / wish.d, 3)}`),
      stems("h", width("h"), `each of weight ${trimmed(native.h / wish.h, 3)}`),
      stems("z", steps, `steps of ${[...new Set(steps.map(([, length]) => trimmed(length, 2)))].join(" and ")}`),
    );
  }
}

/** A grid: a stem at each node, as high as its weight. */
function stems(letter: string, nodes: [number, number][], words: string): HTMLElement {
  const most = Math.max(4, ...nodes.map(([, weight]) => weight));
  const picture = svg("svg", { viewBox: "0 0 300 34", class: "stems", role: "img", "aria-label": `${nodes.length} nodes of ${letter}, ${words}` });
  picture.append(svg("line", { x1: 0, x2: 300, y1: 32, y2: 32, class: "base" }));
  for (const [place, weight] of nodes) {
    const x = 2 + 296 * place;
    picture.append(svg("line", { x1: x, x2: x, y1: 32, y2: 32 - 26 * Math.sqrt(weight / most), class: "stem" }));
  }
  return h("figure", {}, picture, h("figcaption", {}, `${letter}: ${nodes.length} nodes, ${words}`));
}

function visible(text: string): string {
  return text.replaceAll("\n", "↵").replaceAll(" ", "␣").replaceAll("\t", "⇥");
}
