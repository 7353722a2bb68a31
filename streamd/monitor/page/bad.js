// @ts-check
/** Bad samples with reason and what can still be seen of each: listed when asked for, seen when scrolled to. */
import { byId, html, offer, say, show, sync } from "./dom.js";
import { Thumbnails } from "./thumbnails.js";
import { count, counted, visible } from "./words.js";

/** @import { BadPage, BadSample, Stream } from "./shapes.js" */
/** @import { Token } from "./token.js" */

export class Bad {
  #token;
  #thumbnails;
  #choice = /** @type {HTMLSelectElement} */ (byId("bad-stream"));
  /** @type {Map<string, number>} */
  #counts = new Map();
  /** @type {BadSample[]} */
  #shown = [];
  /** @type {number | null} */
  #before = null;
  #countShown = 0;
  #isBusy = false;
  #problem = "";

  /** @param {Token} token */
  constructor(token) {
    this.#token = token;
    this.#thumbnails = new Thumbnails(token);
    token.onChange(() => this.#forget());
    this.#choice.addEventListener("change", () => this.#forget());
    byId("bad-show").addEventListener("click", () => this.#load(null));
    byId("bad-more").addEventListener("click", () => this.#load(this.#before));
  }

  /** @param {Stream[]} streams */
  update(streams) {
    const before = this.#choice.value;
    this.#counts = new Map(streams.filter(({ bad }) => bad > 0).map(({ name, bad }) => [name, bad]));
    offer(this.#choice, [...this.#counts.keys()]);
    if (before !== this.#choice.value) this.#forget();
    else this.#draw();
  }

  /** What belonged to another run of the daemon, stream or token. */
  forget() {
    this.#forget();
  }

  #forget() {
    this.#shown = [];
    this.#before = null;
    this.#countShown = 0;
    this.#problem = "";
    this.#draw();
  }

  /** @param {number | null} before where to go on; null for the newest */
  async #load(before) {
    if (this.#isBusy) return;
    const stream = this.#choice.value;
    this.#isBusy = true;
    this.#problem = "";
    this.#draw();
    try {
      const path = `bad/${encodeURIComponent(stream)}${before === null ? "" : `?before=${before}`}`;
      const response = await this.#token.ask(path);
      if (response.ok) this.#take(stream, before, await response.json());
      else if (response.status !== 401) this.#problem = visible((await response.text()).trim());
    } catch {
      this.#problem = "the daemon does not answer";
    }
    this.#isBusy = false;
    this.#draw();
  }

  /** @param {string} stream @param {number | null} before @param {BadPage} page */
  #take(stream, before, page) {
    if (stream !== this.#choice.value) return;
    const known = new Set(this.#shown.map(({ sample_id }) => sample_id));
    const added = before === null ? page.samples : page.samples.filter(({ sample_id }) => !known.has(sample_id));
    this.#shown = before === null ? added : [...this.#shown, ...added];
    this.#before = page.before;
    this.#countShown = page.bad;
  }

  #draw() {
    const all = this.#counts.get(this.#choice.value) ?? 0;
    const fresh = this.#shown.length ? all - this.#countShown : all;
    show(byId("bad-choice"), this.#counts.size > 1);
    show(byId("bad-show"), all > 0 && fresh > 0 && this.#token.isUsable);
    show(byId("bad-more"), this.#before !== null);
    say(byId("bad-show"), this.#shown.length ? `Show ${count(fresh)} new bad samples` : `Show ${counted(all, "bad sample")}`);
    say(byId("bad-words"), this.#wordsFor(all));
    const stream = this.#choice.value;
    sync(byId("bad-list"), this.#shown, ({ sample_id }) => `${stream} ${sample_id}`, (sample) => this.#card(stream, sample));
  }

  /** @param {number} all */
  #wordsFor(all) {
    if (this.#problem) return `not listed: ${this.#problem}`;
    if (this.#isBusy) return "is being listed";
    if (!this.#counts.size) return "None is known so far: each sample that was needed could be read.";
    const whose = `${counted(all, "sample")} of ${visible(this.#choice.value)} could not be used`;
    if (!this.#token.isUsable) return `${whose}. The token is needed to see them.`;
    return this.#shown.length ? `${whose}; ${count(this.#shown.length)} shown, the newest first` : whose;
  }

  /** @param {string} stream @param {BadSample} sample */
  #card(stream, { sample_id, file, reason, kind }) {
    const picture = html("img", { width: 72, height: 72, alt: "", hidden: "" });
    const none = html("span", { class: "small" }, "…");
    const words = html("div", {}, html("bdi", { class: "file" }, visible(file)), html("p", {}, visible(reason)), html("p", { class: "small" }, `${kind} · sample ${sample_id}`));
    const node = html("li", {}, html("div", { class: "thumbnail" }, picture, none), words);
    const end = this.#thumbnails.watch(node, `thumbnails/${encodeURIComponent(stream)}/${sample_id}`, (url) => {
      say(none, url ? "" : "nothing to see");
      show(picture, url !== null);
      picture.alt = url ? `what can be seen of ${visible(file)}` : "";
      if (url) picture.src = url;
    });
    return { node, update() {}, end };
  }
}
