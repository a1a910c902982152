import { Problem } from "../bundle";

/** One token a character, as `continua.session.tokens.Alphabet`. */
export class Alphabet {
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
