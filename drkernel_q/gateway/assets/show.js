// What each panel shows, from what the gateway answers.

import { ago, el, none, number, share, svg, table, times } from "./build.js";
import { chart } from "./chart.js";

const STATES = { idle: "good", busy: "busy", draining: "warn", quarantined: "bad" };

export function tiles(overview) {
  const sum = (counts) => Object.values(counts).reduce((one, other) => one + other, 0);
  // A device has a card for each of its lanes.
  const count = (cards) => new Set(cards.map(({ card }) => `${card.host} ${card.device}`)).size;
  const all = count(overview.devices), well = count(overview.devices.filter(({ card }) => card.state !== "quarantined"));
  const shown = [
    [`${well} / ${all}`, "devices in service", well < all || !well],
    [overview.devices.filter((each) => each.card.state === "busy").length, "at work"],
    [sum(overview.queues), "wait in the broker"],
    [sum(overview.waiting), "wait in the gateway"],
    [overview.in_flight, "in the broker from here"],
    [overview.finished, "replies since the start"],
  ];
  return shown.map(([value, text, alarm]) =>
    el("div", { class: alarm ? "tile alarm" : "tile" }, el("b", {}, `${value}`), el("span", {}, text)));
}

export function devices(overview) {
  if (!overview.devices.length) return [none("No worker is registered; start one with drkq worker.")];
  const rows = overview.devices.map(({ card, problem, client }) => el("tr", {},
    el("td", { class: "keep" }, card.device, el("div", { class: "muted" }, card.host)),
    el("td", {}, card.device_name),
    el("td", {}, el("span", { class: `state ${STATES[card.state] ?? ""}` }, card.state)),
    el("td", {}, doing(card, problem, client)),
    el("td", { class: "muted keep" }, ago(card.last_progress))));
  return [table([["Device"], ["Name"], ["State"], ["At"], ["Progress"]], rows)];
}

function doing(card, problem, client) {
  if (card.reason) return el("span", { class: "bad" }, card.reason);
  if (!card.request_id) return el("span", { class: "muted" }, "nothing");
  const id = el("code", { title: "Id of the evaluation" }, card.request_id.slice(0, 12));
  return problem ? el("span", {}, `${problem} for ${client} `, id) : id;
}

export function queue(overview) {
  const broker = Object.entries(overview.queues);
  return [el("div", { class: "split" },
    group("In the broker", broker.length ? broker : [["eval", 0]]),
    group("In the gateway, by priority", Object.entries(overview.waiting))),
  group("Clients with orders that have no reply", Object.entries(overview.clients).slice(0, 12))];
}

function group(title, counts) {
  const most = Math.max(1, ...counts.map(([, count]) => count));
  const bars = counts.map(([name, count]) => el("div", { class: "bar" },
    el("span", {}, name),
    svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "track", width: 100, height: 8, rx: 2 }),
      svg("rect", { class: "value", width: (100 * count) / most, height: 8, rx: 2 })),
    el("span", { class: "number" }, `${count}`)));
  return el("div", {}, el("h3", { class: "muted" }, title), ...(bars.length ? bars : [none("none")]));
}

export function training(progress) {
  const { steps, validations } = progress;
  if (!steps.length) return [none("This run has not learned from a turn yet.")];
  const points = (rows, name) => rows.filter((row) => row[name] !== null).map((row) => [row.step, row[name]]);
  const fast = `Fast@${progress.p}`;
  const series = [{ name: "turns of the step", points: points(steps, "fast_p") }];
  if (validations.length) series.push({ name: "validation, any turn", points: points(validations, "fast_p") });
  const rewards = points(steps, "reward");
  const rows = steps.slice(-50).reverse().map((row) => el("tr", {},
    el("td", { class: "number" }, `${row.step}`), el("td", { class: "number" }, `${row.turns}`),
    el("td", { class: "number" }, number(row.reward)), el("td", { class: "number" }, share(row.honest)),
    el("td", { class: "number" }, share(row.fast_p))));
  const heads = ["Step", "Turns", "Reward", "Honest", fast].map((text) => [text, "number"]);
  return [
    el("div", { class: "split" },
      rewards.length ? chart("Mean reward", [{ name: "reward", points: rewards }], number, number) : none("No rewards."),
      chart(fast, series, share, (value) => `${Math.round(100 * value)} %`)),
    el("details", {}, el("summary", { "data-key": "numbers" }, "The last steps in numbers"),
      el("div", { class: "tall", "data-scroll": "numbers", tabindex: 0 }, table(heads, rows))),
  ];
}

export function trajectories(rows, chosen, choose) {
  if (!rows.length) return [none("No trajectory is stored yet.")];
  const lines = rows.map((row) => {
    const key = `${row.run} ${row.problem} ${row.trajectory}`;
    const label = `Show trajectory ${row.trajectory} of ${row.problem} in ${row.run}`;
    return el("tr", { "aria-current": key === chosen ? "true" : false },
      el("td", {}, el("button", { type: "button", class: "link", "data-key": key, "aria-label": label, onclick: () => choose(row) },
        `${row.problem} #${row.trajectory}`)),
      el("td", { class: "muted" }, row.run),
      el("td", { class: "number" }, `${row.turns}`), el("td", { class: "number" }, `${row.honest}`),
      el("td", { class: row.rejected ? "number bad" : "number" }, `${row.rejected}`),
      el("td", { class: "number" }, times(row.best)));
  });
  const heads = [["Problem"], ["Run"], ["Turns", "number"], ["Honest", "number"], ["Rejected", "number"], ["Best", "number"]];
  return [el("div", { class: "tall", "data-scroll": "list", tabindex: 0, role: "region", "aria-label": "List of trajectories" },
    table(heads, lines))];
}

// `open` says which turns are open; `toggled` hears of those that somebody opens and closes.
export function trajectory(found, open, toggled) {
  const turns = found.turns.map((turn) => {
    const summary = el("summary", { "data-key": `turn ${turn.number}` }, el("b", {}, `Turn ${turn.number}`), verdict(turn),
      el("span", { class: "muted" }, facts(turn)));
    return el("details", { class: "turn", open: open.has(turn.number), ontoggle: (event) => toggled(turn.number, event.target.open) },
      summary, el("div", {}, ...body(turn)));
  });
  return [el("p", { class: "muted" }, `${found.problem}, trajectory ${found.number} of the run ${found.run}`), el("br"), ...turns];
}

function verdict(turn) {
  if (turn.kernel === null) return el("span", { class: "state warn" }, "no kernel");
  if (turn.outcome === null) return el("span", { class: "state warn" }, "not judged");
  if (turn.integrity === "rejected" || turn.integrity === "suspicious") return el("span", { class: "state bad" }, turn.integrity);
  return el("span", { class: `state ${turn.outcome === "correct" ? "good" : "bad"}` }, turn.outcome.replaceAll("_", " "));
}

function facts(turn) {
  const told = [`reward ${number(turn.reward)}`];
  if (turn.speedup !== null) told.push(`${times(turn.speedup)} (${times(turn.speedup_low)} to ${times(turn.speedup_high)})`);
  if (turn.profile_ratio !== null) told.push(`own kernels ${share(turn.profile_ratio)}`);
  if (turn.policy_version !== null) told.push(`weights of step ${turn.policy_version}`);
  if (turn.evidence.length) told.push(turn.evidence.join(" "));
  return told.join(" · ");
}

function body(turn) {
  const parts = [];
  if (turn.diff !== null) {
    parts.push(el("h3", {}, "Kernel, as the difference to the one before"),
      el("pre", { class: "diff", tabindex: 0, "data-scroll": `diff ${turn.number}` }, ...diff(turn.diff)));
  } else if (turn.completion) {
    parts.push(el("h3", {}, "Answer without a kernel"), el("pre", { class: "told", tabindex: 0 }, turn.completion));
  }
  if (turn.feedback) parts.push(el("h3", {}, "What its author was told"), el("pre", { class: "told", tabindex: 0 }, turn.feedback));
  return parts;
}

function diff(text) {
  if (!text) return [el("span", { class: "muted" }, "The kernel did not change.")];
  return text.split("\n").slice(2).map((line) => {
    const kind = { "+": "added", "-": "removed", "@": "hunk" }[line[0]];
    return el("span", { class: kind }, line || " ");
  });
}

export function errors(found) {
  const parts = found.quarantined.map((card) => el("p", {}, el("span", { class: "state bad" }, "quarantined"),
    ` ${card.device} of ${card.host} since ${card.started_at}: ${card.reason}`));
  if (!found.quarantined.length) parts.push(el("p", { class: "muted" }, "No device is quarantined."));
  if (!found.failures.length) return [...parts, none("No attempt failed for reasons of the infrastructure.")];
  const rows = found.failures.map((row) => el("tr", {},
    el("td", { class: "muted keep" }, ago(row.finished_at)),
    el("td", {}, row.worker, el("div", { class: "muted" }, row.problem)),
    el("td", {}, row.failure_message, el("div", { class: "muted" }, row.evaluated_since === "yes" ? "judged since" : "not judged since"))));
  return [...parts, el("div", { class: "tall", "data-scroll": "failures", tabindex: 0, role: "region", "aria-label": "Failures" },
    table([["When"], ["Worker, problem"], ["Why"]], rows))];
}
