// The live page: asks again and again, shows what changed, and leaves focus, open turns and the reader's place alone.

import { ask, NotAllowed, remember } from "./api.js";
import { none, el, replace } from "./build.js";
import * as show from "./show.js";

const at = (id) => document.getElementById(id);
const chosen = { run: null, trajectory: null, open: new Set(), moved: false };
const last = new Map();

// Show an answer unless it is the one that is shown already.
function update(id, answer, build, extra = "") {
  const text = JSON.stringify(answer) + extra;
  if (last.get(id) === text) return;
  last.set(id, text);
  const opened = at(id).querySelector("details:not(.turn)")?.open;
  replace(at(id), ...build(answer));
  if (opened) at(id).querySelector("details:not(.turn)").open = true;
}

async function panel(id, work) {
  try {
    await work();
    at(id).removeAttribute("aria-busy");
  } catch (error) {
    if (error instanceof NotAllowed || error instanceof TypeError || error.name === "TimeoutError") throw error;
    last.delete(id);
    replace(at(id), el("p", { class: "bad" }, error.message));
  }
}

// Times are relative to now, so panels with times are drawn again every ten seconds.
const clock = () => `${Math.floor(Date.now() / 10000)}`;

const PANELS = [
  [2, () => panel("devices", async () => {
    const overview = await ask("v1/overview");
    update("tiles", overview, show.tiles);
    update("devices", overview.devices, () => show.devices(overview), clock());
    update("queue", overview, show.queue);
  })],
  [6, () => panel("training", training)],
  [4, () => panel("trajectories", async () => {
    const { rows } = await ask("v1/trajectories", { limit: 40 });
    const key = chosen.trajectory && `${chosen.trajectory.run} ${chosen.trajectory.problem} ${chosen.trajectory.trajectory}`;
    if (!chosen.trajectory && rows.length) choose(rows[0], false);
    update("trajectories", rows, () => show.trajectories(rows, key, (row) => choose(row, true)), key ?? "");
  })],
  [4, () => panel("trajectory", trajectory)],
  [8, () => panel("errors", async () => update("errors", await ask("v1/errors"), show.errors, clock()))],
];

async function training() {
  const { rows } = await ask("v1/runs", { kind: "train" });
  const names = rows.map((row) => row.run);
  const select = at("run");
  if (JSON.stringify(names) !== JSON.stringify([...select.options].map((option) => option.value))) {
    replace(select, ...names.map((name) => el("option", { value: name }, name)));
    if (names.includes(chosen.run)) select.value = chosen.run;
  }
  select.disabled = !names.length;
  if (!names.includes(chosen.run)) chosen.run = names[0] ?? null;
  if (chosen.run === null) {
    update("training", null, () => [none("No training run is stored yet; drkq train begins one.")]);
    return;
  }
  update("training", await ask("v1/progress", { run: chosen.run }), show.training);
}

async function trajectory() {
  if (!chosen.trajectory) {
    update("trajectory", null, () => [none("Choose a trajectory to see it turn by turn.")]);
    return;
  }
  const { run, problem, trajectory: number } = chosen.trajectory;
  const found = await ask("v1/trajectory", { run, problem, number });
  if (!chosen.moved && found.turns.length) chosen.open.add(found.turns.at(-1).number);
  update("trajectory", found, () => show.trajectory(found, chosen.open, toggled));
  if (chosen.focus) at("h-trajectory").focus();
  chosen.focus = false;
}

function toggled(number, isOpen) {
  if (isOpen === chosen.open.has(number)) return;
  chosen.moved = true;
  chosen.open[isOpen ? "add" : "delete"](number);
}

function choose(row, byHand) {
  Object.assign(chosen, { trajectory: row, open: new Set(), moved: false, focus: byHand });
  const place = new URLSearchParams({ run: row.run, problem: row.problem, number: row.trajectory });
  if (byHand) history.replaceState(null, "", `#${place}`);
  soon();
}

function fromAddress() {
  const place = new URLSearchParams(location.hash.slice(1));
  if (!place.has("run") || !place.has("problem")) return;
  chosen.trajectory = { run: place.get("run"), problem: place.get("problem"), trajectory: Number(place.get("number") ?? 1) };
}

// One loop: every panel at its own pace, none while nobody looks.
const due = new Map();
let waker = () => {};
const pause = (seconds) => new Promise((resolve) => {
  waker = resolve;
  setTimeout(resolve, 1000 * seconds);
});

function soon() {
  due.clear();
  waker();
}

async function loop() {
  for (;;) {
    if (document.hidden) {
      pulse("waiting", "paused while the page is hidden");
    } else {
      await look();
    }
    await pause(1);
  }
}

async function look() {
  try {
    for (const [seconds, work] of PANELS) {
      if ((due.get(work) ?? 0) > Date.now()) continue;
      due.set(work, Date.now() + 1000 * seconds);
      await work();
    }
    pulse("live", "live");
  } catch (error) {
    due.clear();
    if (error instanceof NotAllowed) await signIn(error.message);
    else pulse("away", "the gateway does not answer; trying again");
  }
}

function pulse(state, text) {
  const target = at("pulse");
  if (target.dataset.state === state && target.textContent === text) return;
  target.dataset.state = state;
  target.textContent = text;
}

function signIn(why) {
  pulse("waiting", "waits for a token");
  at("sign-in-why").textContent = why;
  const dialog = at("sign-in");
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      remember(at("token").value.trim());
      at("token").value = "";
      resolve();
    }, { once: true });
  });
}

const THEMES = ["auto", "light", "dark"];

function theme(name) {
  if (name === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = name;
  at("theme").textContent = `Theme: ${name}`;
  localStorage.setItem("drkq-theme", name);
}

at("theme").addEventListener("click", () => {
  const now = localStorage.getItem("drkq-theme") ?? "auto";
  theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
at("run").addEventListener("change", (event) => {
  chosen.run = event.target.value;
  soon();
});
document.addEventListener("visibilitychange", soon);
window.addEventListener("hashchange", () => {
  fromAddress();
  soon();
});

theme(THEMES.includes(localStorage.getItem("drkq-theme")) ? localStorage.getItem("drkq-theme") : "auto");
fromAddress();
loop();
