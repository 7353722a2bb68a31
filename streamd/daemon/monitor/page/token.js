// @ts-check
/** The token that samples are shown for: from the address, kept while the tab lives, sent in a header only. */
import { keep, recall } from "./kept.js";

const KEY = "streamd.token";
const MISSING = "Pictures, labels and file names are shown only to those who have the token.";
const WRONG = "The daemon does not accept this token: after a restart, the daemon has a new one.";
const HOW = "On the daemon's machine, this command prints an address that contains the token: open the address, or paste it here.";

export class Token {
  #value = recall("sessionStorage", KEY);
  #isWrong = false;
  #isVerified = false;
  /** @type {(() => void)[]} */
  #told = [];

  constructor() {
    this.#takeFragment();
    addEventListener("hashchange", () => this.#takeFragment());
  }

  /** Whether it is worth asking: there is one, and the daemon has not refused it. */
  get isUsable() {
    return this.#value !== "" && !this.#isWrong;
  }

  /** What shows it; whatever was pasted must fit a header. @returns {Record<string, string>} */
  get headers() {
    return this.#value ? { Authorization: `Bearer ${encodeURIComponent(this.#value)}` } : {};
  }

  /** What to do to get at pictures; nothing while there is nothing to do. */
  get advice() {
    return this.isUsable ? "" : `${this.#isWrong ? WRONG : MISSING} ${HOW}`;
  }

  /** @param {() => void} told of every change */
  onChange(told) {
    this.#told.push(told);
  }

  /** @param {string} text an address of the page with the token in it, or the token alone */
  take(text) {
    this.#value = text.trim().replace(/^.*#/s, "");
    keep("sessionStorage", KEY, this.#value);
    this.doubt();
    this.#judge(false);
  }

  /**
   * Asks for something that shows samples.
   * @param {string} path
   * @param {AbortSignal} [signal]
   */
  async ask(path, signal) {
    const used = this.#value;
    const response = await fetch(path, { headers: this.headers, signal });
    if (response.status === 401 && used === this.#value) this.#judge(true);
    return response;
  }

  /** Another run of the daemon may have another token. */
  doubt() {
    this.#isVerified = false;
  }

  /** Finds out once whether the daemon takes it, before anybody wants to see a thing. @param {string} stream */
  verify(stream) {
    if (this.#isVerified || !this.isUsable) return;
    this.#isVerified = true;
    this.ask(`bad/${encodeURIComponent(stream)}?before=0`).catch(() => this.doubt());
  }

  #takeFragment() {
    const fragment = location.hash.slice(1);
    if (!fragment || document.getElementById(fragment)) return; // a place in the page
    history.replaceState(null, "", location.pathname + location.search);
    this.take(fragment);
  }

  #judge(isWrong) {
    this.#isWrong = isWrong;
    for (const told of this.#told) told();
  }
}
