/** The whole state of the page is in its address: a copied link shows what was seen, and the back button works. */

export type State = ReadonlyMap<string, string>;

type Listener = (state: State) => void;

export function parsed(search: string): Map<string, string> {
  return new Map(new URLSearchParams(search));
}

/** The query of a state; what equals its default is left out. */
export function written(state: State, defaults: State = new Map()): string {
  const query = new URLSearchParams();
  for (const [key, value] of [...state].sort(([a], [b]) => (a === "scene" ? -1 : b === "scene" ? 1 : a < b ? -1 : 1))) {
    if (defaults.get(key) !== value) query.set(key, value);
  }
  const text = query.toString();
  return text ? `?${text}` : "";
}

export class Address {
  private state: Map<string, string>;
  private readonly listeners: Listener[] = [];

  constructor(private readonly view: Window = window) {
    this.state = parsed(view.location.search);
    view.addEventListener("popstate", () => {
      this.state = parsed(view.location.search);
      for (const listener of this.listeners) listener(this.state);
    });
  }

  /** Told when the browser goes back or forth, or to another scene. */
  onMove(listener: Listener): void {
    this.listeners.push(listener);
  }

  get all(): State {
    return this.state;
  }

  text(key: string, usual: string): string {
    return this.state.get(key) ?? usual;
  }

  /** A number within bounds; anything else is the usual one. */
  number(key: string, usual: number, min = -Infinity, max = Infinity): number {
    const text = this.state.get(key);
    const value = text === undefined || text === "" ? NaN : Number(text);
    return Number.isFinite(value) && value >= min && value <= max ? value : usual;
  }

  whole(key: string, usual: number, min = -Infinity, max = Infinity): number {
    const value = this.number(key, usual, min, max);
    return Number.isInteger(value) ? value : usual;
  }

  flag(key: string, usual: boolean): boolean {
    const text = this.state.get(key);
    return text === undefined ? usual : text === "1";
  }

  /** Change some of it: a new step of the history, or (while something moves) the present one. */
  set(changes: Record<string, string | number | boolean | null>, step = true): void {
    const next = new Map(this.state);
    for (const [key, value] of Object.entries(changes)) {
      if (value === null) next.delete(key);
      else next.set(key, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
    }
    const query = written(next);
    const same = query === written(this.state);
    this.state = next;
    const place = this.view.location.pathname + query;
    if (step && !same) this.view.history.pushState(null, "", place);
    else this.view.history.replaceState(null, "", place);
  }

  /** Go to a scene, with nothing else kept but the walk. */
  go(scene: string, values: Record<string, string | number | boolean | null> = {}): void {
    const kept = this.state.get("walk");
    this.state = new Map([["scene", scene]]);
    if (kept !== undefined) this.state.set("walk", kept);
    for (const [key, value] of Object.entries(values)) {
      if (value === null) this.state.delete(key);
      else this.state.set(key, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
    }
    this.view.history.pushState(null, "", this.view.location.pathname + written(this.state));
    for (const listener of this.listeners) listener(this.state);
  }
}
