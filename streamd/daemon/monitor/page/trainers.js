// @ts-check
/** The trainers, a session a row: where each is, how fast, what it does, where its last epoch's time went. */
import { byId, html, say, set, show, sync } from "./dom.js";
import { sparkline } from "./history.js";
import { tableHead, tableRow } from "./tables.js";
import { count, counted, epochOf, processesOf, rate, span, visible } from "./words.js";

/** @import { History } from "./history.js" */
/** @import { Snapshot, Trainer } from "./shapes.js" */
/** @import { Column } from "./tables.js" */

const SHOWN = 12; // until somebody asks for all

/** @returns {Column<Trainer>[]} */
function columnsWith(history) {
  const spark = ({ session }) => sparkline(history, `trainer ${session}`);
  return [
    { head: "Trainer", fields: [["name", nameOf], ["small", processOf]] },
    { head: "Stream", fields: [["name", (t) => visible(t.stream)], ["small", partOf]] },
    { head: "Epoch", fields: [["figure", epochOf], ["small", placeOf]], extra: progress },
    { head: "Samples/s", fields: [["figure", (t) => rate(t.samples_per_s)]], extra: spark },
    { head: "Lag, held", fields: [["figure", lagOf], ["small", (t) => `${count(t.held)} of ${count(t.credit)} held`]] },
    { head: "Doing", fields: [["doing", (t) => visible(t.doing_words), (t) => t.doing]] },
    { head: "Last epoch", fields: [["", limitOf], ["small", whyOf]] },
  ];
}

/** @param {Snapshot} now @param {History} history */
export function showTrainers(now, history) {
  show(byId("no-trainers"), now.trainers.length === 0);
  for (const each of document.querySelectorAll(".example")) say(each, visible(now.streams[0]?.name ?? "NAME"));
  sync(byId("trainer-table"), now.trainers.length ? [now] : [], () => "trainers", () => table(history));
}

function table(history) {
  const columns = columnsWith(history);
  const summary = html("span", { class: "small" });
  const caption = html("caption", {}, html("span", { class: "unseen" }, "Trainers "), summary);
  const widths = html("colgroup", {}, ...columns.map(() => html("col")));
  const body = html("tbody", { role: "rowgroup" });
  const button = html("button", { type: "button" });
  const whole = html("table", { role: "table" }, caption, widths, tableHead(columns), body);
  const node = html("div", { class: "group" }, whole, button);
  let isOpen = false;
  /** @type {Trainer[]} */
  let trainers = [];
  const draw = () => {
    say(summary, sumOf(trainers));
    const shown = isOpen ? trainers : trainers.slice(0, SHOWN);
    sync(body, shown, ({ session }) => session, (trainer) => tableRow(columns, trainer));
    show(button, trainers.length > SHOWN);
    set(button, "aria-expanded", String(isOpen));
    say(button, isOpen ? `Show the first ${SHOWN} only` : `Show all ${counted(trainers.length, "session")}`);
  };
  button.onclick = () => {
    isOpen = !isOpen;
    draw();
  };
  return { node, update: (now) => ((trainers = now.trainers), draw()) };
}

function sumOf(trainers) {
  const perS = trainers.reduce((sum, each) => sum + (each.samples_per_s ?? 0), 0);
  const waiting = trainers.filter((each) => each.doing === "waiting").length;
  const who = `${counted(processesOf(trainers), "trainer")} with ${counted(trainers.length, "session")}`;
  return `${who} · ${rate(perS)} samples/s · ${waiting} waiting for a batch`;
}

/** How far a trainer is in its epoch. */
function progress({ name, session }) {
  const node = html("progress", { "aria-label": `Epoch of ${visible(name)}, session ${session}` });
  /** @param {Trainer} now */
  const update = (now) => {
    node.max = Math.max(1, now.own_steps);
    node.value = now.own_step;
  };
  return { node, update };
}

function nameOf({ name }) {
  return visible(name) || "unnamed";
}

function processOf({ pid, session }) {
  return `${pid ? `pid ${pid}, ` : ""}session ${session}`;
}

function partOf({ batch_size, rank, world }) {
  return `batch ${count(batch_size)}${world > 1 ? ` · rank ${rank} of ${world}` : ""}`;
}

function placeOf({ own_step, own_steps, left_s }) {
  return `step ${count(own_step)} of ${count(own_steps)}${left_s === null ? "" : ` · ${span(left_s)} left`}`;
}

function lagOf({ lag_steps: lag }) {
  return lag === 0 ? "level" : lag === null ? count(lag) : counted(lag, "batch", "batches");
}

/** The sentence about an epoch, but for its number, which counts from 0. */
function whyOf({ verdict_words }) {
  return visible(verdict_words ?? "").replace(/^epoch \d+ /, "");
}

function limitOf({ verdict_short }) {
  return verdict_short === null ? "no epoch yet" : `limit: ${verdict_short}`;
}
