import { defineConfig, type Plugin } from "vite";
import { createHash } from "node:crypto";
import { gzipSync } from "node:zlib";
import { readFileSync, readdirSync, statSync, writeFileSync, existsSync } from "node:fs";
import { join, relative, sep } from "node:path";

const HERE = import.meta.dirname;
const OUT = join(HERE, "..", "continua", "studio", "page");
const RUNTIME = join(HERE, "node_modules", "onnxruntime-web", "dist", "ort-wasm-simd-threaded.wasm");

const sha256 = (content: Uint8Array | string): string => createHash("sha256").update(content).digest("hex");

function files(folder: string): string[] {
  return readdirSync(folder).flatMap((name) => {
    const path = join(folder, name);
    return statSync(path).isDirectory() ? files(path) : [path];
  });
}

/** The same number as `continua.studio.page.source_hash`. */
function sourceHash(): string {
  const named = ["index.html", "package-lock.json", "tsconfig.json", "vite.config.ts"].map((name) => join(HERE, name));
  const inner = files(join(HERE, "src")).filter((path) => !path.endsWith(".test.ts"));
  const all = [...named, ...inner].map((path) => ({ path, name: relative(HERE, path).split(sep).join("/") }));
  all.sort((a, b) => (a.name < b.name ? -1 : 1));
  const total = createHash("sha256");
  for (const { path, name } of all) total.update(`${name}\n`).update(sha256(readFileSync(path)));
  return total.digest("hex");
}

/** Keeps the WebAssembly of the runtime compressed, under a name of our own, and writes the manifest. */
function finished(): Plugin {
  return {
    name: "continua-finished",
    generateBundle(_, bundle) {
      for (const name of Object.keys(bundle)) if (name.endsWith(".wasm")) delete bundle[name];
    },
    writeBundle() {
      const packed = gzipSync(readFileSync(RUNTIME), { level: 9 });
      packed[9] = 255; // the operating system: none, so that every machine builds the same file
      writeFileSync(join(OUT, "ort.wasm.gz"), packed);
      const made = files(OUT).filter((path) => !path.endsWith("manifest.json"));
      const hashes = made.map((path) => [relative(OUT, path).split(sep).join("/"), sha256(readFileSync(path))]);
      const manifest = { sources: sourceHash(), ...Object.fromEntries(hashes.sort()) };
      writeFileSync(join(OUT, "manifest.json"), `${JSON.stringify(manifest, null, 1)}\n`);
      if (!existsSync(join(OUT, "index.html"))) throw new Error("no index.html was built");
    },
  };
}

export default defineConfig({
  base: "./",
  build: {
    outDir: OUT,
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 800,
    rollupOptions: {
      output: {
        entryFileNames: "assets/[name].js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
      },
    },
  },
  worker: { format: "es", rollupOptions: { output: { entryFileNames: "assets/[name].js" } } },
  plugins: [finished()],
});
