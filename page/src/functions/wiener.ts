/** From samples at any points of the circle to values on equal nodes: the Wiener filter of `models.latent.Latent`. */

export interface Prior {
  /** Variances of the waves 0, 1, 2, … */
  spectrum: number[];
  noise: number;
}

/** Half the gaps to both neighbours around the circle; equal points share theirs. */
export function measure(points: readonly number[]): number[] {
  const n = points.length;
  const order = points.map((_, i) => i).sort((a, b) => (points[a] as number) - (points[b] as number));
  const found = new Array<number>(n).fill(1);
  if (n < 2) return found;
  order.forEach((place, rank) => {
    const before = points[order[(rank + n - 1) % n] as number] as number;
    const after = points[order[(rank + 1) % n] as number] as number;
    const own = points[place] as number;
    const left = (own - before + 1) % 1;
    const right = (after - own + 1) % 1;
    found[place] = (left + right) / 2 || 1e-9;
  });
  return found;
}

/** E[u(nodes) | u(points)] of a function whose waves have the variances of the prior. */
export function laid(points: readonly number[], values: readonly number[], nodes: number, prior: Prior): Float64Array {
  const root = prior.spectrum.map(Math.sqrt);
  const both = [...root, ...root];
  const count = both.length;
  const waves = (t: number): Float64Array => {
    const row = new Float64Array(count);
    for (let k = 0; k < root.length; k += 1) {
      const angle = 2 * Math.PI * k * t;
      row[k] = Math.cos(angle) * (root[k] as number);
      row[k + root.length] = Math.sin(angle) * (root[k] as number);
    }
    return row;
  };
  const weights = measure(points);
  const total = weights.reduce((a, b) => a + b, 0);
  const noise = prior.noise ** 2 * both.reduce((a, b) => a + b * b, 0);
  const matrix = Array.from({ length: count }, () => new Float64Array(count));
  const right = new Float64Array(count);
  points.forEach((t, i) => {
    const row = waves(t);
    const share = (weights[i] as number) / total;
    for (let a = 0; a < count; a += 1) {
      const scaled = share * (row[a] as number);
      right[a] = (right[a] as number) + scaled * (values[i] as number);
      const line = matrix[a] as Float64Array;
      for (let b = 0; b <= a; b += 1) line[b] = (line[b] as number) + scaled * (row[b] as number);
    }
  });
  for (let a = 0; a < count; a += 1) (matrix[a] as Float64Array)[a] = ((matrix[a] as Float64Array)[a] as number) + noise;
  const c = solved(matrix, right);
  return Float64Array.from({ length: nodes }, (_, i) => {
    const row = waves(i / nodes);
    let sum = 0;
    for (let a = 0; a < count; a += 1) sum += (row[a] as number) * (c[a] as number);
    return sum;
  });
}

/** A symmetric positive system whose lower half is given, by Cholesky; the matrix is used up. */
export function solved(matrix: Float64Array[], right: Float64Array): Float64Array {
  const n = right.length;
  const at = (i: number, j: number): number => (matrix[i] as Float64Array)[j] as number;
  for (let j = 0; j < n; j += 1) {
    for (let i = j; i < n; i += 1) {
      let sum = at(i, j);
      for (let k = 0; k < j; k += 1) sum -= at(i, k) * at(j, k);
      (matrix[i] as Float64Array)[j] = i === j ? Math.sqrt(Math.max(sum, 1e-300)) : sum / at(j, j);
    }
  }
  const x = right.slice();
  for (let i = 0; i < n; i += 1) {
    for (let k = 0; k < i; k += 1) x[i] = (x[i] as number) - at(i, k) * (x[k] as number);
    x[i] = (x[i] as number) / at(i, i);
  }
  for (let i = n - 1; i >= 0; i -= 1) {
    for (let k = i + 1; k < n; k += 1) x[i] = (x[i] as number) - at(k, i) * (x[k] as number);
    x[i] = (x[i] as number) / at(i, i);
  }
  return x;
}
