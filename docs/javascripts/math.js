// Typesets \(…\) and \[…\] with MathJax 3. Nothing is fetched when the documentation is built.
// For pages that work with no network, copy MathJax's es5 folder to docs/javascripts/mathjax; it is tried first.
// If neither source answers, the TeX stays readable as text.
const sources = [
  new URL("mathjax/tex-chtml.js", document.currentScript.src).href,
  "https://cdn.jsdelivr.net/npm/mathjax@3.2.2/es5/tex-chtml.js",
];

window.MathJax = {
  tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]] },
  options: { ignoreHtmlClass: ".*|", processHtmlClass: "arithmatex" },
};

function load([first, ...rest]) {
  if (!first) return;
  const script = document.createElement("script");
  script.src = first;
  script.async = true;
  script.onerror = () => load(rest);
  document.head.appendChild(script);
}

if (document.querySelector(".arithmatex")) load(sources);
