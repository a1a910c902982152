import type { Scene } from "../studio";
import { sizes } from "./sizes";

/** In the order of the bar. */
export const scenes: Scene[] = [sizes];
