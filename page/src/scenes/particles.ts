/** Particles: tokens that only attract one another, on the circle and the sphere, beside the theory. */

import { Problem } from "../bundle";
import { Chart } from "../chart";
import { button, choice, h, panel, prefersStill, slider, tick } from "../dom";
import { uniform, type Kind, type Law } from "../lab/particles";
import { Stage, hues } from "../lab/stage";
import { fastest, growthRates } from "../lab/theory";
import { MODES, type Knot, type Order } from "../lab/worker";
import type { Scene, Studio } from "../studio";

const MOST_TIME = 400;
let turns = 0; // of all openings of this scene: they share one solver

export const particles: Scene = {
  name: "particles",
  title: "Particles",
  words: "Tokens on a circle or sphere that attend to one another, and nothing else. Drag one of them, or turn the sphere.",
  open: (root, studio) => new ParticlesScene(root, studio).open(),
};

class ParticlesScene {
  private stage: Stage | undefined;
  private knots: Knot[] = [];
  private asked = false;
  private clock = 0;
  private last = 0;
  private turn = 0;
  private playing = !prefersStill();
  private over = false;
  private readonly holder = h("div", { class: "stage-holder" });
  private readonly numbers = h("dl", { class: "numbers" });
  private readonly energy = h("div", { class: "picture" });
  private readonly rates = h("div", { class: "picture" });
  private readonly note = h("p", { class: "note", role: "status" });
  private readonly play = button("Stop", () => this.toggle());
  private history: { time: number; energy: number; groups: number }[] = [];
  private first: Knot | undefined;
  private measured: [number, number][] = [];
  private frames = 0;
  private counted = performance.now();
  private rate = 0;

  constructor(
    private readonly root: HTMLElement,
    private readonly studio: Studio,
  ) {}

  private get d(): 2 | 3 {
    return this.studio.address.text("on", "circle") === "sphere" ? 3 : 2;
  }

  private get n(): number {
    return this.studio.address.whole("n", 2000, 2, 4000);
  }

  private get law(): Law {
    const { address } = this.studio;
    const noise = address.number("noise", 0, 0, 1);
    return {
      kind: address.text("kind", "SA") === "USA" ? "USA" : ("SA" as Kind),
      beta: address.number("beta", 9, -10, 60),
      causal: address.flag("causal", false),
      sign: address.flag("repel", false) ? -1 : 1,
      kappa: noise > 0 ? 1 / noise : Infinity,
    };
  }

  /** How far neighbours of one group are apart at most: half of the width of the kernel, as the library has it. */
  private get angle(): number {
    return 0.5 / Math.sqrt(Math.max(1, Math.abs(this.law.beta)));
  }

  open(): () => void {
    const { address } = this.studio;
    const changed = (values: Record<string, string | number | boolean>, anew: boolean): void => {
      address.set(values);
      if (anew) this.begin();
      else {
        this.send({ kind: "change", law: this.law });
        this.theory();
      }
    };
    const { law } = this;
    const controls = panel(
      "Interaction",
      choice("Where", [["circle", "Circle"], ["sphere", "Sphere"]], address.text("on", "circle"), (on) => changed({ on }, true)).row,
      choice("Attention", [["SA", "Softmax (SA)"], ["USA", "Unnormalised (USA)"]], law.kind, (kind) => changed({ kind }, true)).row,
      slider({
        label: "β, inverse temperature",
        min: 0,
        max: 40,
        step: 0.5,
        value: law.beta,
        moves: (beta) => address.set({ beta }, false),
        rests: (beta) => changed({ beta }, true),
      }).row,
      slider({
        label: "Noise 1/κ",
        min: 0,
        max: 0.5,
        step: 0.01,
        value: address.number("noise", 0, 0, 1),
        rests: (noise) => changed({ noise }, false),
        moves: () => undefined,
      }).row,
      slider({
        label: "Tokens",
        min: 50,
        max: 4000,
        step: 50,
        value: this.n,
        rests: (n) => changed({ n }, true),
        moves: () => undefined,
      }).row,
      tick("Causal: a token sees earlier ones alone", law.causal, (causal) => changed({ causal }, true)),
      tick("Repel instead (V = −I)", law.sign < 0, (repel) => changed({ repel }, true)),
      h("div", { class: "buttons" }, this.play, button("Begin anew", () => changed({ seed: this.seed + 1 }, true), "quiet")),
      this.numbers,
    );
    const curves = h(
      "div",
      { class: "pair" },
      panel("Energy E_β over time", this.energy),
      panel("Growth rates of the modes", this.rates, h("p", { class: "legend" }, h("span", { class: "key trained" }, "theory"), h("span", { class: "key now" }, "measured at the start"))),
    );
    this.root.append(
      h("div", { class: "column" }, controls),
      h("div", { class: "column wide" }, h("div", { class: "panel" }, this.holder, this.note), curves),
    );
    this.play.textContent = this.playing ? "Stop" : "Play";
    const solver = this.studio.solver();
    const arrived = ({ data }: MessageEvent<Knot>): void => this.arrived(data);
    const failed = (): void => this.studio.tell(new Problem("The solver of particles stopped.", "Load the page again."));
    solver.addEventListener("message", arrived);
    solver.addEventListener("error", failed);
    const painted = (): void => this.stage?.paint();
    addEventListener("continua-theme", painted);
    this.begin();
    const frame = (now: number): void => {
      if (this.over) return;
      this.step(now);
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    return () => {
      this.over = true;
      solver.removeEventListener("message", arrived);
      solver.removeEventListener("error", failed);
      this.stage?.close();
      removeEventListener("continua-theme", painted);
    };
  }

  private get seed(): number {
    return this.studio.address.whole("seed", 0, 0, 1e9);
  }

  private send(order: Order): void {
    this.studio.solver().postMessage(order);
  }

  private toggle(): void {
    this.playing = !this.playing;
    this.play.textContent = this.playing ? "Stop" : "Play";
  }

  private begin(): void {
    const { d, n } = this;
    const x = uniform(n, d, this.seed);
    this.stage?.close();
    const words = `${n} tokens on a ${d === 2 ? "circle" : "sphere"}`;
    this.stage = new Stage(d, words, {
      began: () => undefined,
      moved: (token, place) => {
        this.send({ kind: "hold", token, place });
        for (const knot of this.knots) {
          for (let k = 0; k < d; k += 1) {
            knot.x[token * d + k] = place[k] as number;
            knot.v[token * d + k] = 0;
          }
        }
      },
      ended: (token) => this.send({ kind: "hold", token, place: null }),
    });
    this.holder.replaceChildren(this.stage.canvas);
    this.stage.begin(n, hues(x, d), d === 2 ? 9 : 7);
    this.stage.draw(x, d);
    turns += 1;
    this.turn = turns;
    this.knots = [];
    this.history = [];
    this.first = undefined;
    this.measured = [];
    this.clock = 0;
    this.asked = true;
    this.send({ kind: "begin", turn: this.turn, x, d, law: this.law, seed: this.seed });
    this.theory();
    this.note.textContent = `${words}.`;
  }

  private arrived(knot: Knot): void {
    if (knot.turn !== this.turn) return;
    this.asked = false;
    this.knots.push(knot);
    if (this.knots.length > 4) this.knots.shift();
    this.history.push({ time: knot.time, energy: knot.energy, groups: knot.groups });
    this.first ??= knot;
    this.measure(knot);
    this.tell(knot);
  }

  /** One frame: between two states of the solver the path is a cubic with their velocities. */
  private step(now: number): void {
    const since = Math.min(0.1, (now - this.last) / 1000);
    this.last = now;
    const end = this.knots.at(-1);
    if (end === undefined || this.stage === undefined) return;
    const moves = this.playing && end.time < MOST_TIME;
    if (moves && !this.asked && this.clock > (this.knots.at(-2)?.time ?? -1)) {
      this.asked = true;
      const step = Number.isFinite(this.law.kappa) ? 0.04 : 0.2;
      this.send({ kind: "go", step, angle: this.angle });
    }
    if (moves) this.clock = Math.min(end.time, this.clock + since * this.studio.address.number("speed", 1, 0.1, 10));
    let place = this.knots.length - 1;
    while (place > 0 && (this.knots[place - 1] as Knot).time >= this.clock) place -= 1;
    const right = this.knots[place] as Knot;
    const left = this.knots[Math.max(0, place - 1)] as Knot;
    this.stage.draw(between(left, right, this.clock, this.d), this.d);
    this.frames += 1;
    if (now - this.counted > 1000) {
      this.rate = (1000 * this.frames) / (now - this.counted);
      this.frames = 0;
      this.counted = now;
      this.tell(end);
    }
  }

  /** Growth of the power of each mode since the start, while it is small. */
  private measure(knot: Knot): void {
    const { first } = this;
    if (first === undefined || knot === first || this.law.causal) return;
    const { law } = this;
    const theory = growthRates(law.beta, this.d, law.kind, MODES, law.kappa, law.sign);
    const most = Math.max(0.05, ...theory.map(Math.abs));
    if (knot.time > Math.max(0.2, 2 / most)) return;
    this.measured = theory.flatMap((_, l): [number, number][] => {
      const before = first.powers[l] as number;
      const now = knot.powers[l] as number;
      return l > 0 && before > 0 && now > 0 ? [[l, Math.log(now / before) / (2 * knot.time)]] : [];
    });
    this.theory();
  }

  private theory(): void {
    const { law, d } = this;
    if (law.causal) {
      this.rates.replaceChildren(h("p", { class: "hint" }, "The theory of growth is that of attention without a mask."));
      return;
    }
    const winner = fastest(growthRates(Math.abs(law.beta), d, "SA", MODES));
    const shown = Math.min(MODES, Math.max(6, 2 * winner)); // beyond, modes are too weak to be measured
    const found = growthRates(law.beta, d, law.kind, shown, law.kappa, law.sign);
    const measured = this.measured.filter(([l]) => l <= shown);
    const values = [...found, ...measured.map(([, rate]) => rate)];
    const low = Math.max(-3 * Math.max(...found.map(Math.abs)), Math.min(0, ...values));
    const chart = new Chart({
      width: 420,
      height: 230,
      title: `Growth rates; the fastest mode is ${fastest(found)}`,
      x: { label: d === 2 ? "mode k" : "degree l", range: [0, shown], shown: String },
      y: { label: "rate λ", range: [low, Math.max(0.01, ...values) * 1.1] },
    });
    chart.line("theory", found.map((rate, l) => [l, rate]));
    chart.dots("measured", measured.filter(([, rate]) => rate >= low), 4);
    this.rates.replaceChildren(chart.root);
  }

  private tell(knot: Knot): void {
    const { law } = this;
    const theory = growthRates(law.beta, this.d, "SA", MODES);
    const rows: [string, string][] = [
      ["Time", knot.time.toFixed(1)],
      ["Groups now", String(knot.groups)],
      ["Fastest mode, theory", law.beta > 0 && !law.causal && law.sign > 0 ? String(fastest(theory)) : "–"],
      ["Frames a second", this.rate > 0 ? this.rate.toFixed(0) : "…"],
    ];
    this.numbers.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    if (this.history.length < 2) return;
    const energies = this.history.map((one) => one.energy).filter(Number.isFinite);
    if (energies.length < 2) {
      this.energy.replaceChildren(h("p", { class: "hint" }, "At β = 0 the energy has no stairs."));
      return;
    }
    const low = Math.min(...energies);
    const high = Math.max(...energies);
    const air = 0.06 * (high - low || Math.abs(high) || 1);
    const chart = new Chart({
      width: 420,
      height: 230,
      title: "Energy over time",
      x: { label: "time", range: [0, Math.max(1, knot.time)] },
      y: { label: "energy", range: [low - air, high + air] },
    });
    chart.line("path", this.history.map((one) => [one.time, one.energy]));
    this.energy.replaceChildren(chart.root);
  }
}

/** Cubic Hermite interpolation between two states, brought back to the sphere. */
function between(left: Knot, right: Knot, time: number, d: number): Float64Array {
  const span = right.time - left.time;
  if (left === right || span <= 0) return right.x;
  const s = Math.min(1, Math.max(0, (time - left.time) / span));
  const a = (1 + 2 * s) * (1 - s) ** 2;
  const b = s * (1 - s) ** 2 * span;
  const c = s * s * (3 - 2 * s);
  const e = s * s * (s - 1) * span;
  const x = new Float64Array(right.x.length);
  for (let k = 0; k < x.length; k += 1) {
    x[k] = a * (left.x[k] as number) + b * (left.v[k] as number) + c * (right.x[k] as number) + e * (right.v[k] as number);
  }
  for (let i = 0; i < x.length; i += d) {
    let square = 0;
    for (let k = i; k < i + d; k += 1) square += (x[k] as number) ** 2;
    const length = Math.sqrt(square) || 1;
    for (let k = i; k < i + d; k += 1) x[k] = (x[k] as number) / length;
  }
  return x;
}
