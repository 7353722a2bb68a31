// @ts-check
/** What can still be seen of bad samples: asked for when it comes on screen, once. */

/** @import { Token } from "./token.js" */
/** @typedef {(url: string | null) => void} Show null where there is nothing to see */

export class Thumbnails {
  #token;
  /** @type {WeakMap<Element, () => void>} */
  #wishes = new WeakMap();
  #observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) this.#wishes.get(target)?.();
  });

  /** @param {Token} token */
  constructor(token) {
    this.#token = token;
  }

  /** @param {Element} node @param {string} path @param {Show} show @returns {() => void} to be called when it goes */
  watch(node, path, show) {
    const end = () => this.#observer.unobserve(node);
    this.#wishes.set(node, () => {
      end();
      this.#fetch(path).then(show, () => show(null));
    });
    this.#observer.observe(node);
    return end;
  }

  async #fetch(path) {
    const response = await this.#token.ask(path);
    return response.status === 200 ? URL.createObjectURL(await response.blob()) : null;
  }
}
