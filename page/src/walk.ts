/** A guided walk of eight short steps through all scenes. */

import { button, h } from "./dom";
import type { Studio } from "./studio";

interface Step {
  scene: string;
  values: Record<string, string | number | boolean>;
  title: string;
  words: string;
}

function steps(studio: Studio): Step[] {
  const { native } = studio.bundle.about;
  const half = { d: Math.max(2, native.d >> 1), h: Math.max(1, native.h >> 1), z: Math.max(1, native.z >> 1) };
  return [
    {
      scene: "sizes",
      values: { d: native.d, h: native.h, z: native.z },
      title: "One model, running here",
      words: "This model runs in your browser. It writes on from the prompt; change the prompt and it begins anew.",
    },
    {
      scene: "sizes",
      values: half,
      title: "Half of everything",
      words:
        "The same weights with half the width, heads and steps. Nothing was trained for this moment: a size is a choice of grid. Watch the dot move on the picture of cost and loss.",
    },
    {
      scene: "sizes",
      values: { ...half, draft: true, heat: 0 },
      title: "The small size writes ahead",
      words:
        "The small size guesses a few tokens, the native one reads them in one pass and keeps those it agrees with. The text is exactly the native one.",
    },
    {
      scene: "batch",
      values: {},
      title: "One text, all the way",
      words: "Tokens become a field over depth and width. Move the depth: between two steps the field is defined too.",
    },
    {
      scene: "particles",
      values: { beta: 9, on: "circle" },
      title: "Tokens are particles",
      words: "Without learned weights, attention alone draws tokens together. At β = 9 on the circle about four groups win.",
    },
    {
      scene: "particles",
      values: { beta: 4, on: "sphere" },
      title: "The same on a sphere",
      words: "The energy climbs in stairs: clusters form quickly, then merge slowly. Drag a token and see who follows.",
    },
    {
      scene: "real",
      values: {},
      title: "And in a real model?",
      words: "Tokens of a trained sentence encoder from layer to layer, beside particles that only attract one another.",
    },
    {
      scene: "functions",
      values: {},
      title: "Functions, on any grid",
      words: "Here tokens are points of space. Draw a wave, choose where it is measured, and see where the flow takes it.",
    },
  ];
}

export class Walk {
  readonly root = h("aside", { class: "walk", "aria-label": "Guided walk", hidden: true });

  constructor(private readonly studio: Studio) {}

  start(): void {
    this.go(1);
  }

  private go(number: number): void {
    const step = steps(this.studio)[number - 1];
    if (step === undefined) return;
    this.studio.address.go(step.scene, { ...step.values, walk: number });
  }

  /** As the address says. */
  show(): void {
    const every = steps(this.studio);
    const number = this.studio.address.whole("walk", 0, 1, every.length);
    const step = every[number - 1];
    this.root.hidden = step === undefined;
    if (step === undefined) return;
    const back = button("Back", () => this.go(number - 1), "quiet");
    const next = button(number < every.length ? "Next" : "Done", () => {
      if (number < every.length) this.go(number + 1);
      else this.end();
    });
    back.disabled = number === 1;
    this.root.replaceChildren(
      h(
        "div",
        { class: "walk-words", role: "status" },
        h("p", { class: "walk-title" }, `${number} of ${every.length} · ${step.title}`),
        h("p", {}, step.words),
      ),
      h("div", { class: "walk-buttons" }, back, next, button("Leave", () => this.end(), "quiet")),
    );
  }

  private end(): void {
    this.studio.address.set({ walk: null });
    this.show();
  }
}
