/**
 * Just enough of protobuf to give inputs of an ONNX model their values for good, as `continua.session.protobuf` does: the
 * runtime then folds slices of weights into weights and drops branches that are not taken, which makes tokens quicker.
 */

const GRAPH = 7; // fields of ModelProto, GraphProto, ValueInfoProto and TensorProto
const INITIALIZER = 5;
const INPUT = 11;
const OUTPUT = 12;
const VALUE_NAME = 1;
const BYTES = 2;
const KINDS = { float32: 1, int64: 7 } as const;

export interface Constant {
  kind: keyof typeof KINDS;
  dims: number[];
  data: Uint8Array;
}

interface Field {
  number: number;
  begin: number;
  content: number;
  end: number;
}

function varint(view: Uint8Array, start: number): [value: number, place: number] {
  let value = 0;
  let factor = 1;
  for (let place = start; place < start + 10; place += 1) {
    const byte = view[place];
    if (byte === undefined) break;
    value += (byte & 127) * factor;
    if (byte < 128) return [value, place + 1];
    factor *= 128;
  }
  throw new Error("this is no whole ONNX file");
}

/** The fields of the message between two places. */
export function* fields(view: Uint8Array, begin: number, end: number): Generator<Field> {
  let place = begin;
  while (place < end) {
    const start = place;
    const [key, behind] = varint(view, place);
    const wire = key & 7;
    let content = behind;
    if (wire === 0) [, place] = varint(view, behind);
    else if (wire === BYTES) {
      const [length, inner] = varint(view, behind);
      content = inner;
      place = inner + length;
    } else if (wire === 1) place = behind + 8;
    else if (wire === 5) place = behind + 4;
    else throw new Error("this is no whole ONNX file");
    if (place > end) throw new Error("this is no whole ONNX file");
    yield { number: Math.floor(key / 8), begin: start, content, end: place };
  }
}

function nameOf(view: Uint8Array, value: Field): string {
  for (const one of fields(view, value.content, value.end)) {
    if (one.number === VALUE_NAME) return new TextDecoder().decode(view.subarray(one.content, one.end));
  }
  return "";
}

function number(value: number): number[] {
  const made: number[] = [];
  let rest = value;
  while (rest > 127) {
    made.push((rest % 128) | 128);
    rest = Math.floor(rest / 128);
  }
  made.push(rest);
  return made;
}

function joined(parts: readonly Uint8Array[]): Uint8Array {
  const made = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let place = 0;
  for (const part of parts) {
    made.set(part, place);
    place += part.length;
  }
  return made;
}

function message(field: number, content: Uint8Array): Uint8Array {
  return joined([Uint8Array.from([...number(field * 8 + BYTES), ...number(content.length)]), content]);
}

function tensor(name: string, { kind, dims, data }: Constant): Uint8Array {
  const head = [...dims.flatMap((length) => [1 << 3, ...number(length)]), 2 << 3, KINDS[kind]];
  return joined([Uint8Array.from(head), message(8, new TextEncoder().encode(name)), message(9, data)]);
}

/** The same model with constants in the place of some inputs, and without some outputs. */
export function fixed(model: Uint8Array, values: Map<string, Constant>, drop: Set<string>): Uint8Array {
  const parts: Uint8Array[] = [];
  for (const one of fields(model, 0, model.length)) {
    if (one.number !== GRAPH) {
      parts.push(model.subarray(one.begin, one.end));
      continue;
    }
    const kept: Uint8Array[] = [];
    for (const inner of fields(model, one.content, one.end)) {
      const gone =
        (inner.number === INPUT && values.has(nameOf(model, inner))) ||
        (inner.number === OUTPUT && drop.has(nameOf(model, inner)));
      if (!gone) kept.push(model.subarray(inner.begin, inner.end));
    }
    for (const [name, constant] of values) kept.push(message(INITIALIZER, tensor(name, constant)));
    parts.push(message(GRAPH, joined(kept)));
  }
  return joined(parts);
}
