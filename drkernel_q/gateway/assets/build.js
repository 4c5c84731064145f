// Building elements. Text is only ever set as text: much of it was written by models.

const SVG = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Put new content in place, and the focus back on what it was on; `data-key` tells which that is.
export function replace(target, ...children) {
  const key = target.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const scrolled = [...target.querySelectorAll("[data-scroll]")].map((each) => [each.dataset.scroll, each.scrollTop]);
  target.replaceChildren(...children);
  if (key !== undefined) target.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  for (const [name, top] of scrolled) {
    const each = target.querySelector(`[data-scroll="${CSS.escape(name)}"]`);
    if (each) each.scrollTop = top;
  }
}

export function table(heads, rows) {
  const head = el("tr", {}, ...heads.map(([text, kind]) => el("th", { scope: "col", class: kind }, text)));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
}

export function none(text) {
  return el("p", { class: "muted" }, text);
}

export const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
export const times = (value) => (value === null || value === undefined ? "–" : `${value.toPrecision(3)}×`);
export const share = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);

export function ago(text) {
  if (!text) return "–";
  const seconds = Math.max(0, (Date.now() - new Date(text)) / 1000);
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}
