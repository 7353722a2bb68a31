// @ts-check
/** The batch now leaving, as pictures with labels. They cost the daemon something: only who looks asks for them. */
import { byId, html, offer, say, set, show, sync } from "./dom.js";
import { Large, labelsOf, markOf } from "./large.js";
import { count, visible } from "./words.js";

/** @import { Batch, Sample } from "./shapes.js" */
/** @import { Token } from "./token.js" */

const AGAIN_MS = 2000;
const FAILED_MS = 5000;

export class Pictures {
  #token;
  #choice = byId("pictures-stream");
  #pause = byId("pictures-pause");
  #large = new Large(() => this.#kick());
  #isPaused = false;
  #isOnScreen = false;
  #isAway = false;
  /** @type {AbortController | null} while it asks */
  #asking = null;
  #timer = 0;
  #restsUntilMs = 0;
  #problem = "";
  /** @type {Batch | null} */
  #batch = null;

  /** @param {Token} token */
  constructor(token) {
    this.#token = token;
    token.onChange(() => this.#kick());
    document.addEventListener("visibilitychange", () => this.#kick());
    this.#choice.addEventListener("change", () => this.#change());
    this.#pause.addEventListener("click", () => this.#toggle());
    const see = (entries) => {
      this.#isOnScreen = entries[entries.length - 1].isIntersecting;
      this.#kick();
    };
    new IntersectionObserver(see).observe(byId("pictures"));
  }

  /** @param {string[]} streams those there are @param {boolean} isAway whether the daemon is */
  update(streams, isAway) {
    const before = this.#choice.value;
    offer(this.#choice, streams);
    show(byId("pictures-choice"), streams.length > 1);
    this.#isAway = isAway;
    if (before !== this.#choice.value) this.#change();
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
    this.#stop();
    this.#restsUntilMs = 0;
    this.#problem = "";
    this.#draw(null);
    this.#kick();
  }

  #stop() {
    this.#asking?.abort();
    this.#asking = null;
  }

  /** Asks if it is time to, or sees to it that it will; takes back what nobody wants any more. */
  #kick() {
    clearTimeout(this.#timer);
    if (!this.#token.isUsable) this.#draw(null);
    const rest = this.#restsUntilMs - Date.now();
    if (!this.#isWanted) this.#stop();
    else if (!this.#asking && rest > 0) this.#timer = setTimeout(() => this.#kick(), rest);
    else if (!this.#asking) this.#ask();
    say(byId("pictures-words"), this.#words);
  }

  async #ask() {
    const asking = new AbortController();
    this.#asking = asking;
    const path = `pictures/${encodeURIComponent(this.#choice.value)}`;
    const rest = await this.#token.ask(path, asking.signal).then(
      (response) => this.#take(response, asking),
      () => FAILED_MS, // taken back, or the daemon is away, which others tell
    );
    if (this.#asking !== asking) return;
    this.#asking = null;
    this.#restsUntilMs = Date.now() + rest;
    this.#kick();
  }

  /** @returns {Promise<number>} ms until it may ask again */
  async #take(response, asking) {
    const body = await response.text().catch(() => "");
    if (this.#asking !== asking) return FAILED_MS;
    this.#problem = "";
    if (response.status === 200 && body) this.#draw(JSON.parse(body));
    else if (response.status === 204) this.#problem = "No batch has left in the last 20 s: is a trainer reading this stream?";
    else if (response.status !== 401) this.#problem = visible(body.trim());
    return response.ok ? AGAIN_MS : FAILED_MS;
  }

  get #words() {
    if (!this.#token.isUsable) return "You need the token to see the pictures.";
    if (!this.#choice.value) return "There is no stream.";
    if (this.#problem) return this.#problem;
    const paused = this.#isPaused ? " · paused" : "";
    if (!this.#batch) return `Waiting for the next batch to leave${paused}`;
    const { heading, rows, samples } = this.#batch;
    return `${visible(heading)}${rows > samples.length ? `, ${count(samples.length)} of them shown` : ""}${paused}`;
  }

  #draw(batch) {
    if (batch === this.#batch) return;
    this.#batch = batch;
    const samples = (batch?.samples ?? []).map((sample, row) => ({ sample, row }));
    sync(byId("picture-list"), samples, ({ row }) => row, ({ row }) => this.#picture(row));
  }

  #picture(row) {
    const picture = html("img", { decoding: "async" });
    const [label, mark] = [html("bdi", { class: "label" }), html("span", { class: "why" })];
    const button = html("button", { type: "button" }, html("span", { class: "frame" }, picture, mark), label);
    button.onclick = () => this.#batch && this.#large.open(this.#batch, row);
    /** @param {{sample: Sample}} shown */
    const update = ({ sample }) => {
      const [labels, why] = [labelsOf(sample) || "no label", markOf(sample)];
      set(picture, "src", sample.picture || null);
      set(picture, "alt", `row ${row}: ${labels}`);
      say(label, labels);
      say(mark, sample.bad ? `${why}: ${visible(sample.bad.reason)}` : why);
      set(button, "data-mark", why || null);
      set(button, "title", visible(sample.file));
      set(button, "aria-label", `Row ${row}: ${labels}${why && `, ${why}`}, show larger`);
    };
    return { node: html("li", {}, button), update };
  }
}
