// @ts-check
/** Listens to the daemon once a second, notices when it is away, and comes back by itself. */
/** @import { Snapshot, Starting } from "./shapes.js" */

/** @typedef {Snapshot | Starting} News */

/**
 * @typedef {object} Listener
 * @property {(news: News) => void} hear
 * @property {(sinceMs: number | null) => void} miss nothing has been heard since then, or never
 */

const SILENCE_MS = 6000; // an event is due each second; a connection may be dead without a word
const PAUSES_MS = [1000, 1000, 2000, 4000, 8000];

export class Live {
  /** @type {EventSource | null} */
  #source = null;
  #failures = 0;
  #timer = 0;
  /** @type {number | null} */
  #heardMs = null;
  #listener;

  /** @param {Listener} listener */
  constructor(listener) {
    this.#listener = listener;
  }

  /** Whoever does not look costs nothing, and keeps none of the browser's six connections to a host. */
  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#close() : this.open()));
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", () => this.open());
    addEventListener("online", () => this.open());
    this.open();
  }

  open() {
    this.#close();
    if (document.hidden) return;
    this.#source = new EventSource("live");
    this.#source.onmessage = (event) => this.#hear(event.data);
    this.#source.onerror = () => this.#lose();
    this.#wait(SILENCE_MS, () => this.#lose());
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  /** @param {string} data */
  #hear(data) {
    this.#failures = 0;
    this.#heardMs = Date.now();
    this.#wait(SILENCE_MS, () => this.#lose());
    this.#listener.hear(JSON.parse(data));
  }

  /** An EventSource gives up for good on an answer such as 503, so that it is never left to itself. */
  #lose() {
    this.#close();
    this.#listener.miss(this.#heardMs);
    this.#wait(PAUSES_MS[Math.min(this.#failures++, PAUSES_MS.length - 1)], () => this.open());
  }

  /** @param {number} ms @param {() => void} then */
  #wait(ms, then) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(then, ms);
  }
}
