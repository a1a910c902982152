/** What all scenes share: the address, the bundle, the model (loaded once, when a scene first needs it), and messages. */

import { Address } from "./address";
import { Problem, download, readJson, type Bundle, type Watch } from "./bundle";
import { h } from "./dom";
import { Decoder } from "./model/decoder";
import { Runtime, runtime } from "./model/runtime";
import { Sessions } from "./model/sessions";
import { sizeOf, type Wish } from "./model/size";
import { tokensOf, type Tokens } from "./model/tokens";

export interface Model {
  tokens: Tokens;
  decoder(wish: Wish): Decoder;
}

/** A scene fills its root and returns what ends it. */
export interface Scene {
  name: string;
  title: string;
  words: string;
  open(root: HTMLElement, studio: Studio): (() => void) | Promise<() => void>;
}

export class Studio {
  readonly address = new Address();
  token = "";
  private loading: Promise<Model> | undefined;
  private readonly operators = new Map<string, Promise<Runtime>>();
  private readonly kept = new Map<string, Promise<ArrayBuffer>>();
  private whole: Promise<void> | undefined;
  private worker: Worker | undefined;

  constructor(
    readonly bundle: Bundle,
    private readonly messages: HTMLElement,
    private readonly bar: HTMLElement,
  ) {}

  /** The model; the bar shows how far its loading is. */
  model(): Promise<Model> {
    this.loading ??= this.load().catch((problem: unknown) => {
      this.loading = undefined;
      throw problem;
    });
    return this.loading;
  }

  private async load(): Promise<Model> {
    const { about, model, model_bytes } = this.bundle;
    const done = this.busy("loading the model");
    try {
      const [content] = await Promise.all([download(model, done.watch, model_bytes), runtime(done.watch)]);
      const sessions = new Sessions(content, about);
      const { d, h: heads, z } = about.native;
      await sessions.at(sizeOf(about, { d, h: heads, z }), done.watch);
      const tokens = tokensOf(about.tokens);
      const decoder = (wish: Wish): Decoder => {
        const size = sizeOf(about, wish);
        return new Decoder(() => sessions.at(size), about, size);
      };
      return { tokens, decoder };
    } finally {
      done.end();
    }
  }

  /** Another ONNX file beside the page. */
  operator(name: string): Promise<Runtime> {
    const made =
      this.operators.get(name) ??
      (async () => {
        const done = this.busy(`loading ${name}`);
        try {
          return await Runtime.of(new Uint8Array(await this.bytes(name, done.watch)), done.watch);
        } finally {
          done.end();
        }
      })();
    this.operators.set(name, made);
    return made;
  }

  private bytes(name: string, watch: Watch): Promise<ArrayBuffer> {
    const made = this.kept.get(name) ?? download(name, watch);
    this.kept.set(name, made);
    return made;
  }

  /** The solver of particles: one worker for all scenes that want it. */
  solver(): Worker {
    this.worker ??= new Worker(new URL("./lab/worker.ts", import.meta.url), { type: "module" });
    return this.worker;
  }

  /** Load all that other scenes need, so that the page works without a network from then on. */
  ready(load: () => Promise<unknown>): Promise<void> {
    this.whole ??= (async () => {
      await this.model();
      await load();
      await this.lab();
      await Promise.all(["burgers.json", "minilm.json"].map((name) => this.json(name)));
      await this.bytes("burgers.onnx", () => undefined);
      this.solver();
    })().catch((problem: unknown) => {
      this.whole = undefined;
      throw problem;
    });
    return this.whole;
  }

  private readonly files = new Map<string, Promise<unknown>>();

  /** A JSON file beside the page, read once. */
  json<T>(name: string): Promise<T> {
    const made = this.files.get(name) ?? readJson<T>(name);
    this.files.set(name, made);
    return made as Promise<T>;
  }

  /** The arithmetic of the lab and of functions, for the console and for tests. */
  async lab(): Promise<Record<string, unknown>> {
    const parts = [import("./lab/particles"), import("./lab/theory"), import("./functions/burgers"), import("./functions/wiener"), import("./model/tokens")];
    return Object.assign({}, ...(await Promise.all(parts))) as Record<string, unknown>;
  }

  /** Show at once that something is under way. */
  busy(words: string): { watch: Watch; end: () => void } {
    const fill = h("progress", { max: 1, "aria-label": words });
    const label = h("span", {}, words);
    const row = h("div", { class: "busy", role: "status" }, label, fill);
    this.bar.append(row);
    return {
      watch: (share, told) => {
        label.textContent = told;
        if (share > 0) fill.value = share;
      },
      end: () => row.remove(),
    };
  }

  /** Say what went wrong and what can be done. */
  tell(problem: unknown): void {
    const known = problem instanceof Problem;
    const what = known ? problem.what : `Something went wrong: ${String(problem).slice(0, 300)}.`;
    const remedy = known ? problem.remedy : "Load the page again; if it stays, report it with the words above.";
    const close = h("button", { type: "button", class: "quiet", "aria-label": "Close this message" }, "×");
    const box = h("div", { class: "problem", role: "alert" }, h("p", {}, h("strong", {}, what), ` ${remedy}`), close);
    close.addEventListener("click", () => box.remove());
    for (const old of [...this.messages.children].slice(2)) old.remove();
    this.messages.prepend(box);
    if (!known) console.error(problem);
  }

  clearProblems(): void {
    this.messages.replaceChildren();
  }
}
