// @ts-check
/** The trainers, a table for each stream: where each is, how fast, what it does, where its last epoch's time went. */
import { byId, html, say, set, show, sync } from "./dom.js";
import { sparkline } from "./history.js";
import { tableHead, tableRow } from "./tables.js";
import { count, counted, epochOf, rate, span, visible } from "./words.js";

/** @import { History } from "./history.js" */
/** @import { Snapshot, Trainer } from "./shapes.js" */
/** @import { Column } from "./tables.js" */
/** @typedef {{stream: string, trainers: Trainer[]}} Group */

const SHOWN = 12; // of a stream, until somebody asks for all

/** @returns {Column<Trainer>[]} */
function columnsWith(history) {
  const spark = ({ session }) => sparkline(history, `trainer ${session}`);
  return [
    { head: "Trainer", fields: [["figure", (t) => `${t.session}`], ["small", (t) => `rank ${t.rank} of ${t.world}`]] },
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
  sync(byId("trainer-tables"), groupsOf(now.trainers), ({ stream }) => stream, ({ stream }) => table(stream, history));
}

/** In the order of their first trainers. @param {Trainer[]} trainers */
function groupsOf(trainers) {
  /** @type {Map<string, Group>} */
  const groups = new Map();
  for (const trainer of trainers) {
    const group = groups.get(trainer.stream) ?? { stream: trainer.stream, trainers: [] };
    group.trainers.push(trainer);
    groups.set(trainer.stream, group);
  }
  return [...groups.values()];
}

function table(stream, history) {
  const columns = columnsWith(history);
  const summary = html("span", { class: "small" });
  const caption = html("caption", {}, "Trainers of ", html("bdi", {}, visible(stream)), " ", summary);
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
    say(button, isOpen ? `Show the first ${SHOWN} only` : `Show all ${counted(trainers.length, "trainer")}`);
  };
  button.onclick = () => {
    isOpen = !isOpen;
    draw();
  };
  return { node, update: (group) => ((trainers = group.trainers), draw()) };
}

function sumOf(trainers) {
  const perS = trainers.reduce((sum, each) => sum + (each.samples_per_s ?? 0), 0);
  const waiting = trainers.filter((each) => each.doing === "waiting").length;
  return `${counted(trainers.length, "trainer")} · ${rate(perS)} samples/s · ${waiting} waiting for a batch`;
}

/** How far a trainer is in its epoch. */
function progress({ session }) {
  const node = html("progress", { "aria-label": `Epoch of trainer ${session}` });
  /** @param {Trainer} now */
  const update = (now) => {
    node.max = Math.max(1, now.steps);
    node.value = now.step;
  };
  return { node, update };
}

function placeOf({ step, steps, left_s }) {
  return `batch ${count(step)} of ${count(steps)}${left_s === null ? "" : ` · ${span(left_s)} left`}`;
}

function lagOf({ lag }) {
  return lag === 0 ? "level" : lag === null ? count(lag) : counted(lag, "batch", "batches");
}

/** The sentence about an epoch, but for its number, which counts from 0. */
function whyOf({ verdict_words }) {
  return visible(verdict_words ?? "").replace(/^epoch \d+ /, "");
}

function limitOf({ verdict }) {
  return verdict === null ? "no epoch yet" : `limit: ${verdict === "none" ? "the trainer itself" : verdict}`;
}
