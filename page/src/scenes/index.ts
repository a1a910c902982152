import type { Scene, Studio } from "../studio";
import { batch } from "./batch";
import { runs } from "./runs";
import { sizes } from "./sizes";

/** A scene whose code is loaded when it is first opened: three.js is needed by few of them. */
function later(name: string, title: string, words: string, load: () => Promise<Scene>): Scene {
  return { name, title, words, open: async (root: HTMLElement, studio: Studio) => (await load()).open(root, studio) };
}

const LATER = [() => import("./particles"), () => import("./real"), () => import("./functions")];

/** The code of all scenes. */
export const loadAll = (): Promise<unknown> => Promise.all(LATER.map((load) => load()));

/** In the order of the bar. */
export const scenes: Scene[] = [
  sizes,
  batch,
  later(
    "particles",
    "Particles",
    "Tokens on a circle or sphere that attend to one another, and nothing else. Drag one of them, or turn the sphere.",
    async () => (await import("./particles")).particles,
  ),
  later(
    "real",
    "Real models",
    "Left, the tokens of a trained model from layer to layer. Right, particles that begin at the same directions and only attract one another.",
    async () => (await import("./real")).real,
  ),
  later(
    "functions",
    "Functions",
    "Here a token is a point of space. Draw a wave with the pointer, choose the points where it is measured, and see where Burgers' equation takes it.",
    async () => (await import("./functions")).functions,
  ),
  runs,
];
