// Renders what pymdownx.arithmatex marked, with the KaTeX beside this file: nothing is fetched from elsewhere.
function renderFormulas() {
  document.querySelectorAll(".arithmatex").forEach(function (element) {
    var text = element.textContent.trim();
    var display = text.startsWith("\\[");
    var source = text.replace(/^\\[\[(]/, "").replace(/\\[\])]$/, "");
    katex.render(source, element, { displayMode: display, throwOnError: false, strict: false });
  });
}
if (typeof document$ !== "undefined") {
  document$.subscribe(renderFormulas);
} else {
  document.addEventListener("DOMContentLoaded", renderFormulas);
}
