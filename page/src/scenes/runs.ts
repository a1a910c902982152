/** Runs: start, watch, stop, resume, inspect and compare fits, by the server behind the page. */

import { Problem } from "../bundle";
import { Chart, around, trimmed } from "../chart";
import { button, choice, h, panel, unique } from "../dom";
import type { Scene, Studio } from "../studio";

interface Line {
  id: string;
  name: string;
  recipe: string;
  done: number;
  planned: number | null;
  best: number | null;
  last_loss: number | null;
  changed: number;
  state: string;
}

interface Beat {
  step: number;
  loss: number | null;
  held_out: number | null;
}

interface Current {
  name: string;
  command: string;
  code: number | null;
  said: string;
}

interface Setting {
  name: string;
  default: string;
  takes: string;
  about: string;
}

interface Recipe {
  name: string;
  words: string;
  time: string;
  settings: Setting[];
}

interface Described {
  line: Line;
  changes: Record<string, unknown>;
  curve: Beat[];
}

export const runs: Scene = {
  name: "runs",
  title: "Runs",
  words: "Train from here. Everything on this page is a command that you could have typed; a run that is stopped can be resumed.",
  open: (root, studio) => new RunsScene(root, studio).open(),
};

class RunsScene {
  private over = false;
  private readonly table = h("div", { class: "table-holder", tabindex: 0, role: "region", "aria-label": "Table of runs" });
  private readonly detail = h("div", { class: "column wide" });
  private readonly status = h("p", { class: "note", role: "status" });
  private readonly stop = button("Stop it", () => void this.act(() => this.ask("api/stop", {})), "quiet");
  private watching: AbortController | undefined;
  private lines: Line[] = [];
  private busy = false;

  constructor(
    private readonly root: HTMLElement,
    private readonly studio: Studio,
  ) {}

  async open(): Promise<() => void> {
    const form = h("div", {});
    this.root.append(
      h("div", { class: "column" }, panel("Start a fit", form, this.stop, this.status), panel("Runs", this.table)),
      this.detail,
    );
    this.stop.disabled = true;
    const waiting = this.studio.busy("asking the server");
    try {
      const { recipes } = await this.ask<{ recipes: Recipe[] }>("api/recipes");
      this.fill(form, recipes);
      await this.list();
    } finally {
      waiting.end();
    }
    await this.show();
    const timer = setInterval(() => void this.list().catch(() => undefined), 2000);
    return () => {
      this.over = true;
      clearInterval(timer);
      this.watching?.abort();
    };
  }

  /** Ask the server, with the token; a body makes it a request for work. */
  private async ask<T>(path: string, body?: unknown): Promise<T> {
    const headers: Record<string, string> = { authorization: `Bearer ${this.studio.token}` };
    let answer: Response;
    try {
      answer = await fetch(path, body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) });
    } catch {
      throw new Problem("The server does not answer.", "Start it again: continua studio.");
    }
    if (answer.ok) return (await answer.json()) as T;
    const said = (await answer.json().catch(() => null)) as { error?: { message?: string } } | null;
    const remedy = answer.status === 401 ? "Open the address that continua studio printed." : "";
    throw new Problem(said?.error?.message ?? `The server refused (${answer.status}).`, remedy);
  }

  private async act(work: () => Promise<unknown>): Promise<void> {
    const waiting = this.studio.busy("asking the server");
    try {
      await work();
      await this.list();
    } catch (problem) {
      this.studio.tell(problem);
    } finally {
      waiting.end();
    }
  }

  private fill(form: HTMLElement, recipes: Recipe[]): void {
    const { address } = this.studio;
    const chosen = address.text("recipe", "elastic");
    const recipe = recipes.find((one) => one.name === chosen) ?? (recipes[0] as Recipe);
    const inputs = new Map<string, HTMLInputElement>();
    const fields = recipe.settings.map((setting) => {
      const id = unique("setting");
      const input = h("input", { id, type: "number", step: "any", placeholder: setting.default, title: setting.about || setting.takes });
      inputs.set(setting.name, input);
      return h("div", { class: "field" }, h("label", { for: id }, setting.name), input);
    });
    const few = new Set(["steps", "d", "heads", "depth", "context", "batch", "lr"]);
    const first = fields.filter((_, i) => few.has((recipe.settings[i] as Setting).name));
    const rest = fields.filter((_, i) => !few.has((recipe.settings[i] as Setting).name));
    const start = button("Start", () => {
      const settings: Record<string, number> = {};
      for (const [name, input] of inputs) if (input.value !== "") settings[name] = Number(input.value);
      void this.act(async () => {
        await this.ask("api/fit", { recipe: recipe.name, settings });
        this.studio.address.set({ run: "current" });
        void this.show();
      });
    });
    const pick = choice("Recipe", recipes.map((one) => [one.name, one.name]), recipe.name, (name) => {
      address.set({ recipe: name });
      this.fill(form, recipes);
    });
    form.replaceChildren(
      pick.row,
      h("p", { class: "note" }, `${recipe.words.replaceAll("``", "")} ${recipe.time ? `Takes ${recipe.time} as it is.` : ""}`),
      h("div", { class: "fields" }, ...first),
      h("details", {}, h("summary", {}, "All numbers that can be set"), h("div", { class: "fields" }, ...rest)),
      h("div", { class: "buttons" }, start),
    );
  }

  private async list(): Promise<void> {
    const { runs: lines, current } = await this.ask<{ runs: Line[]; current: Current | null }>("api/runs");
    if (this.over) return;
    this.lines = lines;
    const now = current !== null && current.code === null;
    this.stop.disabled = !now;
    if (now) this.status.textContent = `${current.name} is training: ${current.command}`;
    else if (current !== null) {
      const end = current.code === 0 ? "is done" : current.code === 130 ? "was stopped and is saved" : `ended with ${current.code}: ${current.said.split("\n").at(-1) ?? ""}`;
      this.status.textContent = `${current.name} ${end}.`;
    }
    if (this.busy && !now) void this.show();
    this.busy = now;
    const chosen = this.studio.address.text("run", "");
    const rows = lines.map((line) => {
      const name = button(line.name, () => {
        this.studio.address.set({ run: line.id, beside: null });
        void this.show();
        void this.list();
      }, "link");
      name.setAttribute("aria-pressed", line.id === chosen ? "true" : "false");
      const steps = line.planned === null ? String(line.done) : `${line.done}/${line.planned}`;
      return h("tr", {}, h("td", {}, name), h("td", {}, line.recipe), h("td", {}, steps), h("td", {}, line.best === null ? "–" : line.best.toFixed(3)), h("td", {}, line.state));
    });
    const names = ["run", "recipe", "steps", "held-out", "state"].map((name) => h("th", { scope: "col" }, name));
    this.table.replaceChildren(
      lines.length === 0
        ? h("p", { class: "hint" }, "There are no runs yet. Start one above.")
        : h("table", {}, h("thead", {}, h("tr", {}, ...names)), h("tbody", {}, ...rows)),
    );
  }

  /** The run of the address, alone or beside another. */
  private async show(): Promise<void> {
    this.watching?.abort();
    const number = this.studio.address.text("run", this.lines[0]?.id ?? "");
    const beside = this.studio.address.text("beside", "");
    if (number === "") {
      this.detail.replaceChildren(panel("A run", h("p", { class: "hint" }, "Choose a run, or start one.")));
      return;
    }
    try {
      if (beside !== "") await this.compare(number, beside);
      else await this.watch(number);
    } catch (problem) {
      if (!this.over) this.studio.tell(problem);
    }
  }

  /** The curve of a run as it grows. */
  private async watch(number: string): Promise<void> {
    const own = new AbortController();
    this.watching = own;
    const title = number === "current" ? "The fit under way" : (this.lines.find((line) => line.id === number)?.name ?? "A run");
    const picture = h("div", { class: "picture" }, h("p", { class: "hint" }, "Waiting for the first step …"));
    const more = h("div", {});
    this.detail.replaceChildren(panel(title, picture, legend(), this.tools(number, more)), more);
    const beats: Beat[] = [];
    const headers = { authorization: `Bearer ${this.studio.token}` };
    const answer = await fetch(`api/runs/${number}/watch`, { headers, signal: own.signal });
    if (!answer.ok || answer.body === null) throw new Problem("The run cannot be watched.", "Look at the list again.");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const part = await reader.read().catch(() => ({ done: true, value: undefined }));
      if (part.done || part.value === undefined || own.signal.aborted) return;
      const events = (rest + part.value).split("\n\n");
      rest = events.pop() ?? "";
      let grew = false;
      for (const event of events) {
        const data = /^event: beats\ndata: (.*)$/m.exec(event)?.[1];
        if (data === undefined) continue;
        beats.push(...(JSON.parse(data) as Beat[]));
        grew = true;
      }
      if (grew) picture.replaceChildren(curves([beats]));
    }
  }

  private tools(number: string, more: HTMLElement): HTMLElement {
    const known = this.lines.find((line) => line.id === number);
    const box = h("div", { class: "buttons" });
    if (known === undefined) return box;
    const resume = button("Resume", () => void this.act(async () => {
      await this.ask(`api/runs/${number}/resume`, {});
      void this.show();
    }), "quiet");
    resume.disabled = known.state !== "stopped";
    const inspect = button("Inspect", () => void this.act(async () => {
      const { text } = await this.ask<{ text: string }>(`api/runs/${number}/inspect`);
      more.replaceChildren(panel(`continua inspect ${known.name}`, h("pre", { class: "said", tabindex: 0 }, text)));
    }), "quiet");
    const others = this.lines.filter((line) => line.id !== number).map((line): [string, string] => [line.id, line.name]);
    box.append(resume, inspect);
    if (others.length > 0) {
      const pick = choice("Compare with", [["", "–"], ...others], "", (beside) => {
        if (beside === "") return;
        this.studio.address.set({ run: number, beside });
        void this.show();
      });
      box.append(pick.row);
    }
    return box;
  }

  private async compare(first: string, second: string): Promise<void> {
    const found = await this.ask<{ differences: string[][]; runs: Described[] }>(`api/compare/${first}/${second}`);
    const [a, b] = found.runs as [Described, Described];
    const names = ["setting", a.line.name, b.line.name].map((name) => h("th", { scope: "col" }, name));
    const rows = found.differences.map((row) => h("tr", {}, ...row.map((cell) => h("td", {}, cell))));
    const same = h("p", { class: "hint" }, "Both have the same settings.");
    const table = h("div", { class: "table-holder", tabindex: 0, role: "region", "aria-label": "Table of differences" }, rows.length === 0 ? same : h("table", {}, h("thead", {}, h("tr", {}, ...names)), h("tbody", {}, ...rows)));
    this.detail.replaceChildren(
      panel(`${a.line.name} and ${b.line.name}`, h("div", { class: "picture" }, curves([a.curve, b.curve])), h("p", { class: "legend" }, h("span", { class: "key trained" }, a.line.name), h("span", { class: "key now" }, b.line.name))),
      panel("Settings that differ", table),
    );
  }
}

function legend(): HTMLElement {
  return h("p", { class: "legend" }, h("span", { class: "key trained" }, "training, line; held out, dots"));
}

/** Losses over steps: training as a line, held-out data as dots. */
function curves(every: Beat[][]): SVGSVGElement {
  const losses = every.flat().flatMap((beat) => [beat.loss, beat.held_out]).filter((value): value is number => value !== null);
  const last = Math.max(1, ...every.flat().map((beat) => beat.step));
  const chart = new Chart({
    width: 700,
    height: 320,
    title: `Loss over ${last} steps; the last is ${trimmed(losses.at(-1) ?? 0, 4)}`,
    x: { label: "step", range: [0, last] },
    y: { label: "loss", range: around(losses) },
  });
  every.forEach((beats, i) => {
    chart.line(`curve-${i}`, beats.flatMap((beat): [number, number][] => (beat.loss === null ? [] : [[beat.step, beat.loss]])));
    chart.dots(`held-${i}`, beats.flatMap((beat): [number, number][] => (beat.held_out === null ? [] : [[beat.step, beat.held_out]])), 4);
  });
  return chart.root;
}
