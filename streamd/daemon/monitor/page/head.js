// @ts-check
/** What comes before all figures: whether the daemon is there, what is wrong, and how it is in five readings. */
import { byId, html, say, set, show, sync } from "./dom.js";
import { sparkline } from "./history.js";
import { bytes, count, counted, percent, processesOf, rate, span, visible } from "./words.js";

/** @import { History } from "./history.js" */
/** @import { Daemon, Node, Snapshot } from "./shapes.js" */
/** @typedef {"live" | "starts" | "away"} State */

const STEADY_MS = 5000; // a limit that comes and goes is not spoken of
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

export class Head {
  /** @type {Daemon | null} */
  #last = null;
  #version = "";
  #restarted = "";
  #ticking = 0;
  /** @type {Map<string, string>} */
  #said = new Map();
  #limit = { words: "", sinceMs: 0 };

  /** @param {Snapshot} now @returns {boolean} whether it is another run of the daemon than before */
  live({ daemon, troubles, way }) {
    const isNew = this.#last !== null && (this.#last.pid !== daemon.pid || this.#last.uptime_s > daemon.uptime_s);
    const began = CLOCK.format(Date.now() - daemon.uptime_s * 1000);
    if (isNew) this.#restarted = `the daemon started again at ${began}: counts begin at 0`;
    this.#last = daemon;
    this.#version ||= daemon.version;
    this.#show("live");
    if (this.#version === daemon.version) this.#notice(this.#restarted, "Understood", () => this.#dismiss());
    else this.#notice(`the daemon is now streamd ${daemon.version}`, "Reload the page", () => location.reload());
    const answers = this.#restarted || (this.#said.has("connection") ? "the daemon answers" : "");
    const wrong = troubles.map((each) => `trouble: ${visible(each)}`).join("; ");
    const fine = this.#said.has("troubles") ? "all troubles are over" : "";
    this.#announce({ connection: answers, troubles: wrong || fine, limit: this.#steady(way.words) });
    return isNew;
  }

  /** @param {string} what */
  starting(what) {
    this.#show("starts");
    this.#notice(`The daemon is starting: ${visible(what)}.`);
    this.#announce({ connection: "the daemon is starting" });
  }

  /** @param {number | null} sinceMs @param {() => void} retry */
  away(sinceMs, retry) {
    const away = (ms) => `Away since ${CLOCK.format(ms)}, for ${span((Date.now() - ms) / 1000)}: `;
    const tell = () => {
      const words = "the daemon does not answer; the page keeps trying.";
      this.#notice(`${sinceMs === null ? "" : away(sinceMs)}${words}`, "Try now", retry);
    };
    this.#show("away");
    tell();
    this.#ticking = setInterval(tell, 1000);
    this.#announce({ connection: "the daemon is away" });
  }

  #show(state) {
    clearInterval(this.#ticking);
    document.body.dataset.state = state;
    say(byId("connection"), state === "starts" ? "starting" : state);
  }

  #notice(words, button = "", act = () => {}) {
    say(byId("notice-words"), words);
    show(byId("notice"), words !== "");
    const node = byId("notice-button");
    show(node, button !== "");
    say(node, button);
    node.onclick = act;
  }

  #dismiss() {
    this.#restarted = "";
    show(byId("notice"), false);
    byId("content").focus();
  }

  /** Words that have been the same for a while, else none. */
  #steady(words) {
    const nowMs = Date.now();
    if (words !== this.#limit.words) this.#limit = { words, sinceMs: nowMs };
    return nowMs - this.#limit.sinceMs < STEADY_MS ? "" : visible(words);
  }

  /** Has read out what changes, once. @param {Record<string, string>} words by what they are about */
  #announce(words) {
    const fresh = Object.entries(words).filter(([about, each]) => each && this.#said.get(about) !== each);
    for (const [about, each] of fresh) this.#said.set(about, each);
    if (fresh.length) byId("announcer").textContent = fresh.map(([, each]) => each).join(". ");
  }
}

// --- troubles and readings

/** @param {string[]} troubles @param {string} host @param {State} state */
export function showTroubles(troubles, host, state) {
  show(byId("troubles"), troubles.length > 0);
  sync(byId("trouble-list"), troubles, String, (each) => ({ node: html("li", {}, visible(each)), update() {} }));
  const wrong = troubles.length ? `⚠ ${counted(troubles.length, "trouble")} · ` : "";
  document.title = `${state === "away" ? "away · " : wrong}streamd ${visible(host)}`.trim();
}

/** @param {Snapshot} now @param {History} history */
export function showDaemon({ daemon, streams, trainers }, history) {
  const { memory_bytes: all, memory_used_bytes: used, worker_deaths: deaths } = daemon;
  const taken = streams.reduce((sum, each) => sum + (each.samples_per_s ?? 0), 0);
  say(byId("host"), visible(daemon.host));
  say(byId("identity"), `streamd ${daemon.version} · pid ${daemon.pid} · ${visible(daemon.endpoint)}`);
  const busy = deaths ? `${count(deaths)} replaced` : `of ${count(daemon.workers)}`;
  const readings = [
    ["taken", rate(taken), "samples/s"],
    ["trainers", count(processesOf(trainers)), `on ${counted(streams.length, "stream")}`],
    ["workers busy", percent(daemon.busy_fraction), busy],
    ["memory used", percent(used / Math.max(1, all)), `${bytes(used)} of ${bytes(all)}`],
    ...nodesReading(daemon.nodes),
    ["up", span(daemon.uptime_s), daemon.draining ? "shutting down" : `pid ${daemon.pid}`],
  ];
  say(byId("window"), `rates and shares are averages ${daemon.window}`);
  sync(byId("readouts"), readings, ([name]) => name, ([name]) => reading(name, name === "taken" ? history : null));
}

/** The nodes of a cluster that decode; their table has the rest. @param {Node[]} nodes */
function nodesReading(nodes) {
  const serving = nodes.filter((each) => each.state === "serving").length;
  return nodes.length ? [["nodes", count(serving), `of ${count(nodes.length)} decode`]] : [];
}

/** @param {History | null} history drawn beside it */
function reading(name, history) {
  const [value, unit] = [html("span", { class: "figure" }), html("span", { class: "unit" })];
  const spark = history && sparkline(history, "taken");
  const node = html("div", {}, html("dt", {}, name), html("dd", {}, value, " ", unit, ...(spark ? [spark.node] : [])));
  if (spark) set(node, "class", "main");
  /** @param {string[]} shown */
  const update = ([, figure, words]) => {
    say(value, figure);
    say(unit, words);
    spark?.update();
  };
  return { node, update };
}
