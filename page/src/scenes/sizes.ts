/** Sizes: width, heads and depth as sliders, text beside the native one's, the dot on the picture of cost and loss. */

import { Problem, type Bundle } from "../bundle";
import { Chart, around, readable, trimmed } from "../chart";
import { breathe, button, h, panel, settled, slider, svg, tick, unique, type Slider } from "../dom";
import { lossOf } from "../model/decoder";
import { flops, front, least, measuredAt, sizeOf, wasTrained, weightBytes, type Wish } from "../model/size";
import { streamed } from "../model/tokens";
import { speculates, writes } from "../model/writing";
import type { Model, Scene, Studio } from "../studio";

const AHEAD = 4;
const MOST = 160; // tokens that are written
const HEAT = 0.7;

export const sizes: Scene = {
  name: "sizes",
  title: "Sizes",
  words: "One set of weights, running in this page. Move its width, heads and depth while it writes.",
  open: (root, studio) => new SizesScene(root, studio).open(),
};

/** The text of one size as it is written, with what it takes. */
class Page {
  readonly text = h("pre", { class: "written", tabindex: 0, "aria-label": "Written text" });
  readonly note = h("p", { class: "note" });
  readonly root: HTMLElement;

  constructor(title: HTMLElement) {
    this.root = h("section", { class: "panel paper" }, title, this.text, this.note);
  }

  begin(prompt: string): void {
    this.text.replaceChildren(h("span", { class: "prompt" }, prompt));
    this.note.textContent = "";
  }

  add(text: string, kind = ""): void {
    const last = this.text.lastElementChild;
    if (last instanceof HTMLElement && last.className === kind && kind === "") last.append(text);
    else this.text.append(h("span", { class: kind }, text));
    this.text.scrollTop = this.text.scrollHeight;
  }
}

class SizesScene {
  private readonly native: Wish;
  private wish: Wish;
  private turn = 0;
  private over = false;
  private readonly sliders: Record<"d" | "h" | "z", Slider>;
  private readonly prompt: HTMLTextAreaElement;
  private readonly small = new Page(h("h3", { class: "chosen-title" }));
  private readonly large = new Page(h("h3", {}));
  private readonly numbers = h("dl", { class: "numbers" });
  private readonly mark = h("p", { class: "mark", role: "status" });
  private readonly picture: Picture;
  private readonly losses = new Map<string, number>();
  private readonly milliseconds = new Map<string, number>();

  constructor(
    private readonly root: HTMLElement,
    private readonly studio: Studio,
  ) {
    const { about } = studio.bundle;
    const low = least(about);
    this.native = { d: about.native.d, h: about.native.h, z: about.native.z };
    const { address } = studio;
    const at = (letter: "d" | "h" | "z", usual: number): number =>
      address.whole(letter, usual, low[letter], this.native[letter]);
    const half = (n: number, letter: "d" | "h" | "z"): number => Math.max(low[letter], Math.floor(n / 2));
    this.wish = {
      d: at("d", half(this.native.d, "d")),
      h: at("h", half(this.native.h, "h")),
      z: at("z", half(this.native.z, "z")),
    };
    const again = settled(160, () => this.again());
    const make = (letter: "d" | "h" | "z", label: string): Slider =>
      slider({
        label,
        min: low[letter],
        max: this.native[letter],
        value: this.wish[letter],
        shown: (value) => `${value} of ${this.native[letter]}`,
        moves: (value) => {
          this.wish = { ...this.wish, [letter]: value };
          this.show();
          address.set({ [letter]: value }, false);
          again();
        },
        rests: (value) => address.set({ [letter]: value }),
      });
    this.sliders = { d: make("d", "Width d"), h: make("h", "Heads h"), z: make("z", "Depth z") };
    this.prompt = h("textarea", { rows: 2, maxlength: 400, spellcheck: "false" });
    this.prompt.value = address.text("prompt", studio.bundle.prompt);
    this.prompt.addEventListener("input", () => {
      address.set({ prompt: this.prompt.value }, false);
      again();
    });
    this.picture = new Picture(studio.bundle, (wish) => this.choose(wish));
  }

  open(): () => void {
    const { address } = this.studio;
    const id = unique("prompt");
    this.prompt.id = id;
    const heat = slider({
      label: "Temperature",
      min: 0,
      max: 1.5,
      step: 0.1,
      value: address.number("heat", HEAT, 0, 1.5),
      shown: (value) => (value === 0 ? "0, the likeliest" : value.toFixed(1)),
      moves: (value) => {
        address.set({ heat: value }, false);
        this.again();
      },
    });
    const draft = tick("Let this size write ahead of the native one", address.flag("draft", false), (value) => {
      address.set({ draft: value });
      this.again();
    });
    const controls = panel(
      "Size",
      this.sliders.d.row,
      this.sliders.h.row,
      this.sliders.z.row,
      h(
        "div",
        { class: "buttons" },
        button("Native", () => this.choose(this.native), "quiet"),
        button("Half of all", () => this.choose(this.half()), "quiet"),
        button("Write again", () => this.again()),
      ),
      this.mark,
      this.numbers,
    );
    const text = panel("Text", h("label", { for: id }, "Prompt"), this.prompt, heat.row, draft);
    const picture = panel("Cost and loss of every measured size", this.picture.root, this.picture.legend);
    this.root.append(
      h("div", { class: "column" }, controls, text),
      h("div", { class: "column wide" }, h("div", { class: "papers" }, this.small.root, this.large.root), picture),
    );
    this.show();
    this.again();
    return () => {
      this.over = true;
      this.turn += 1;
    };
  }

  private half(): Wish {
    const low = least(this.studio.bundle.about);
    const half = (letter: "d" | "h" | "z"): number => Math.max(low[letter], Math.floor(this.native[letter] / 2));
    return { d: half("d"), h: half("h"), z: half("z") };
  }

  private choose(wish: Wish): void {
    this.wish = wish;
    for (const letter of ["d", "h", "z"] as const) this.sliders[letter].set(wish[letter]);
    this.studio.address.set({ d: wish.d, h: wish.h, z: wish.z });
    this.show();
    this.again();
  }

  private get key(): string {
    return `${this.wish.d} ${this.wish.h} ${this.wish.z}`;
  }

  /** All numbers of the size, and its dot. */
  private show(): void {
    const { bundle } = this.studio;
    const { about } = bundle;
    const size = sizeOf(about, this.wish);
    const tokens = bundle.windows[0]?.length ?? about.context ?? 128;
    const work = flops(size, about.vocab, tokens);
    const known = measuredAt(bundle, this.wish);
    const loss = known?.loss ?? this.losses.get(this.key);
    const took = this.milliseconds.get(this.key);
    const base = measuredAt(bundle, this.native)?.loss;
    const more = loss !== undefined && base !== undefined ? ` (${signed(100 * (loss / base - 1))} %)` : "";
    const rows: [string, string][] = [
      ["Loss, nats a token", loss === undefined ? "measuring …" : `${loss.toFixed(3)}${more}`],
      ["Milliseconds a token, here", took === undefined ? "…" : trimmed(took, 2)],
      [`FLOPs of ${tokens} tokens`, readable(work)],
      ["Bytes of its matrices", readable(weightBytes(size, about.vocab))],
    ];
    this.numbers.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    const trained = wasTrained(bundle, this.wish);
    this.mark.className = trained ? "mark trained" : "mark untrained";
    this.mark.textContent = trained ? "Training drew this size." : "Training never drew this size.";
    const words = `d=${this.wish.d}, h=${this.wish.h}, z=${this.wish.z}`;
    (this.small.root.firstElementChild as HTMLElement).textContent = `This size: ${words}`;
    this.picture.move(work, loss, trained);
  }

  /** Write anew; what is under way ends. */
  private again(): void {
    this.turn += 1;
    const turn = this.turn;
    this.write(() => this.over || turn !== this.turn).catch((problem: unknown) => {
      if (!this.over && turn === this.turn) this.studio.tell(problem);
    });
  }

  private async write(stopped: () => boolean): Promise<void> {
    const { address, bundle } = this.studio;
    const drafts = address.flag("draft", false);
    const { d, h: heads, z } = this.native;
    (this.large.root.firstElementChild as HTMLElement).textContent = drafts
      ? `Native size, this one writing ${AHEAD} ahead`
      : `Native size: d=${d}, h=${heads}, z=${z}`;
    const prompt = this.prompt.value || "\n";
    this.small.begin(prompt);
    this.large.begin(prompt);
    this.small.note.textContent = "…";
    const model = await this.studio.model();
    if (stopped()) return;
    const ids = model.tokens.encode(prompt);
    const room = bundle.about.context ?? Infinity;
    const count = Math.min(MOST, room - ids.length - AHEAD);
    if (count < 1) throw new Problem("The prompt is too long for this model.", `Keep it below ${room - AHEAD} tokens.`);
    this.studio.clearProblems();
    const heat = address.number("heat", HEAT, 0, 1.5);
    const left = this.single(model, this.wish, this.small, ids, count, heat, stopped);
    const right = drafts
      ? this.ahead(model, ids, count, heat, stopped)
      : this.single(model, this.native, this.large, ids, count, heat, stopped);
    await Promise.all([left, right]);
    if (!stopped()) await this.measure(model, stopped);
  }

  private async single(
    model: Model,
    wish: Wish,
    page: Page,
    ids: number[],
    count: number,
    heat: number,
    stopped: () => boolean,
  ): Promise<void> {
    const times: number[] = [];
    let written = 0;
    const told = streamed(model.tokens);
    for await (const { token, milliseconds } of writes(model.decoder(wish), ids, count, heat, 1)) {
      if (stopped()) return;
      page.add(told(token));
      written += 1;
      if (written > 1) times.push(milliseconds);
      page.note.textContent = `${written} of ${count} tokens`;
      await breathe();
    }
    if (wish === this.wish && times.length > 3) {
      await this.time(model, wish, ids, stopped);
    }
  }

  /** Milliseconds a token, alone: while two texts are written, each waits for the other. */
  private async time(model: Model, wish: Wish, ids: number[], stopped: () => boolean): Promise<void> {
    const key = this.key;
    const times: number[] = [];
    for await (const { milliseconds } of writes(model.decoder(wish), ids, 8, 0, 1)) {
      if (stopped()) return;
      times.push(milliseconds);
    }
    times.sort((a, b) => a - b);
    this.milliseconds.set(key, times[Math.floor(times.length / 2)] as number);
    this.show();
  }

  private async ahead(
    model: Model,
    ids: number[],
    count: number,
    heat: number,
    stopped: () => boolean,
  ): Promise<void> {
    const own = model.decoder(this.native);
    const draft = model.decoder(this.wish);
    let guessed = 0;
    let kept = 0;
    let rounds = 0;
    let written = 0;
    for await (const round of speculates(own, draft, ids, count, AHEAD, heat, 1)) {
      if (stopped()) return;
      rounds += 1;
      guessed += round.kept.length + round.rejected.length;
      kept += round.kept.length;
      const fits = round.kept.slice(0, count - written);
      if (fits.length > 0) this.large.add(model.tokens.decode(fits), "kept");
      if (round.rejected.length > 0) this.large.add(model.tokens.decode(round.rejected), "rejected");
      written += fits.length;
      if (written < count) {
        this.large.add(model.tokens.decode([round.own]), "own");
        written += 1;
      }
      const share = guessed > 0 ? Math.round((100 * kept) / guessed) : 0;
      this.large.note.textContent = `${written} of ${count} tokens in ${rounds} passes of the native size; ${kept} of ${guessed} guesses kept (${share} %)`;
      await breathe();
    }
  }

  /** The loss of a size that the table does not have: what it loses against native on the same few texts. */
  private async measure(model: Model, stopped: () => boolean): Promise<void> {
    const { bundle } = this.studio;
    const base = measuredAt(bundle, this.native)?.loss;
    if (bundle.windows.length === 0 || measuredAt(bundle, this.wish) !== undefined || this.losses.has(this.key)) return;
    const key = this.key;
    if (!this.losses.has("native")) {
      const found = await lossOf(model.decoder(this.native), bundle.windows, stopped);
      if (stopped()) return;
      this.losses.set("native", found);
    }
    const found = await lossOf(model.decoder(this.wish), bundle.windows, stopped);
    if (stopped()) return;
    const own = this.losses.get("native") as number;
    this.losses.set(key, base === undefined ? found : base + found - own);
    this.show();
  }
}

const signed = (value: number): string => `${value >= 0 ? "+" : "−"}${Math.abs(value).toFixed(1)}`;

/** Loss over FLOPs of the measured sizes, which can be chosen, and the dot of the present one. */
class Picture {
  readonly root: HTMLElement;
  readonly legend = h("p", { class: "legend" });
  private readonly chart: Chart;

  constructor(bundle: Bundle, choose: (wish: Wish) => void) {
    const { sizes: points, about } = bundle;
    const tokens = bundle.windows[0]?.length ?? about.context ?? 128;
    const most = flops(sizeOf(about, { d: about.native.d, h: about.native.h, z: about.native.z }), about.vocab, tokens);
    const every = points.map((one) => one.flops);
    const low = Math.min(most / 8, ...every);
    const losses = points.map((one) => one.loss);
    this.chart = new Chart({
      width: 620,
      height: 300,
      title: "Held-out loss over floating-point operations",
      x: { label: `FLOPs of one text of ${tokens} tokens`, range: [low / 1.35, Math.max(most, ...every) * 1.25], log: true },
      y: {
        label: "held-out loss, nats a token",
        range: losses.length > 0 ? around(losses, 0.1) : [0, 5],
      },
    });
    this.chart.line("front", front(points).map((one) => [one.flops, one.loss]));
    const layer = this.chart.layer("sizes");
    for (const one of points) {
      const words = `d=${one.d}, h=${one.h}, z=${one.z}: loss ${one.loss.toFixed(3)}${one.trained === false ? ", never trained" : ""}`;
      layer.append(
        svg(
          "circle",
          {
            cx: this.chart.x(one.flops),
            cy: this.chart.y(one.loss),
            r: 5,
            class: one.trained === false ? "untrained" : "trained",
            click: () => choose({ d: one.d, h: one.h, z: one.z }),
          },
          svg("title", {}, words),
        ),
      );
    }
    this.root = h("div", { class: "picture" });
    this.root.append(this.chart.root);
    this.legend.append(
      h("span", { class: "key trained" }, "trained"),
      h("span", { class: "key untrained" }, "never trained"),
      h("span", { class: "key now" }, "this size"),
      h("span", {}, bundle.measured_on ? `Table measured on ${bundle.measured_on}.` : ""),
    );
  }

  move(work: number, loss: number | undefined, trained: boolean): void {
    const layer = this.chart.layer("now");
    const [low, high] = [this.chart.y.ticks[0] ?? 0, this.chart.y.ticks.at(-1) ?? 1];
    const x = this.chart.x(work);
    if (loss === undefined) {
      layer.replaceChildren(svg("line", { x1: x, x2: x, y1: this.chart.y(low), y2: this.chart.y(high), class: "waiting" }));
      return;
    }
    const bounded = Math.min(Math.max(this.chart.y(loss), 8), this.chart.floor);
    layer.replaceChildren(
      svg("circle", { cx: x, cy: bounded, r: 9, class: trained ? "dot" : "dot untrained" }),
      svg("circle", { cx: x, cy: bounded, r: 3, class: "core" }),
    );
  }
}
