/** The solver beside the page, so that drawing never waits for it: it sends states with velocities, on demand. */

import { randomness } from "../model/writing";
import { Flow, groups, type Law } from "./particles";

export interface Begin {
  kind: "begin";
  /** Comes back with every state, so that late ones are known. */
  turn: number;
  x: Float64Array;
  d: number;
  law: Law;
  seed: number;
}
export interface Change {
  kind: "change";
  law: Law;
}
export interface Go {
  kind: "go";
  step: number;
  /** How far a group is linked, in radians. */
  angle: number;
}
export interface Hold {
  kind: "hold";
  token: number;
  place: number[] | null;
}
export type Order = Begin | Change | Go | Hold;

export interface Knot {
  turn: number;
  time: number;
  x: Float64Array;
  v: Float64Array;
  energy: number;
  powers: number[];
  groups: number;
  milliseconds: number;
}

export const MODES = 16;

let flow: Flow | undefined;
let law: Law | undefined;
let draw = randomness(0);
let held: { token: number; place: number[] } | undefined;
let turn = 0;
let knots = 0;
let linked = 0;

function hold(): void {
  if (flow === undefined || held === undefined) return;
  for (let k = 0; k < flow.d; k += 1) flow.x[held.token * flow.d + k] = held.place[k] as number;
}

function told(began: number, angle: number): void {
  if (flow === undefined) return;
  const v = new Float64Array(flow.x.length);
  flow.velocity(flow.x, v, true);
  if (held !== undefined) v.fill(0, held.token * flow.d, (held.token + 1) * flow.d);
  const { energy, powers } = flow.looks(MODES);
  if (knots % 4 === 0) linked = groups(flow.x, flow.d, angle);
  knots += 1;
  const milliseconds = performance.now() - began;
  const knot: Knot = { turn, time: flow.time, x: flow.x.slice(), v, energy, powers, groups: linked, milliseconds };
  postMessage(knot, { transfer: [knot.x.buffer, v.buffer] });
}

addEventListener("message", ({ data }: MessageEvent<Order>) => {
  const began = performance.now();
  if (data.kind === "begin") {
    turn = data.turn;
    knots = 0;
    held = undefined;
    law = data.law;
    draw = randomness(data.seed);
    flow = new Flow(data.x, data.d, data.law);
    told(began, 0.1);
  } else if (data.kind === "change") {
    law = data.law;
    flow?.change(data.law);
  } else if (data.kind === "hold") {
    held = data.place === null ? undefined : { token: data.token, place: data.place };
    hold();
  } else if (flow !== undefined && law !== undefined) {
    const until = flow.time + data.step;
    if (Number.isFinite(law.kappa)) flow.advanceNoisy(until, draw);
    else flow.advance(until, data.step);
    hold();
    told(began, data.angle);
  }
});
