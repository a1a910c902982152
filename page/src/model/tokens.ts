/** From text to token numbers and back, as `continua.session.tokens` does: characters, or byte pairs. */

import { Problem } from "../bundle";

export interface Tokens {
  readonly size: number;
  encode(text: string): number[];
  decode(ids: Iterable<number>): string;
}

const TORN = "\ufffd"; // what the first bytes of a character look like before the others are there
const LONGEST = 4;

/** One token a character. */
export class Alphabet implements Tokens {
  private readonly characters: string[];
  private readonly places: Map<string, number>;

  constructor(alphabet: string) {
    this.characters = [...alphabet];
    this.places = new Map(this.characters.map((character, place) => [character, place]));
  }

  get size(): number {
    return this.characters.length;
  }

  /** Token numbers; a character that is not in the alphabet is named. */
  encode(text: string): number[] {
    return [...text].map((character) => {
      const place = this.places.get(character);
      if (place === undefined) {
        const remedy = "Use characters of the text it was trained on.";
        throw new Problem(`The model does not know the character ${JSON.stringify(character)}.`, remedy);
      }
      return place;
    });
  }

  decode(ids: Iterable<number>): string {
    return [...ids].map((id) => this.characters[id] ?? "").join("");
  }
}

const WORDS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

/** A printable character for every byte, as byte-level tokenizers write them. */
function letters(): string[] {
  const own = (byte: number): boolean => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => {
    if (own(byte)) return String.fromCodePoint(byte);
    next += 1;
    return String.fromCodePoint(next - 1);
  });
}

interface Described {
  model: { type?: string; vocab: Record<string, number>; merges: (string | [string, string])[] };
  pre_tokenizer: { type: string } | null;
}

/** Byte pairs merged by frequency, from the JSON of the `tokenizers` library; of its kinds the byte-level one. */
export class BytePairs implements Tokens {
  private readonly vocab: Map<string, number>;
  private readonly names: Map<number, string>;
  private readonly ranks: Map<string, number>;
  private readonly letters = letters();
  private readonly bytes: Map<string, number>;

  constructor(described: string) {
    const { model, pre_tokenizer: before } = JSON.parse(described) as Described;
    if (before?.type !== "ByteLevel" || model.merges === undefined) {
      const remedy = "Use a model of characters or of byte pairs, such as those of continua fit elastic.";
      throw new Problem("This page does not know the tokenizer of the model.", remedy);
    }
    this.vocab = new Map(Object.entries(model.vocab));
    this.names = new Map([...this.vocab].map(([name, id]) => [id, name]));
    const pairs = model.merges.map((pair) => (typeof pair === "string" ? pair : pair.join(" ")));
    this.ranks = new Map(pairs.map((pair, rank) => [pair, rank]));
    this.bytes = new Map(this.letters.map((letter, byte) => [letter, byte]));
  }

  get size(): number {
    return this.vocab.size;
  }

  encode(text: string): number[] {
    return (text.match(WORDS) ?? []).flatMap((word) => {
      const parts = [...new TextEncoder().encode(word)].map((byte) => this.letters[byte] as string);
      return this.merged(parts).flatMap((part) => this.vocab.get(part) ?? []);
    });
  }

  /** The pair that was learned first is merged first. */
  private merged(parts: string[]): string[] {
    for (;;) {
      let best = -1;
      let least = Infinity;
      for (let i = 0; i + 1 < parts.length; i += 1) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
        if (rank < least) [least, best] = [rank, i];
      }
      if (best < 0) return parts;
      parts.splice(best, 2, `${parts[best]}${parts[best + 1]}`);
    }
  }

  decode(ids: Iterable<number>): string {
    const letters_ = [...ids].flatMap((id) => [...(this.names.get(id) ?? "")]);
    return new TextDecoder().decode(Uint8Array.from(letters_, (letter) => this.bytes.get(letter) ?? 63));
  }
}

export function tokensOf(described: { kind: string; alphabet?: string; json?: string }): Tokens {
  if (described.kind === "characters") return new Alphabet(described.alphabet ?? "");
  return new BytePairs(described.json ?? "{}");
}

/** The text of each token as it comes; bytes of one character wait for one another. */
export function streamed(tokens: Tokens): (id: number) => string {
  let pending: number[] = [];
  return (id) => {
    pending.push(id);
    const text = tokens.decode(pending);
    if (text.endsWith(TORN) && pending.length < LONGEST) return "";
    pending = [];
    return text;
  };
}
