// @ts-check
/** Rates of the last two minutes, kept in the page, and drawn small. */
import { html, set, svg } from "./dom.js";
import { rate } from "./words.js";

const KEPT_MS = 120_000;
const SHORTEST_MS = 20_000; // what there is fills the line, from here on
const GAP_MS = 3000; // further apart than this nothing is known of what was between
const WIDTH = 120;
const HEIGHT = 20;

/** @typedef {{ms: number, value: number}} Mark */

export class History {
  /** @type {Map<string, Mark[]>} */
  #marks = new Map();
  #startMs = 0;
  #nowMs = 0;

  /**
   * Adds what is known at a time; names that are not among it are forgotten.
   * @param {number} nowMs
   * @param {Map<string, number>} values
   */
  add(nowMs, values) {
    this.#startMs ||= nowMs;
    this.#nowMs = nowMs;
    for (const name of this.#marks.keys()) if (!values.has(name)) this.#marks.delete(name);
    for (const [name, value] of values) {
      const kept = (this.#marks.get(name) ?? []).filter((mark) => nowMs - mark.ms < KEPT_MS);
      this.#marks.set(name, [...kept, { ms: nowMs, value }]);
    }
  }

  clear() {
    this.#marks.clear();
    this.#startMs = 0;
  }

  /** @param {string} name */
  highest(name) {
    return Math.max(0, ...(this.#marks.get(name) ?? []).map((mark) => mark.value));
  }

  /** The line of a name. @param {string} name */
  path(name) {
    const scale = (HEIGHT - 2) / (this.highest(name) || 1);
    const shownMs = Math.min(KEPT_MS, Math.max(SHORTEST_MS, this.#nowMs - this.#startMs));
    let path = "";
    let lastMs = -Infinity;
    for (const { ms, value } of this.#marks.get(name) ?? []) {
      const x = WIDTH - ((this.#nowMs - ms) / shownMs) * WIDTH;
      path += `${ms - lastMs > GAP_MS ? "M" : "L"}${x.toFixed(1)} ${(HEIGHT - 1 - value * scale).toFixed(1)}`;
      lastMs = ms;
    }
    return path;
  }
}

/** A line over the last two minutes, beside its figure. @param {History} history @param {string} name */
export function sparkline(history, name) {
  const line = svg("path", { class: "spark-line" });
  const base = svg("path", { d: `M0 ${HEIGHT - 0.5}H${WIDTH}` });
  const box = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" }, base, line);
  const node = html("span", { class: "spark", "aria-hidden": "true" }, box);
  return {
    node,
    update() {
      set(line, "d", history.path(name));
      set(node, "title", `the last 2 minutes, at most ${rate(history.highest(name))} a second`);
    },
  };
}
