import { h } from "./dom";

type Theme = "light" | "dark";

const KEY = "continua-theme";

function usual(): Theme {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function chosen(): Theme {
  const kept = localStorage.getItem(KEY);
  return kept === "dark" || kept === "light" ? kept : usual();
}

/** Dark or light, as the system says unless told otherwise. */
export function themeButton(): HTMLButtonElement {
  const made = h("button", { type: "button", class: "quiet" });
  const show = (theme: Theme): void => {
    document.documentElement.dataset["theme"] = theme;
    made.textContent = theme === "dark" ? "Light" : "Dark";
    made.setAttribute("aria-label", theme === "dark" ? "Use light colours" : "Use dark colours");
    dispatchEvent(new Event("continua-theme"));
  };
  made.addEventListener("click", () => {
    const next: Theme = document.documentElement.dataset["theme"] === "dark" ? "light" : "dark";
    localStorage.setItem(KEY, next);
    show(next);
  });
  show(chosen());
  return made;
}

/** A colour of the style sheet, for canvases. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
