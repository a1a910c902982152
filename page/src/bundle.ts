/** What `continua studio` prepared: see `continua.studio.bundle`. */

export interface Measured {
  d: number;
  h: number;
  z: number;
  loss: number;
  milliseconds: number | null;
  flops: number;
  bytes: number | null;
  trained: boolean | null;
}

export interface About {
  native: { d: number; h: number; e: number; m: number; z: number };
  steps: Record<string, [layer: number, length: number][]>;
  smallest: Partial<Record<string, number>>;
  vocab: number;
  context: number | null;
  tokens: { kind: string; alphabet?: string; json?: string };
}

export interface Bundle {
  name: string;
  prompt: string;
  about: About;
  measured_on: string;
  sizes: Measured[];
  trained: [number, number, number][];
  nodes: Record<"d" | "h", number[]>;
  windows: number[][];
  model: string;
  model_bytes: number;
  live: boolean;
  version: number;
}

/** An error with what can be done about it. */
export class Problem extends Error {
  constructor(
    readonly what: string,
    readonly remedy: string,
  ) {
    super(`${what} ${remedy}`);
  }
}

export type Watch = (share: number, words: string) => void;

/** A file, with its progress told as it comes. */
export async function download(name: string, watch: Watch, expected = 0): Promise<ArrayBuffer> {
  const answer = await fetched(name);
  const total = expected || Number(answer.headers.get("content-length") ?? 0);
  const words = `loading ${name}`;
  if (answer.body === null) return answer.arrayBuffer();
  const parts: Uint8Array[] = [];
  let got = 0;
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    got += value.length;
    watch(total > 0 ? Math.min(1, got / total) : 0, `${words}, ${(got / 1e6).toFixed(1)} MB`);
  }
  const whole = new Uint8Array(got);
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole.buffer;
}

export async function fetched(name: string): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(name);
  } catch {
    throw new Problem(`${name} could not be loaded.`, "Is the server still running? Start it again: continua studio.");
  }
  if (!answer.ok) {
    const remedy = "Write the page again: continua studio --export FOLDER.";
    throw new Problem(`${name} is not there (${answer.status}).`, remedy);
  }
  return answer;
}

export async function readJson<T>(name: string): Promise<T> {
  return (await (await fetched(name)).json()) as T;
}
