/** The page: a bar of scenes, the scene that the address names, the walk, dark and light. */

import { Problem, readJson, type Bundle } from "./bundle";
import { button, h } from "./dom";
import { loadAll, scenes } from "./scenes";
import { Studio } from "./studio";
import { themeButton } from "./theme";
import { Walk } from "./walk";
import "./style.css";

const INDEX = "bundle.json";
const AFTER = 1500; // milliseconds until all other scenes are loaded too

/** The token is in the fragment, which never leaves the browser; it is taken out of the address at once. */
function takeToken(): string {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found !== null) {
    sessionStorage.setItem("continua-token", found);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return found ?? sessionStorage.getItem("continua-token") ?? "";
}

async function begin(): Promise<void> {
  const app = document.getElementById("app") as HTMLElement;
  const messages = h("div", { class: "messages" });
  const bar = h("div", { class: "bar", "aria-live": "polite" });
  const main = app.querySelector("main") as HTMLElement;
  let bundle: Bundle;
  try {
    bundle = await readJson<Bundle>(INDEX);
  } catch (problem) {
    const words = problem instanceof Problem ? problem.message : String(problem);
    main.replaceChildren(h("p", { class: "problem", role: "alert" }, words));
    return;
  }
  const studio = new Studio(bundle, messages, bar);
  studio.token = takeToken();
  Object.assign(globalThis, { studio, ready: () => studio.ready(loadAll) }); // for whoever opens the console, and for tests
  const shown = scenes.filter((scene) => scene.name !== "runs" || (bundle.live && studio.token !== ""));
  const nav = h("nav", { "aria-label": "Scenes" });
  const walk = new Walk(studio);
  const header = app.querySelector("header") as HTMLElement;
  const tools = h("div", { class: "tools" }, button("Walk", () => walk.start(), "quiet walk-start"), themeButton());
  header.append(h("span", { class: "of" }, bundle.name), nav, tools);
  main.before(messages, bar);
  main.after(walk.root);

  let close: (() => void) | undefined;
  let turn = 0;
  const open = async (): Promise<void> => {
    turn += 1;
    const own = turn;
    close?.();
    close = undefined;
    const wanted = studio.address.text("scene", "sizes");
    const scene = shown.find((one) => one.name === wanted) ?? shown[0];
    if (scene === undefined) return;
    nav.replaceChildren(
      ...shown.map((one) =>
        h(
          "a",
          {
            href: `?scene=${one.name}`,
            "aria-current": one === scene ? "page" : null,
            click: (event: MouseEvent) => {
              if (event.ctrlKey || event.metaKey || event.shiftKey) return;
              event.preventDefault();
              studio.address.go(one.name);
            },
          },
          one.title,
        ),
      ),
    );
    nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    document.title = `${scene.title} · Continua studio`;
    const root = h("div", { class: `scene scene-${scene.name}`, "data-scene": scene.name });
    main.replaceChildren(h("div", { class: "lead" }, h("h2", {}, scene.title), h("p", {}, scene.words)), root);
    walk.show();
    studio.clearProblems();
    try {
      const ended = await scene.open(root, studio);
      if (own === turn) close = ended;
      else ended();
    } catch (problem) {
      if (own === turn) studio.tell(problem);
    }
  };
  studio.address.onMove(() => void open());
  await open();
  // a while later, so that it is in nobody's way
  setTimeout(() => void studio.ready(loadAll).catch(() => undefined), AFTER);
}

void begin();
