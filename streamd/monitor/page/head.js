// @ts-check
/** What comes before all figures: whether the daemon is there, what is wrong, and how it is in five readings. */
import { byId, html, say, set, show, sync } from "./dom.js";
import { sparkline } from "./history.js";
import { bytes, count, counted, percent, rate, span, visible } from "./words.js";

/** @import { History } from "./history.js" */
/** @import { Daemon, Snapshot } from "./shapes.js" */

const STEADY_MS = 5000; // a limit that comes and goes is not spoken of
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

/** @typedef {"waiting" | "live" | "starting" | "away"} State */

export class Head {
  #announcer = new Announcer();
  /** @type {Daemon["pid"] | null} */
  #pid = null;
  #version = "";
  #restarted = "";
  #ticking = 0;

  /** @param {Snapshot} now @returns {boolean} whether it is another run of the daemon than before */
  live(now) {
    const { pid, version } = now.daemon;
    const isNew = this.#pid !== null && this.#pid !== pid;
    if (isNew) this.#restarted = `the daemon began anew at ${CLOCK.format(Date.now() - now.daemon.uptime_s * 1000)}: counts begin at 0`;
    this.#pid = pid;
    this.#show("live", "live");
    this.#version ||= version;
    if (this.#version === version) this.#notice(this.#restarted && `Since you looked last, ${this.#restarted}.`);
    else this.#notice(`The daemon is now streamd ${version}, this page of ${this.#version}.`, "Load the page anew", () => location.reload());
    this.#announcer.live(now, this.#restarted);
    return isNew;
  }

  /** @param {string} what */
  starting(what) {
    this.#show("starting", "starts");
    this.#notice(`The daemon starts: ${visible(what)}.`);
    this.#announcer.say("connection", `the daemon starts: ${what}`);
  }

  /** @param {number | null} sinceMs @param {() => void} retry */
  away(sinceMs, retry) {
    this.#show("away", "away");
    const words = () =>
      sinceMs === null
        ? "The daemon does not answer. It is tried again by itself."
        : `Away since ${CLOCK.format(sinceMs)}, for ${span((Date.now() - sinceMs) / 1000)}: the daemon does not answer. What is shown is from then; it is tried again by itself.`;
    this.#notice(words(), "Try now", retry);
    this.#ticking = setInterval(() => say(byId("notice-words"), words()), 1000);
    this.#announcer.say("connection", "the daemon is away");
  }

  /** @param {State} state @param {string} words */
  #show(state, words) {
    clearInterval(this.#ticking);
    const connection = byId("connection");
    connection.dataset.state = state;
    document.body.dataset.state = state;
    say(connection, words);
  }

  /** @param {string} words @param {string} [button] @param {() => void} [act] */
  #notice(words, button = "", act = () => {}) {
    say(byId("notice-words"), words);
    show(byId("notice"), words !== "");
    const node = byId("notice-button");
    say(node, button || "Understood");
    node.onclick = button ? act : () => this.#dismiss();
  }

  #dismiss() {
    this.#restarted = "";
    show(byId("notice"), false);
    byId("content").focus();
  }
}

/** Says what changes, politely, once; nothing on the first sight of a sound daemon. */
class Announcer {
  /** @type {Map<string, string>} */
  #said = new Map();
  #limit = { words: "", sinceMs: 0 };

  /** @param {Snapshot} now @param {string} restarted */
  live(now, restarted) {
    this.say("connection", restarted || (this.#said.has("connection") ? "the daemon answers" : ""));
    this.say("troubles", now.troubles.length ? `trouble: ${now.troubles.map(visible).join("; ")}` : this.#said.has("troubles") ? "no trouble any more" : "");
    if (!now.way) return;
    if (now.way.words !== this.#limit.words) this.#limit = { words: now.way.words, sinceMs: Date.now() };
    else if (Date.now() - this.#limit.sinceMs >= STEADY_MS) this.say("limit", now.way.words);
  }

  /** @param {string} about @param {string} words */
  say(about, words) {
    if (!words || this.#said.get(about) === words) return;
    this.#said.set(about, words);
    byId("announcer").textContent = words;
  }
}

// --- troubles and readings

/** @param {string[]} troubles @param {string} host @param {State} state */
export function showTroubles(troubles, host, state) {
  show(byId("troubles"), troubles.length > 0);
  sync(byId("trouble-list"), troubles, (each) => each, (each) => ({ node: html("li", {}, visible(each)), update() {} }));
  const sign = state === "away" ? "away · " : troubles.length ? `⚠ ${counted(troubles.length, "trouble")} · ` : "";
  document.title = `${sign}streamd ${visible(host)}`.trim();
}

/** @param {Snapshot} now @param {History} history */
export function showDaemon(now, history) {
  const { daemon } = now;
  say(byId("host"), visible(daemon.host));
  say(byId("identity"), `streamd ${daemon.version} · pid ${daemon.pid} · ${visible(daemon.endpoint)}`);
  const sent = now.streams.reduce((sum, each) => sum + (each.samples_per_s ?? 0), 0);
  const share = daemon.memory_bytes ? daemon.memory_used_bytes / daemon.memory_bytes : 0;
  const deaths = daemon.worker_deaths ? `${counted(daemon.worker_deaths, "worker")} replaced` : `${count(daemon.workers)} in all`;
  /** @type {[string, string, string][]} */
  const readings = [
    ["sent", rate(sent), "samples/s"],
    ["trainers", count(now.trainers.length), `on ${counted(now.streams.length, "stream")}`],
    ["workers busy", percent(daemon.busy_fraction), deaths],
    ["memory used", percent(share), `${bytes(daemon.memory_used_bytes)} of ${bytes(daemon.memory_bytes)}`],
    ["up", span(daemon.uptime_s), daemon.draining ? "draining" : `pid ${daemon.pid}`],
  ];
  sync(byId("readouts"), readings, ([name]) => name, ([name]) => reading(name, name === "sent" ? history : null));
}

/** @param {string} name @param {History | null} history */
function reading(name, history) {
  const value = html("span", { class: "figure" });
  const unit = html("span", { class: "unit" });
  const spark = history && sparkline(history, "sent");
  const node = html("div", {}, html("dt", {}, name), html("dd", {}, value, " ", unit, ...(spark ? [spark.node] : [])));
  if (spark) set(node, "class", "main");
  return {
    node,
    /** @param {[string, string, string]} shown */
    update([, figure, words]) {
      say(value, figure);
      say(unit, words);
      spark?.update();
    },
  };
}
