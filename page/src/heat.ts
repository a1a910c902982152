/** Matrices as coloured cells on a canvas, with the number under the pointer. */

import { colour } from "./theme";
import { h } from "./dom";

type Rgb = [number, number, number];

/** A colour of the style sheet as numbers; a canvas writes every colour in the same way. */
function rgb(pen: CanvasRenderingContext2D, name: string): Rgb {
  pen.fillStyle = colour(name);
  const hex = String(pen.fillStyle).replace("#", "");
  return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)) as Rgb;
}

const mixed = (a: Rgb, b: Rgb, share: number): Rgb => a.map((value, i) => value + share * ((b[i] as number) - value)) as Rgb;

export class Heat {
  readonly canvas = h("canvas", { class: "heat", role: "img" });
  readonly root = h("div", { class: "heat-holder" }, this.canvas);

  constructor(private readonly told: (row: number, column: number) => void) {
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      const column = Math.floor(((event.clientX - box.left) / box.width) * this.canvas.width);
      const row = Math.floor(((event.clientY - box.top) / box.height) * this.canvas.height);
      if (row >= 0 && row < this.canvas.height && column >= 0 && column < this.canvas.width) this.told(row, column);
    });
  }

  /** `signed` values go from one colour through paper to another; others from paper to ink. */
  draw(rows: number, columns: number, at: (row: number, column: number) => number, signed: boolean, words: string): void {
    this.canvas.width = columns;
    this.canvas.height = rows;
    this.canvas.setAttribute("aria-label", words);
    const pen = this.canvas.getContext("2d");
    if (pen === null || rows === 0 || columns === 0) return;
    const paper = rgb(pen, "paper");
    const high = rgb(pen, "accent");
    const low = rgb(pen, "warm");
    let most = 1e-9;
    for (let r = 0; r < rows; r += 1) for (let c = 0; c < columns; c += 1) most = Math.max(most, Math.abs(at(r, c)));
    const picture = pen.createImageData(columns, rows);
    for (let r = 0; r < rows; r += 1) {
      for (let c = 0; c < columns; c += 1) {
        const share = at(r, c) / most;
        const [red, green, blue] = mixed(paper, signed && share < 0 ? low : high, Math.min(1, Math.abs(share) ** 0.7));
        picture.data.set([red, green, blue, 255], 4 * (r * columns + c));
      }
    }
    pen.putImageData(picture, 0, 0);
  }
}
