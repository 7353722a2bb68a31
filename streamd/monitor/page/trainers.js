// @ts-check
/** The trainers, a table for each stream: place, rate, lag, leases, what each does, where its last epoch's time went. */
import { byId, html, say, set, show, sync } from "./dom.js";
import { sparkline } from "./history.js";
import { cell, figure, rowHead, small, tableHead } from "./tables.js";
import { count, counted, epochOf, rate, span, visible } from "./words.js";

/** @import { History } from "./history.js" */
/** @import { Snapshot, Trainer } from "./shapes.js" */

/** @typedef {{stream: string, trainers: Trainer[]}} Group */

const SHOWN = 12; // of a stream, until somebody asks for all
const COLUMNS = ["Trainer", "Epoch", "Samples/s", "Lag, held", "Doing", "Last epoch"];
const VERDICTS = /** @type {Record<string, string>} */ ({ none: "the trainer itself" });

/** @param {Snapshot} now @param {History} history */
export function showTrainers(now, history) {
  show(byId("no-trainers"), now.trainers.length === 0);
  say(byId("example-stream"), visible(now.streams[0]?.name ?? "NAME"));
  sync(byId("trainer-tables"), groupsOf(now.trainers), ({ stream }) => stream, ({ stream }) => table(stream, history));
}

/** @param {Trainer[]} trainers @returns {Group[]} in the order of their first trainers */
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

/** @param {string} stream @param {History} history */
function table(stream, history) {
  const summary = small();
  const caption = html("caption", {}, "Trainers of ", html("bdi", {}, visible(stream)), " ", summary);
  const columns = html("colgroup", {}, ...COLUMNS.map(() => html("col")));
  const body = html("tbody", { role: "rowgroup" });
  const button = html("button", { type: "button" });
  const node = html("div", { class: "group" }, html("table", { role: "table" }, caption, columns, tableHead(COLUMNS), body), button);
  let isOpen = false;
  /** @type {Trainer[]} */
  let trainers = [];
  const draw = () => {
    say(summary, sumOf(trainers));
    sync(body, isOpen ? trainers : trainers.slice(0, SHOWN), ({ session }) => session, (trainer) => row(trainer, history));
    show(button, trainers.length > SHOWN);
    set(button, "aria-expanded", String(isOpen));
    say(button, isOpen ? `Show the first ${SHOWN} only` : `Show all ${counted(trainers.length, "trainer")}`);
  };
  button.onclick = () => {
    isOpen = !isOpen;
    draw();
  };
  return { node, update: (/** @type {Group} */ group) => ((trainers = group.trainers), draw()) };
}

/** @param {Trainer[]} trainers */
function sumOf(trainers) {
  const perS = trainers.reduce((sum, each) => sum + (each.samples_per_s ?? 0), 0);
  const waiting = trainers.filter((each) => each.doing === "waiting").length;
  return `${counted(trainers.length, "trainer")} · ${rate(perS)} samples/s · ${waiting} waiting for a batch`;
}

/** @param {Trainer} trainer @param {History} history */
function row({ session, rank, world }, history) {
  const [epoch, left, perS, lag, held, doing] = [figure(), small(), figure(), figure(), small(), html("span", { class: "doing" })];
  const [verdict, reason, steps] = [html("span", { class: "verdict" }), small(), small()];
  const bar = html("progress", { "aria-label": `Epoch of trainer ${session}` });
  const spark = sparkline(history, `trainer ${session}`);
  const node = html(
    "tr",
    { role: "row" },
    rowHead(html("span", { class: "figure" }, `${session}`), " ", html("span", { class: "small" }, `rank ${rank} of ${world}`)),
    cell("Epoch", html("span", { class: "pair" }, epoch, " ", left), bar, " ", steps),
    cell("Samples/s", perS, " ", spark.node),
    cell("Lag, held", lag, " ", held),
    cell("Doing", doing),
    cell("Last epoch", verdict, " ", reason),
  );
  /** @param {Trainer} now */
  const update = (now) => {
    say(epoch, epochOf(now));
    say(left, now.left_s == null ? "" : `${span(now.left_s)} left`);
    say(steps, `batch ${count(now.step)} of ${count(now.steps)}`);
    bar.max = Math.max(1, now.steps);
    bar.value = now.step;
    say(perS, rate(now.samples_per_s));
    say(lag, lagOf(now.lag));
    say(held, `${count(now.held)} of ${count(now.credit)} held`);
    say(doing, visible(now.doing_words));
    set(doing, "data-doing", now.doing);
    say(verdict, now.verdict === null ? "no epoch yet" : `limit: ${VERDICTS[now.verdict] ?? now.verdict}`);
    set(verdict, "data-verdict", now.verdict ?? "");
    say(reason, visible(now.verdict_words ?? ""));
    spark.update();
  };
  return { node, update };
}

/** @param {number | null} lag */
function lagOf(lag) {
  if (lag === null) return "–";
  return lag === 0 ? "level" : `${counted(lag, "batch", "batches")}`;
}
