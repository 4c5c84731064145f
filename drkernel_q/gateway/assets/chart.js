// A line chart: steps from left to right, one or two series, the last value written out; a table says the same in words.

import { el, svg } from "./build.js";

const WIDTH = 620, HEIGHT = 190, LEFT = 40, RIGHT = 56, TOP = 10, BOTTOM = 24;

// `series` is a list of { name, points: [[step, value]] }; `show` writes a value, `mark` one of the axis.
export function chart(title, series, show, mark) {
  const points = series.flatMap((each) => each.points);
  const steps = points.map(([step]) => step);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const top = ceiling(Math.max(...points.map(([, value]) => value), 1e-9));
  const x = (step) => LEFT + ((WIDTH - LEFT - RIGHT) * (step - first)) / Math.max(1, last - first);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / top;
  const parts = [...grid(top, y, mark), ...stepLabels(first, last, x)];
  const labels = [];
  series.forEach((each, place) => {
    if (!each.points.length) return;
    const kind = place ? "second " : "";
    const path = each.points.map(([step, value], index) => `${index ? "L" : "M"}${x(step)},${y(value)}`).join("");
    parts.push(svg("path", { class: `${kind}line`, d: path }));
    const marked = each.points.length > 60 ? each.points.slice(-1) : each.points;
    for (const [step, value] of marked) {
      const dot = svg("circle", { class: `${kind}dot`, cx: x(step), cy: y(value), r: 3 });
      dot.append(svg("title", {}, `${each.name}, step ${step}: ${show(value)}`));
      parts.push(dot);
    }
    const [step, value] = each.points.at(-1);
    labels.push([x(step) + 8, y(value) + 4, show(value)]);
  });
  parts.push(...apart(labels).map(([left, height, text]) => svg("text", { class: "last", x: left, y: height }, text)));
  const told = series.filter((each) => each.points.length).map((each) => `${each.name} ${show(each.points.at(-1)[1])}`);
  const label = `${title}, steps ${first} to ${last}; at the end: ${told.join(", ")}`;
  const keys = series.map((each, place) => el("span", { class: place ? "key second" : "key" }, each.name));
  return el("figure", {},
    el("figcaption", {}, el("h3", {}, title), ...(series.length > 1 ? keys : [])),
    svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, ...parts));
}

function grid(top, y, mark) {
  return [0, 0.5, 1].flatMap((part) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(part * top), y2: y(part * top) }),
    svg("text", { x: LEFT - 6, y: y(part * top) + 4, "text-anchor": "end" }, mark(part * top)),
  ]);
}

function stepLabels(first, last, x) {
  const middle = Math.round((first + last) / 2);
  return [...new Set([first, middle, last])].map((step) =>
    svg("text", { x: x(step), y: HEIGHT - 6, "text-anchor": "middle" }, `${step}`));
}

// Labels that would lie on each other are moved apart.
function apart(labels) {
  const sorted = labels.toSorted((one, other) => one[1] - other[1]);
  for (let place = 1; place < sorted.length; place += 1) {
    sorted[place][1] = Math.max(sorted[place][1], sorted[place - 1][1] + 13);
  }
  return sorted;
}

// The next round number.
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((each) => each * power).find((each) => each >= value * 0.999);
}
