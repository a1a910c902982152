/** onnxruntime in WebAssembly, one thread, from a file that lies beside the page. */

import * as ort from "onnxruntime-web/wasm";
import { Problem, download, type Watch } from "../bundle";

export type Tensor = ort.Tensor;
export const Tensor = ort.Tensor;

const RUNTIME = "ort.wasm";
const RUNTIME_BYTES = 14.3e6;
// quiet: it complains of branches that a size does not take
const OPTIONS: ort.InferenceSession.SessionOptions = { executionProviders: ["wasm"], logSeverityLevel: 4 };

let loading: Promise<void> | undefined;

/** Load the WebAssembly, once. */
export function runtime(watch: Watch): Promise<void> {
  loading ??= (async () => {
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmBinary = await download(RUNTIME, watch, RUNTIME_BYTES);
    ort.env.logLevel = "error";
  })().catch((problem: unknown) => {
    loading = undefined;
    throw problem;
  });
  return loading;
}

let running: Promise<unknown> = Promise.resolve(); // one thing at a time, of all sessions

export class Runtime {

  private constructor(private readonly session: ort.InferenceSession) {}

  /** Of a file that is here already. */
  static async of(content: Uint8Array, watch: Watch): Promise<Runtime> {
    await runtime(watch);
    watch(1, "starting the model");
    try {
      const session = await ort.InferenceSession.create(content, OPTIONS);
      return new Runtime(session);
    } catch (problem) {
      const remedy = "Use a browser of the last three years, or export the model again.";
      throw new Problem(`The model could not be started (${String(problem).slice(0, 160)}).`, remedy);
    }
  }

  /** Give its memory back, when nothing runs any more. */
  async close(): Promise<void> {
    await running;
    await this.session.release();
  }

  /** One after the other: the runtime does one thing at a time. */
  run(feeds: Record<string, Tensor>, fetches: readonly string[]): Promise<Record<string, Tensor>> {
    const next = running.then(() => this.session.run(feeds, fetches as string[]));
    running = next.catch(() => undefined);
    return next as Promise<Record<string, Tensor>>;
  }
}

export const longs = (values: ArrayLike<number>, shape?: number[]): Tensor =>
  new Tensor("int64", BigInt64Array.from(Array.from(values), BigInt), shape ?? [values.length]);

export const floats = (values: Float32Array, shape: number[]): Tensor => new Tensor("float32", values, shape);

export const flags = (values: Uint8Array, shape: number[]): Tensor => new Tensor("bool", values, shape);
