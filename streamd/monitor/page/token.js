// @ts-check
/** The token that samples are shown for: from the address, kept while the tab lives, sent in a header only. */

const KEY = "streamd.token";
const MISSING =
  "Pictures, labels and names of files are shown to whoever has the token. This command prints an address with it, where the daemon runs: open that, or paste it here.";
const WRONG =
  "The daemon does not take this token: one that was restarted has a new one. This command prints the address that is valid now: open it, or paste it here.";

export class Token {
  #value = "";
  #isWrong = false;
  /** @type {(() => void)[]} */
  #told = [];

  constructor() {
    this.#value = stored();
    this.#takeFragment();
    addEventListener("hashchange", () => this.#takeFragment());
  }

  /** Whether it is worth asking: there is one, and the daemon has not refused it. */
  get isUsable() {
    return this.#value !== "" && !this.#isWrong;
  }

  /** What to do to get at pictures; nothing while there is nothing to do. */
  get advice() {
    if (this.isUsable) return "";
    return this.#isWrong ? WRONG : MISSING;
  }

  /** @param {() => void} told of every change */
  onChange(told) {
    this.#told.push(told);
  }

  /** @param {string} text an address of the page with the token in it, or the token alone */
  take(text) {
    this.#value = text.trim().replace(/^.*#/s, "");
    this.#isWrong = false;
    store(this.#value);
    this.#tell();
  }

  /**
   * Asks for something that shows samples.
   * @param {string} path
   * @param {AbortSignal} [signal]
   * @returns {Promise<Response>}
   */
  async ask(path, signal) {
    const used = this.#value;
    const headers = { Authorization: `Bearer ${encodeURIComponent(used)}` };
    const response = await fetch(path, { headers, signal, cache: "no-store" });
    if (response.status === 401 && used === this.#value) {
      this.#isWrong = true;
      this.#tell();
    }
    return response;
  }

  #takeFragment() {
    const fragment = location.hash.slice(1);
    if (!fragment || document.getElementById(fragment)) return; // a place in the page
    history.replaceState(null, "", location.pathname + location.search);
    this.take(fragment);
  }

  #tell() {
    for (const told of this.#told) told();
  }
}

function stored() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // storage may be forbidden
  }
}

/** @param {string} value */
function store(value) {
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // then it lasts as long as the page
  }
}
