// @ts-check
/** Asks for what can be seen of bad samples: each once, when it comes on screen, two at a time. */

/** @import { Token } from "./token.js" */

/** @typedef {{path: string, show: (url: string | null) => void}} Wish */

const AT_ONCE = 2; // a browser has six connections to a host, and the page needs some of them

export class Thumbnails {
  #token;
  /** @type {Map<Element, Wish>} */
  #wishes = new Map();
  /** @type {Wish[]} */
  #queue = [];
  #running = 0;
  #observer = new IntersectionObserver((entries) => this.#see(entries));

  /** @param {Token} token */
  constructor(token) {
    this.#token = token;
  }

  /**
   * @param {Element} node
   * @param {string} path
   * @param {(url: string | null) => void} show null where there is nothing to see
   * @returns {() => void} to be called when the node goes
   */
  watch(node, path, show) {
    /** @type {string | null} */
    let held = null;
    const wish = { path, show: (/** @type {string | null} */ url) => ((held = url), show(url)) };
    this.#wishes.set(node, wish);
    this.#observer.observe(node);
    return () => {
      this.#observer.unobserve(node);
      this.#wishes.delete(node);
      this.#queue = this.#queue.filter((other) => other !== wish);
      if (held) URL.revokeObjectURL(held);
    };
  }

  /** @param {IntersectionObserverEntry[]} entries */
  #see(entries) {
    for (const { isIntersecting, target } of entries) {
      const wish = this.#wishes.get(target);
      if (!isIntersecting || !wish) continue;
      this.#observer.unobserve(target);
      this.#queue.push(wish);
    }
    this.#run();
  }

  #run() {
    while (this.#running < AT_ONCE && this.#queue.length) {
      const wish = /** @type {Wish} */ (this.#queue.shift());
      this.#running++;
      this.#fetch(wish).finally(() => (this.#running--, this.#run()));
    }
  }

  /** @param {Wish} wish */
  async #fetch({ path, show }) {
    try {
      const response = await this.#token.ask(path);
      show(response.status === 200 ? URL.createObjectURL(await response.blob()) : null);
    } catch {
      show(null);
    }
  }
}
