/** Elements without inline styles or inline scripts: the content security policy allows neither. */

type Value = string | number | boolean | null | undefined | ((event: never) => void);
type Child = Node | string | number | null | undefined;

const SVG = "http://www.w3.org/2000/svg";

function fill(made: Element, props: Record<string, Value>, children: Child[]): void {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value as EventListener);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) {
    if (child === null || child === undefined) continue;
    made.append(child instanceof Node ? child : String(child));
  }
}

/** An HTML element; functions among the properties listen to events. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Record<string, Value> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  fill(made, props, children);
  return made;
}

/** An SVG element. */
export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  props: Record<string, Value> = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const made = document.createElementNS(SVG, tag) as SVGElementTagNameMap[K];
  fill(made, props, children);
  return made;
}

let count = 0;

/** A name that no other element has. */
export function unique(stem: string): string {
  count += 1;
  return `${stem}-${count}`;
}

export interface Slider {
  row: HTMLElement;
  input: HTMLInputElement;
  set(value: number): void;
  get(): number;
}

export interface SliderWish {
  label: string;
  min: number;
  max: number;
  step?: number;
  value: number;
  shown?: (value: number) => string;
  /** While it moves. */
  moves?: (value: number) => void;
  /** When it rests. */
  rests?: (value: number) => void;
  help?: string;
}

/** A labelled slider whose value stands beside it. */
export function slider(wish: SliderWish): Slider {
  const shown = wish.shown ?? String;
  const id = unique("slider");
  const output = h("output", { for: id }, shown(wish.value));
  const input = h("input", {
    id,
    type: "range",
    min: wish.min,
    max: wish.max,
    step: wish.step ?? 1,
    value: wish.value,
    "aria-valuetext": shown(wish.value),
    title: wish.help ?? null,
  });
  const tell = (): number => {
    const value = Number(input.value);
    output.textContent = shown(value);
    input.setAttribute("aria-valuetext", shown(value));
    return value;
  };
  input.addEventListener("input", () => wish.moves?.(tell()));
  input.addEventListener("change", () => wish.rests?.(tell()));
  const row = h("div", { class: "slider" }, h("label", { for: id }, wish.label), output, input);
  return {
    row,
    input,
    get: () => Number(input.value),
    set(value: number) {
      input.value = String(value);
      tell();
    },
  };
}

/** A labelled choice. */
export function choice(
  label: string,
  options: [value: string, text: string][],
  value: string,
  chosen: (value: string) => void,
): { row: HTMLElement; select: HTMLSelectElement } {
  const id = unique("choice");
  const select = h("select", { id });
  for (const [name, text] of options) select.append(h("option", { value: name, selected: name === value }, text));
  select.addEventListener("change", () => chosen(select.value));
  return { row: h("div", { class: "choice" }, h("label", { for: id }, label), select), select };
}

/** A labelled box to tick. */
export function tick(label: string, value: boolean, chosen: (value: boolean) => void): HTMLElement {
  const id = unique("tick");
  const input = h("input", { id, type: "checkbox", checked: value });
  input.addEventListener("change", () => chosen(input.checked));
  return h("div", { class: "tick" }, input, h("label", { for: id }, label));
}

export function button(text: string, pressed: () => void, kind = ""): HTMLButtonElement {
  return h("button", { type: "button", class: kind, click: pressed }, text);
}

/** A box with a heading. */
export function panel(title: string, ...children: Child[]): HTMLElement {
  const id = unique("panel");
  return h("section", { class: "panel", "aria-labelledby": id }, h("h3", { id }, title), ...children);
}

/** Calls after a pause without further calls. */
export function settled<A extends unknown[]>(wait: number, act: (...args: A) => void): (...args: A) => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  return (...args: A) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...args), wait);
  };
}

export const pause = (milliseconds: number): Promise<void> => new Promise((go) => setTimeout(go, milliseconds));

/** Let the browser do something else in between; a timer of zero would wait for four milliseconds. */
export function breathe(): Promise<void> {
  return new Promise((go) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      go();
    };
    port2.postMessage(null);
  });
}

export const prefersStill = (): boolean => matchMedia("(prefers-reduced-motion: reduce)").matches;
