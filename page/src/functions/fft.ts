/** The discrete Fourier transform of powers of two, in place: re, im ↦ Σ x_j e^{∓2πijk/n}. */
export function fft(re: Float64Array, im: Float64Array, back = false): void {
  const n = re.length;
  for (let i = 1, j = 0; i < n; i += 1) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [re[i], re[j]] = [re[j] as number, re[i] as number];
      [im[i], im[j]] = [im[j] as number, im[i] as number];
    }
  }
  for (let length = 2; length <= n; length <<= 1) {
    const angle = ((back ? 2 : -2) * Math.PI) / length;
    const half = length >> 1;
    for (let k = 0; k < half; k += 1) {
      const c = Math.cos(angle * k);
      const s = Math.sin(angle * k);
      for (let i = k; i < n; i += length) {
        const j = i + half;
        const x = (re[j] as number) * c - (im[j] as number) * s;
        const y = (re[j] as number) * s + (im[j] as number) * c;
        re[j] = (re[i] as number) - x;
        im[j] = (im[i] as number) - y;
        re[i] = (re[i] as number) + x;
        im[i] = (im[i] as number) + y;
      }
    }
  }
  if (!back) return;
  for (let i = 0; i < n; i += 1) {
    re[i] = (re[i] as number) / n;
    im[i] = (im[i] as number) / n;
  }
}
