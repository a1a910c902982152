/** Points on a sphere or circle, drawn by three.js: rotate it, or drag a token. */

import {
  BufferAttribute,
  BufferGeometry,
  Color,
  ColorManagement,
  Group,
  LineBasicMaterial,
  LineSegments,
  LinearSRGBColorSpace,
  PerspectiveCamera,
  Points,
  Scene,
  ShaderMaterial,
  Vector3,
  WebGLRenderer,
} from "three";
import { Problem } from "../bundle";
import { colour } from "../theme";

ColorManagement.enabled = false; // colours are those of the style sheet, as they are

const VERTEX = `
attribute vec3 shade;
varying vec3 tint;
varying float depth;
uniform float size;
void main() {
  tint = shade;
  vec4 place = modelViewMatrix * vec4(position, 1.0);
  depth = clamp((-place.z - 2.2) / 2.0, 0.0, 1.0);
  gl_PointSize = size * (3.2 / -place.z);
  gl_Position = projectionMatrix * place;
}`;
const FRAGMENT = `
varying vec3 tint;
varying float depth;
uniform vec3 paper;
void main() {
  vec2 off = gl_PointCoord - 0.5;
  if (dot(off, off) > 0.25) discard;
  gl_FragColor = vec4(mix(tint, paper, 0.72 * depth), 1.0);
}`;

export interface Grabs {
  began(token: number): void;
  moved(token: number, place: number[]): void;
  ended(token: number): void;
}

export class Stage {
  readonly canvas = document.createElement("canvas");
  private readonly renderer: WebGLRenderer;
  private readonly scene = new Scene();
  private readonly camera = new PerspectiveCamera(38, 1, 0.1, 20);
  private readonly group = new Group();
  private geometry = new BufferGeometry();
  private readonly material: ShaderMaterial;
  private readonly frame: LineSegments;
  private grabbed: number | null = null;
  private turning: { x: number; y: number } | null = null;
  private readonly watcher: ResizeObserver;
  frames = 0;

  constructor(
    private readonly d: 2 | 3,
    words: string,
    private readonly grabs: Grabs | null,
    frame: Frame = d === 2 ? "circle" : "sphere",
  ) {
    this.canvas.className = "stage";
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", words);
    try {
      this.renderer = new WebGLRenderer({ canvas: this.canvas, antialias: hasCard(), alpha: false });
    } catch {
      const remedy = "Allow WebGL in the settings of the browser, or use another one.";
      throw new Problem("This browser cannot draw in three dimensions.", remedy);
    }
    this.renderer.outputColorSpace = LinearSRGBColorSpace;
    this.material = new ShaderMaterial({
      vertexShader: VERTEX,
      fragmentShader: FRAGMENT,
      uniforms: { size: { value: 8 }, paper: { value: new Color(1, 1, 1) } },
    });
    this.camera.position.set(0, 0, d === 2 ? 3.3 : 3.4);
    const line = new LineBasicMaterial({ transparent: true, opacity: frame === "sphere" ? 0.3 : 0.6 });
    this.frame = new LineSegments(FRAMES[frame](), line);
    this.group.add(this.frame);
    this.scene.add(this.group);
    if (d === 3) this.group.rotation.set(0.35, 0.5, 0);
    this.listen();
    this.paint();
    this.watcher = new ResizeObserver(() => this.fit());
    this.watcher.observe(this.canvas);
  }

  /** Begin with so many tokens, each with a colour. */
  begin(n: number, shades: Float32Array, size = 8): void {
    this.geometry.dispose();
    for (const child of [...this.group.children]) if (child instanceof Points) this.group.remove(child);
    this.geometry = new BufferGeometry();
    this.geometry.setAttribute("position", new BufferAttribute(new Float32Array(3 * n), 3));
    this.geometry.setAttribute("shade", new BufferAttribute(shades, 3));
    (this.material.uniforms["size"] as { value: number }).value = size * (hasCard() ? devicePixelRatio : COARSE);
    const points = new Points(this.geometry, this.material);
    points.frustumCulled = false;
    this.group.add(points);
  }

  /** Draw tokens [n, d]. */
  draw(x: Float64Array | Float32Array, d: number): void {
    const place = this.geometry.getAttribute("position") as BufferAttribute;
    const array = place.array as Float32Array;
    const n = Math.min(array.length / 3, x.length / d);
    for (let i = 0; i < n; i += 1) {
      array[3 * i] = x[d * i] as number;
      array[3 * i + 1] = x[d * i + 1] as number;
      array[3 * i + 2] = d > 2 ? (x[d * i + 2] as number) : 0;
    }
    place.needsUpdate = true;
    this.renderer.render(this.scene, this.camera);
    this.frames += 1;
  }

  /** Colours of the style sheet. */
  paint(): void {
    const paper = new Color(colour("paper") || "#ffffff");
    this.renderer.setClearColor(paper, 1);
    (this.material.uniforms["paper"] as { value: Color }).value = paper;
    (this.frame.material as LineBasicMaterial).color = new Color(colour("soft") || "#888888");
  }

  private fit(): void {
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (width === 0 || height === 0) return;
    this.renderer.setPixelRatio(hasCard() ? Math.min(2, devicePixelRatio) : COARSE);
    this.renderer.setSize(width, height, false);
    this.camera.aspect = width / height;
    this.camera.updateProjectionMatrix();
    this.renderer.render(this.scene, this.camera);
  }

  private listen(): void {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      const token = this.grabs === null ? null : this.near(event, 14);
      if (token !== null) {
        this.grabbed = token;
        this.grabs?.began(token);
      } else if (this.d === 3) this.turning = { x: event.clientX, y: event.clientY };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.grabbed !== null) {
        const place = this.under(event);
        if (place !== null) this.grabs?.moved(this.grabbed, place);
      } else if (this.turning !== null) {
        this.turn((event.clientX - this.turning.x) / 160, (event.clientY - this.turning.y) / 160);
        this.turning = { x: event.clientX, y: event.clientY };
      } else if (this.grabs !== null) canvas.classList.toggle("grab", this.near(event, 14) !== null);
    });
    const end = (): void => {
      if (this.grabbed !== null) this.grabs?.ended(this.grabbed);
      this.grabbed = null;
      this.turning = null;
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("keydown", (event) => {
      const turns: Record<string, [number, number]> = {
        ArrowLeft: [-0.12, 0],
        ArrowRight: [0.12, 0],
        ArrowUp: [0, -0.12],
        ArrowDown: [0, 0.12],
      };
      const found = turns[event.key];
      if (found === undefined || this.d === 2) return;
      event.preventDefault();
      this.turn(...found);
    });
  }

  turn(yaw: number, pitch: number): void {
    this.group.rotation.y += yaw;
    this.group.rotation.x = Math.max(-1.5, Math.min(1.5, this.group.rotation.x + pitch));
    this.renderer.render(this.scene, this.camera);
  }

  private screen(event: PointerEvent): { x: number; y: number } {
    const box = this.canvas.getBoundingClientRect();
    return { x: ((event.clientX - box.left) / box.width) * 2 - 1, y: 1 - ((event.clientY - box.top) / box.height) * 2 };
  }

  /** The nearest token within some pixels that faces us. */
  private near(event: PointerEvent, pixels: number): number | null {
    const at = this.screen(event);
    const place = this.geometry.getAttribute("position") as BufferAttribute | undefined;
    if (place === undefined) return null;
    const half = { x: this.canvas.clientWidth / 2, y: this.canvas.clientHeight / 2 };
    let best: number | null = null;
    let least = pixels * pixels;
    const point = new Vector3();
    for (let i = 0; i < place.count; i += 1) {
      point.fromBufferAttribute(place, i).applyMatrix4(this.group.matrixWorld);
      if (this.d === 3 && point.z < 0) continue;
      point.project(this.camera);
      const distance = ((point.x - at.x) * half.x) ** 2 + ((point.y - at.y) * half.y) ** 2;
      if (distance < least) {
        least = distance;
        best = i;
      }
    }
    return best;
  }

  /** The point of the sphere (or circle) under the pointer. */
  private under(event: PointerEvent): number[] | null {
    const at = this.screen(event);
    const ray = new Vector3(at.x, at.y, 0.5).unproject(this.camera).sub(this.camera.position).normalize();
    const eye = this.camera.position;
    if (this.d === 2) {
      const reach = -eye.z / ray.z;
      const found = new Vector3(eye.x + reach * ray.x, eye.y + reach * ray.y, 0);
      if (found.length() === 0) return null;
      found.normalize();
      return [found.x, found.y];
    }
    const b = eye.dot(ray);
    const root = b * b - eye.lengthSq() + 1;
    const reach = -b - Math.sqrt(Math.max(0, root));
    const found = eye.clone().addScaledVector(ray, reach).normalize();
    found.applyMatrix4(this.group.matrixWorld.clone().invert());
    return [found.x, found.y, found.z];
  }

  close(): void {
    this.watcher.disconnect();
    this.geometry.dispose();
    this.material.dispose();
    this.renderer.dispose();
    this.renderer.forceContextLoss();
  }
}

const COARSE = 0.75; // pixels drawn for each of the screen, where the processor draws them
let card: boolean | undefined;

/** Whether a graphics card draws: without one smooth edges would cost most of the time. */
function hasCard(): boolean {
  if (card === undefined) {
    const gl = document.createElement("canvas").getContext("webgl2");
    const about = gl?.getExtension("WEBGL_debug_renderer_info");
    const name = gl && about ? String(gl.getParameter(about.UNMASKED_RENDERER_WEBGL)) : "";
    card = !/swiftshader|llvmpipe|software/i.test(name);
    gl?.getExtension("WEBGL_lose_context")?.loseContext();
  }
  return card;
}

type Frame = "circle" | "sphere" | "axes";
type Place = [number, number, number];

/** Segments between the points of some paths. */
function segments(paths: Place[][]): BufferGeometry {
  const places = paths.flatMap((path) => path.slice(1).flatMap((to, i) => [...(path[i] as Place), ...to]));
  return new BufferGeometry().setAttribute("position", new BufferAttribute(Float32Array.from(places), 3));
}

const around = (count: number): number[] => Array.from({ length: count + 1 }, (_, i) => (2 * Math.PI * i) / count);

const FRAMES: Record<Frame, () => BufferGeometry> = {
  circle: () => segments([around(128).map((a): Place => [Math.cos(a), Math.sin(a), 0])]),
  axes: () => segments([[[-1, 0, 0], [1, 0, 0]], [[0, -1, 0], [0, 1, 0]], [[0, 0, -1], [0, 0, 1]]]),
  sphere: () => {
    const r = 0.99;
    const parallels = [-60, -30, 0, 30, 60].map((degrees) => {
      const b = (degrees * Math.PI) / 180;
      return around(72).map((a): Place => [r * Math.cos(b) * Math.cos(a), r * Math.sin(b), r * Math.cos(b) * Math.sin(a)]);
    });
    const meridians = [0, 30, 60, 90, 120, 150].map((degrees) => {
      const a = (degrees * Math.PI) / 180;
      return around(72).map((b): Place => [r * Math.cos(b) * Math.cos(a), r * Math.sin(b), r * Math.cos(b) * Math.sin(a)]);
    });
    return segments([...parallels, ...meridians]);
  },
};

/** A colour for each token, around the circle of hues by its first angle. */
export function hues(x: Float64Array, d: number): Float32Array {
  const n = x.length / d;
  const found = new Float32Array(3 * n);
  const made = new Color();
  for (let i = 0; i < n; i += 1) {
    const angle = Math.atan2(x[d * i + 1] as number, x[d * i] as number);
    const light = d > 2 ? 0.46 + 0.1 * (x[d * i + 2] as number) : 0.48;
    made.setHSL(angle / (2 * Math.PI) + 0.5, 0.72, light);
    found.set([made.r, made.g, made.b], 3 * i);
  }
  return found;
}
