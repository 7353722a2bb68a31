// @ts-check
/** The batch now leaving, as pictures with labels. They cost the daemon something: asked for only while somebody looks. */
import { byId, html, offer, say, set, show, sync } from "./dom.js";
import { Large, labelsOf, markOf } from "./large.js";
import { counted, visible } from "./words.js";

/** @import { Batch, Sample } from "./shapes.js" */
/** @import { Token } from "./token.js" */

const AGAIN_MS = 2000;
const FAILED_MS = 5000;

export class Pictures {
  #token;
  #choice = /** @type {HTMLSelectElement} */ (byId("pictures-stream"));
  #pause = byId("pictures-pause");
  #large = new Large(() => this.#kick());
  #isPaused = false;
  #isOnScreen = false;
  #isAway = false;
  /** @type {AbortController | null} while it asks */
  #asking = null;
  #timer = 0;
  #restsUntilMs = 0;
  /** @type {Batch | null} */
  #batch = null;

  /** @param {Token} token */
  constructor(token) {
    this.#token = token;
    token.onChange(() => this.#kick());
    document.addEventListener("visibilitychange", () => this.#kick());
    this.#choice.addEventListener("change", () => this.#change());
    this.#pause.addEventListener("click", () => this.#toggle());
    new IntersectionObserver(([entry]) => {
      this.#isOnScreen = entry.isIntersecting;
      this.#kick();
    }).observe(byId("pictures"));
  }

  /** @param {string[]} streams those there are @param {boolean} isAway whether the daemon is */
  update(streams, isAway) {
    const before = this.#choice.value;
    offer(this.#choice, streams);
    show(byId("pictures-choice"), streams.length > 1);
    this.#isAway = isAway;
    if (before && before !== this.#choice.value) this.#change();
    else this.#kick();
  }

  get #isWanted() {
    const isSeen = !document.hidden && this.#isOnScreen && !this.#isPaused && !this.#large.isOpen;
    return isSeen && !this.#isAway && this.#token.isUsable && this.#choice.value !== "";
  }

  #toggle() {
    this.#isPaused = !this.#isPaused;
    say(this.#pause, this.#isPaused ? "Resume pictures" : "Pause pictures");
    this.#kick();
  }

  #change() {
    this.#asking?.abort();
    this.#asking = null;
    this.#restsUntilMs = 0;
    this.#draw(null);
    this.#kick();
  }

  /** Asks if it is time to, or sees to it that it will; takes back what nobody wants any more. */
  #kick() {
    clearTimeout(this.#timer);
    if (!this.#token.isUsable) this.#draw(null);
    if (!this.#isWanted) {
      this.#asking?.abort();
      this.#asking = null;
      return this.#explain();
    }
    if (this.#asking) return;
    const rest = this.#restsUntilMs - Date.now();
    if (rest > 0) this.#timer = setTimeout(() => this.#kick(), rest);
    else this.#ask();
  }

  async #ask() {
    const asking = new AbortController();
    this.#asking = asking;
    const words = this.#batch ? null : "waits for the next batch that leaves";
    if (words) say(byId("pictures-words"), words);
    let rest = AGAIN_MS;
    try {
      const response = await this.#token.ask(`pictures/${encodeURIComponent(this.#choice.value)}`, asking.signal);
      rest = await this.#take(response, asking.signal);
    } catch {
      rest = FAILED_MS; // taken back, or the daemon is away, which others tell
    }
    if (this.#asking !== asking) return;
    this.#asking = null;
    this.#restsUntilMs = Date.now() + rest;
    this.#kick();
  }

  /** @param {Response} response @param {AbortSignal} signal @returns {Promise<number>} ms until it may ask again */
  async #take(response, signal) {
    if (response.status === 200) {
      const batch = await response.json();
      if (!signal.aborted) this.#draw(batch);
      return AGAIN_MS;
    }
    if (response.status === 204) say(byId("pictures-words"), "no batch has left for 20 s: does a trainer read this stream?");
    else if (response.status !== 401) say(byId("pictures-words"), `no pictures: ${visible((await response.text()).trim())}`);
    return response.status === 204 ? AGAIN_MS : FAILED_MS;
  }

  #explain() {
    if (this.#isPaused) say(byId("pictures-words"), `${this.#batch ? `${visible(this.#batch.heading)} · ` : ""}paused`);
    else if (!this.#token.isUsable) say(byId("pictures-words"), "The token is needed to see them.");
    else if (!this.#choice.value) say(byId("pictures-words"), "There is no stream.");
  }

  /** @param {Batch | null} batch */
  #draw(batch) {
    if (batch === this.#batch) return;
    this.#batch = batch;
    const samples = (batch?.samples ?? []).map((sample, row) => ({ sample, row }));
    if (batch) {
      const rest = batch.rows - samples.length;
      say(byId("pictures-words"), visible(batch.heading) + (rest > 0 ? `, of which ${counted(samples.length, "is", "are")} shown` : ""));
    }
    sync(byId("picture-list"), samples, ({ row }) => row, ({ row }) => this.#picture(row));
  }

  /** @param {number} row */
  #picture(row) {
    const picture = html("img", { width: 96, height: 96, decoding: "async" });
    const [label, mark] = [html("bdi", { class: "label" }), html("span", { class: "why" })];
    const button = html("button", { type: "button" }, html("span", { class: "frame" }, picture, mark), label);
    button.onclick = () => this.#batch && this.#large.open(this.#batch, row);
    /** @param {{sample: Sample}} shown */
    const update = ({ sample }) => {
      const labels = labelsOf(sample) || "no label";
      const why = markOf(sample);
      set(picture, "src", sample.picture || null);
      set(picture, "alt", `row ${row}: ${labels}`);
      say(label, labels);
      say(mark, why && sample.bad ? `${why}: ${visible(sample.bad.reason)}` : why);
      set(button, "data-mark", why || null);
      set(button, "title", visible(sample.file));
      set(button, "aria-label", `Row ${row}: ${labels}${why ? `, ${why}` : ""}, larger`);
    };
    return { node: html("li", {}, button), update };
  }
}
