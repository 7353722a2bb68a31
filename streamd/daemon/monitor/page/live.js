// @ts-check
/** Listens to the daemon once a second, notices when it is away, and comes back by itself. */

/** @import { Snapshot, Starting } from "./shapes.js" */
/** @import { Token } from "./token.js" */
/** @typedef {Snapshot | Starting} News */

/**
 * `miss` is told since when nothing has been heard, null for never.
 * @typedef {{hear: (news: News) => void, miss: (sinceMs: number | null) => void}} Listener
 */

const SILENCE_MS = 6000; // an event is due each second; a connection may be dead without a word
const PAUSES_MS = [1000, 1000, 2000, 4000, 8000];
const DATA = "data: ";

export class Live {
  /** @type {AbortController | null} */
  #reading = null;
  #failures = 0;
  #timer = 0;
  /** @type {number | null} */
  #heardMs = null;
  #token;
  #listener;

  /** @param {Token} token which opens reasons that name files @param {Listener} listener */
  constructor(token, listener) {
    this.#token = token;
    this.#listener = listener;
  }

  /** Whoever does not look costs nothing, and keeps none of the browser's six connections to a host. */
  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#close() : this.open()));
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", ({ persisted }) => persisted && this.open());
    addEventListener("online", () => this.open());
    this.#token.onChange(() => this.#token.isUsable && this.open());
    this.open();
  }

  open() {
    this.#close();
    if (document.hidden) return;
    const reading = new AbortController();
    const lose = () => this.#reading === reading && this.#lose();
    this.#reading = reading;
    this.#wait(SILENCE_MS, lose);
    this.#read(reading).then(lose, lose);
  }

  #close() {
    clearTimeout(this.#timer);
    this.#reading?.abort();
    this.#reading = null;
  }

  /** Until the stream ends; an EventSource could not send the token. @param {AbortController} reading */
  async #read(reading) {
    const response = await fetch("live", { headers: this.#token.headers, signal: reading.signal });
    const reader = response.ok && response.body?.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    while (reader) {
      const { done, value } = await reader.read();
      if (done || this.#reading !== reading) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop() ?? "";
      for (const each of events) if (each.startsWith(DATA)) this.#hear(JSON.parse(each.slice(DATA.length)));
    }
  }

  #hear(news) {
    this.#failures = 0;
    this.#heardMs = Date.now();
    this.#wait(SILENCE_MS, () => this.#lose());
    queueMicrotask(() => this.#listener.hear(news)); // what goes wrong in it is no lost connection
  }

  #lose() {
    this.#close();
    this.#listener.miss(this.#heardMs);
    this.#wait(PAUSES_MS[Math.min(this.#failures++, PAUSES_MS.length - 1)], () => this.open());
  }

  #wait(ms, then) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(then, ms);
  }
}
