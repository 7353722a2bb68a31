// @ts-check
/** What the daemon consists of on the way: its workers and its memory, and the tag that says where it waits. */
import { say, set, setAll, svg, sync } from "./dom.js";
import { CHAR, frame } from "./way_cards.js";
import { CELL, cellColumns } from "./way_layout.js";
import { bytes, counted, percent } from "./words.js";

/** @import { Snapshot } from "./shapes.js" */
/** @import { Box, Tag } from "./way_layout.js" */

const MAX_CELLS = 48;
const ROOMY = 180; // for "96 workers" and "100 % busy" side by side
const GAUGE_X = 62;

/** How many cells stand for the workers. @param {number} workers */
export function cellsOf(workers) {
  return Math.max(1, Math.min(MAX_CELLS, workers));
}

/** The workers: a cell for each, and two gauges for what their time goes into. */
export function hub() {
  const rect = svg("rect", { rx: 2 });
  const cells = svg("g");
  const title = svg("text", { class: "name", x: 12, y: 21 });
  const busy = svg("text", { y: 21, "text-anchor": "end" });
  const [read, decode] = [gauge("read"), gauge("decode")];
  const node = svg("g", {}, rect, title, busy, cells, read.node, decode.node);
  /** @param {Box} box @param {Snapshot} now */
  const update = (box, { daemon, way }) => {
    frame(node, rect, box, `machine${way?.limit === "decode" ? " waits" : ""}`);
    say(title, counted(daemon.workers, "worker"));
    say(busy, `${percent(daemon.busy_fraction)}${box.w < ROOMY ? "" : " busy"}`);
    set(busy, "x", box.w - 12);
    drawCells(cells, cellsOf(daemon.workers), daemon.busy_fraction, box.w);
    read.update(box.w, box.h - 40, way?.reading, way?.limit === "disk");
    decode.update(box.w, box.h - 18, way?.decoding, way?.limit === "decode");
  };
  return { node, update };
}

/** @param {number} part of them that are busy */
function drawCells(group, cells, part, width) {
  const [columns, filled] = [cellColumns(cells, width), Math.round(part * cells)];
  const placed = Array.from({ length: cells }, (_, at) => ({
    x: 12 + (at % columns) * CELL,
    y: 32 + Math.floor(at / columns) * CELL,
    class: at < filled ? "cell busy" : "cell",
  }));
  sync(group, placed, ({ x, y }) => `${x} ${y}`, () => {
    const node = svg("rect", { width: CELL - 4, height: CELL - 4, rx: 1 });
    return { node, update: (shown) => setAll(node, shown) };
  });
}

/** A part of the workers' time on a scale with quarters. */
function gauge(name) {
  const value = svg("text", { class: "small", y: 4, "text-anchor": "end" });
  const scale = svg("path", { class: "scale" });
  const level = svg("rect", { x: GAUGE_X, y: -5, height: 9 });
  const node = svg("g", {}, svg("text", { class: "small", x: 12, y: 4 }, name), level, scale, value);
  /** @param {number} width @param {number} y @param {number | undefined} part @param {boolean} waits */
  const update = (width, y, part, waits) => {
    const length = width - GAUGE_X - 56;
    set(node, "transform", `translate(0 ${y})`);
    const kind = waits ? "level waits" : "level";
    setAll(level, { class: kind, width: (length * Math.min(1, part ?? 0)).toFixed(1) });
    const ticks = [0, 1, 2, 3, 4].map((tick) => `M${GAUGE_X + (length * tick) / 4} -5v9`);
    set(scale, "d", `${ticks.join("")}h${-length}`);
    set(value, "x", width - 12);
    say(value, percent(part));
  };
  return { node, update };
}

/** The memory, upright or lying: how much of it is used. */
export function tank() {
  const rect = svg("rect", { rx: 2 });
  const level = svg("rect", { class: "level" });
  const scale = svg("path", { class: "scale" });
  const lines = ["name", "small", "small"].map((kind) => svg("text", { class: kind }));
  const node = svg("g", {}, level, scale, rect, ...lines);
  /** @param {Box} box @param {Snapshot} now @param {boolean} isWide */
  const update = (box, { daemon, way }, isWide) => {
    const { memory_bytes: all, memory_used_bytes: used } = daemon;
    frame(node, rect, box, `machine${way?.limit === "memory" ? " waits" : ""}`);
    fill(box, all ? Math.min(1, used / all) : 0, level, scale, isWide);
    const words = [way ? counted(way.slots, "slot") : "slots", bytes(used), `of ${bytes(all)}`];
    words.forEach((each, at) => {
      say(lines[at], each);
      const x = isWide ? box.w / 2 : [12, box.w / 2, box.w - 12][at];
      const anchor = isWide ? "middle" : ["start", "middle", "end"][at];
      setAll(lines[at], { x, y: isWide ? box.h + [17, 33, 48][at] : 20, "text-anchor": anchor });
    });
  };
  return { node, update };
}

function fill({ w, h }, part, level, scale, isWide) {
  const height = isWide ? h * part : h - 32;
  setAll(level, { y: h - height, height, width: isWide ? w : w * part });
  const ticks = [1, 2, 3].map((tick) => (isWide ? `M0 ${(h * tick) / 4}h8` : `M${(w * tick) / 4} ${h}v-8`));
  set(scale, "d", ticks.join(""));
}

/** The pill that says where it waits, with an arrow down to the place. */
export function tag() {
  const arrow = svg("path", { class: "tag-line" });
  const rect = svg("rect", { height: 20, rx: 2 });
  const text = svg("text", { x: 8, y: 14, class: "tag-text" });
  const pill = svg("g", {}, rect, text);
  const node = svg("g", {}, arrow, pill);
  /** @param {Tag | undefined} at @param {string} words @param {boolean} isFine */
  const update = (at, words, isFine) => {
    set(node, "class", at ? `tag${isFine ? " fine" : ""}` : "tag none");
    if (!at) return;
    const width = words.length * CHAR + 16;
    const x = at.x - (at.isEnd ? width : width / 2);
    say(text, words);
    set(rect, "width", width);
    set(pill, "transform", `translate(${x} ${at.y - 10})`);
    set(arrow, "d", `M${at.isEnd ? at.x - 20 : at.x} ${at.y + 10}V${at.toY}m-4 -6l4 6 4 -6`);
  };
  return { node, update };
}
