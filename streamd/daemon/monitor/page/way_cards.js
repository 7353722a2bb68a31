// @ts-check
/** Sources and trainers as the way shows them: a frame with two lines of text, and a figure at the end of each. */
import { say, set, setAll, svg } from "./dom.js";
import { counted, epochOf, fitted, rate, visible } from "./words.js";

/** @import { Stream } from "./shapes.js" */
/** @import { Box } from "./way_layout.js" */
/** @import { Cohort } from "./way_pick.js" */

/**
 * @typedef {{key: string, box: Box, kind: string, name: string, about?: string, figure?: string, aside?: string,
 *   part?: number, hint?: string}} Card
 */

export const CHAR = 7.3; // of the fixed font at 12 units; small text is a little narrower
const SMALL_CHAR = 6.8;
const EDGE = 10;

/** A drawn card. */
export function card() {
  const title = svg("title");
  const rect = svg("rect", { rx: 2 });
  const bar = svg("rect", { class: "card-bar", height: 3 });
  const first = svg("text", { class: "name", x: EDGE, y: 19 });
  const second = svg("text", { class: "small", x: EDGE, y: 36 });
  const figures = [19, 36].map((y) => svg("text", { class: y > 19 ? "small" : "", y, "text-anchor": "end" }));
  const node = svg("g", {}, title, rect, bar, first, second, ...figures);
  /** @param {Card} shown */
  const update = ({ box, kind, name, about = "", figure = "", aside = "", part = 0, hint = `${name}, ${about}` }) => {
    frame(node, rect, box, `card ${kind}`);
    setAll(bar, { y: box.h - 3, width: (box.w * Math.min(1, part)).toFixed(1) });
    const room = box.w - 2 * EDGE;
    say(first, fitted(name, room / CHAR - figure.length - 1));
    say(second, fitted(about, room / SMALL_CHAR - aside.length - 1));
    [figure, aside].forEach((words, at) => say(figures[at], words));
    for (const text of figures) set(text, "x", box.w - EDGE);
    say(title, hint);
  };
  return { node, update };
}

/** @param {Element} group @param {Element} rect @param {Box} box @param {string} kind */
export function frame(group, rect, box, kind) {
  set(group, "transform", `translate(${box.x} ${box.y})`);
  setAll(rect, { class: kind, width: box.w, height: box.h });
}

/**
 * Of a stream, or of all `more` that have none.
 * @param {Stream | undefined} stream
 * @param {string} key
 * @param {Box} box
 * @param {number} more
 * @returns {Card}
 */
export function sourceCard(stream, key, box, more) {
  if (!stream) return { key, box, kind: "more", name: `and ${counted(more, "more stream")}` };
  const [name, source] = [visible(stream.name), visible(stream.source)];
  const wrong = stream.stopped ? "⚠ stopped" : stream.failed ? "⚠ trainers ended" : "";
  return {
    key,
    box,
    kind: wrong && "wrong",
    name,
    about: wrong || `${source}${stream.cached ? ", cached" : ""}`,
    figure: `${rate(stream.decoded_per_s)}/s`,
    aside: wrong ? "" : "batches",
    hint: `${name}: ${source}, ${visible(stream.image)}, ${counted(stream.samples, "sample")}`,
  };
}

/** A trainer each, and one for all that have no room. @param {Cohort} cohort @param {Box[]} boxes @returns {Card[]} */
export function cohortCards({ key, all, shown }, boxes) {
  const hidden = all.slice(shown);
  const perS = hidden.reduce((sum, each) => sum + (each.samples_per_s ?? 0), 0);
  const more = { key: `more ${key}`, kind: "more", name: `and ${counted(hidden.length, "more trainer")}` };
  const figure = `${rate(perS)}/s`;
  return boxes.map((box, row) => (row < shown ? trainerCard(all[row], box) : { ...more, box, figure }));
}

function trainerCard(trainer, box) {
  const rank = trainer.world > 1 ? ` · rank ${trainer.rank}/${trainer.world}` : "";
  return {
    key: `${trainer.session}`,
    box,
    kind: trainer.doing,
    name: `${visible(trainer.name) || "trainer"}${rank}`,
    about: visible(trainer.doing_words),
    hint: `${visible(trainer.name)}, pid ${trainer.pid}, session ${trainer.session}: ${visible(trainer.doing_words)}`,
    figure: `${rate(trainer.samples_per_s)}/s`,
    aside: epochOf(trainer),
    part: trainer.own_step / Math.max(1, trainer.own_steps),
  };
}
