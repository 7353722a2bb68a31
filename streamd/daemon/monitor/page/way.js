// @ts-check
/** Draws the way of the data, from the sources to the trainers, and marks where it waits. */
import { byId, say, sayProse, set, setAll, svg, sync } from "./dom.js";
import { CHAR, card, cohortCards, sourceCard } from "./way_cards.js";
import { layOut } from "./way_layout.js";
import { cellsOf, hub, tag, tank } from "./way_machines.js";
import { pick } from "./way_pick.js";
import { counted, fitted, percent, visible } from "./words.js";

/** @import { Part } from "./dom.js" */
/** @import { Snapshot } from "./shapes.js" */

const DESCRIBED_MS = 10_000; // a screen reader is not told more often
const MIN_WIDTH = 200; // less is no place to draw in
const FLOWING = 0.01; // fewer samples a second are rest
const NOTICED = 0.05; // of a trainer that waits, on average

export class Way {
  #title = svg("title", { id: "way-title" }, "Data flow");
  #description = svg("desc", { id: "way-description" });
  #edges = svg("g");
  #captions = svg("g");
  #sources = svg("g");
  #heads = svg("g");
  #trainers = svg("g");
  #hub = hub();
  #tank = tank();
  #tag = tag();
  #box = byId("way-box");
  #picture;
  #describedMs = 0;
  /** @type {Snapshot | null} */
  #now = null;

  constructor() {
    const names = { role: "img", "aria-labelledby": "way-title", "aria-describedby": "way-description" };
    const machines = [this.#hub.node, this.#tank.node];
    const below = [this.#title, this.#description, this.#edges, this.#captions, this.#sources];
    const above = [this.#heads, this.#trainers, this.#tag.node];
    this.#picture = svg("svg", { class: "way-picture", ...names }, ...below, ...machines, ...above);
    new ResizeObserver(() => this.#draw()).observe(this.#box);
  }

  /** @param {Snapshot} now */
  update(now) {
    this.#now = now;
    if (!this.#picture.isConnected) this.#box.append(this.#picture);
    const words = byId("way-words");
    sayProse(words, visible(now.way.words));
    set(words, "data-limit", now.way.limit);
    this.#draw();
    if (Date.now() - this.#describedMs < DESCRIBED_MS) return;
    this.#describedMs = Date.now();
    say(this.#description, description(now));
  }

  #draw() {
    const now = this.#now;
    if (!now || this.#box.clientWidth < MIN_WIDTH) return;
    const unit = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
    const width = Math.round(this.#box.clientWidth / unit);
    const picked = pick(now);
    const layout = layOut(picked, width, cellsOf(now.daemon.workers));
    set(this.#picture, "viewBox", `0 0 ${width} ${layout.height}`);
    set(this.#picture, "height", Math.round(layout.height * unit));
    this.#hub.update(layout.hub, now);
    this.#tank.update(layout.tank, now, layout.isWide);
    this.#drawWords(layout, now.way.waiting);
    this.#drawCards(layout, now, picked);
    this.#drawEdges(layout, now, picked);
    this.#tag.update(layout.tags[now.way.limit], now.way.tag, !now.way.is_bad);
  }

  #drawWords({ captions, groups }, waiting) {
    const waits = waiting >= NOTICED ? `, ${waiting.toFixed(1)} waiting` : "";
    const words = captions.map((each) => ({ ...each, text: each.key + (each.key === "trainers" ? waits : "") }));
    sync(this.#captions, words, ({ key }) => key, () => {
      const node = svg("text", { class: "caption" });
      return { node, update: ({ x, y, text }) => (setAll(node, { x, y }), say(node, text)) };
    });
    sync(this.#heads, groups, ({ cohort }) => cohort.key, () => {
      const [text, dot] = [svg("text", { class: "small" }), svg("circle", { class: "joint", r: 4 })];
      const update = ({ cohort, head, joint, w }) => {
        setAll(text, head);
        say(text, headOf(cohort, w / CHAR));
        setAll(dot, { cx: joint.x, cy: joint.y });
      };
      return { node: svg("g", {}, text, dot), update };
    });
  }

  #drawCards({ sources, groups, rest }, now, picked) {
    const streams = new Map(now.streams.map((stream) => [`=${stream.name}`, stream]));
    const read = sources.map(({ key, box }) => sourceCard(streams.get(key), key, box, picked.moreStreams));
    sync(this.#sources, read, ({ key }) => key, card);
    const trainers = groups.flatMap(({ cohort, boxes }) => cohortCards(cohort, boxes));
    const more = picked.moreTrainers;
    const name = more ? `and ${counted(more, "more trainer")}` : "no trainer yet";
    if (rest) trainers.push({ key: "rest", box: rest, kind: "more", name });
    sync(this.#trainers, trainers, ({ key }) => key, card);
  }

  #drawEdges({ edges }, now, picked) {
    const rates = ratesOf(now, picked);
    const most = Math.max(FLOWING, rates.get("hub") ?? 0);
    const waits = { disk: "source", transport: "tank" }[now.way.limit];
    const drawn = edges.map(({ key, d, from }) => {
      const rate = rates.get(key) ?? 0;
      const kind = `edge${rate > FLOWING ? " flows" : ""}${from === waits ? " waits" : ""}`;
      return { key, kind, line: { d, "stroke-width": (1.5 + 3 * Math.min(1, rate / most)).toFixed(1) } };
    });
    sync(this.#edges, drawn, ({ key }) => key, edge);
  }
}

/** A line, and what flows along it. @returns {Part<any>} */
function edge() {
  const paths = [svg("path", { class: "line" }), svg("path", { class: "flow" })];
  const node = svg("g", {}, ...paths);
  const update = ({ kind, line }) => {
    set(node, "class", kind);
    for (const path of paths) setAll(path, line);
  };
  return { node, update };
}

function headOf(cohort, chars) {
  const shared = cohort.all.length > 1 ? ` · one decode for ${counted(cohort.all.length, "trainer")}` : "";
  return fitted(visible(cohort.stream), chars - shared.length) + shared;
}

/** Samples a second on each edge, by its key. */
function ratesOf(now, picked) {
  /** @type {Map<string, number>} */
  const rates = new Map();
  const raise = (key, perS) => {
    rates.set(key, Math.max(rates.get(key) ?? 0, perS));
  };
  for (const { name, decoded_per_s, batch_size } of now.streams) {
    const perS = (decoded_per_s ?? 0) * batch_size;
    raise(`source =${name}`, perS);
    rates.set("hub", (rates.get("hub") ?? 0) + perS);
  }
  for (const { key, all, shown } of picked.cohorts) {
    all.forEach(({ samples_per_s }, row) => {
      raise(`tank ${key}`, samples_per_s ?? 0); // a shared decode leaves once, for all
      raise(`cohort ${key} ${Math.min(row, shown)}`, samples_per_s ?? 0);
    });
  }
  return rates;
}

/** All that the drawing shows, in words. */
function description(now) {
  const { daemon, way, streams } = now;
  const used = daemon.memory_used_bytes / Math.max(1, daemon.memory_bytes);
  const names = streams.map((each) => `${visible(each.name)} from ${visible(each.source)}`).join(", ");
  const reads = `, reading ${percent(way.reading)} and decoding ${percent(way.decoding)} of their time`;
  const cohorts = pick(now).cohorts.map((each) => `${visible(each.stream)} to ${counted(each.all.length, "trainer")}`);
  return [
    `${counted(streams.length, "stream")}: ${names || "none"}.`,
    `${counted(daemon.workers, "worker")}, ${percent(daemon.busy_fraction)} busy${reads}, ${daemon.window}.`,
    `Memory ${percent(used)} used, ${counted(way.slots, "slot")}.`,
    cohorts.length ? `Decoded once for each group: ${cohorts.join(", ")}.` : "No trainer yet.",
    `Now: ${visible(way.words)}.`,
  ].join(" ");
}
