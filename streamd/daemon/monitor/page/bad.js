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
  #choice = byId("bad-stream");
  /** @type {Map<string, number>} */
  #counts = new Map();
  /** @type {BadPage} what is shown */
  #page = { bad: 0, samples: [], before: null };
  #isBusy = false;
  #problem = "";

  /** @param {Token} token */
  constructor(token) {
    this.#token = token;
    this.#thumbnails = new Thumbnails(token);
    token.onChange(() => this.forget());
    this.#choice.addEventListener("change", () => this.forget());
    byId("bad-show").addEventListener("click", () => this.#load(null));
    byId("bad-more").addEventListener("click", () => this.#load(this.#page.before));
  }

  /** @param {Stream[]} streams */
  update(streams) {
    const before = this.#choice.value;
    this.#counts = new Map(streams.filter(({ bad }) => bad > 0).map(({ name, bad }) => [name, bad]));
    offer(this.#choice, [...this.#counts.keys()]);
    if (before !== this.#choice.value) this.forget();
    else this.#draw();
  }

  /** What is of another stream, token or run of the daemon. */
  forget() {
    this.#page = { bad: 0, samples: [], before: null };
    this.#problem = "";
    this.#draw();
  }

  /** @param {number | null} before where to go on; null for the newest */
  async #load(before) {
    if (this.#isBusy) return;
    const path = `bad/${encodeURIComponent(this.#choice.value)}${before === null ? "" : `?before=${before}`}`;
    const shown = this.#page;
    this.#isBusy = true;
    this.#draw();
    const answer = await this.#token.ask(path).then(read, () => "the daemon does not answer");
    this.#isBusy = false;
    if (shown === this.#page) {
      this.#problem = typeof answer === "string" ? answer : "";
      if (typeof answer !== "string") this.#take(answer, before === null ? [] : shown.samples);
    }
    this.#draw();
  }

  /** @param {BadSample[]} above it */
  #take(page, above) {
    const known = new Set(above.map(({ sample_id }) => sample_id));
    this.#page = { ...page, samples: [...above, ...page.samples.filter(({ sample_id }) => !known.has(sample_id))] };
  }

  #draw() {
    const [stream, { samples, before }] = [this.#choice.value, this.#page];
    const all = this.#counts.get(stream) ?? 0;
    const fresh = all - (samples.length ? this.#page.bad : 0);
    show(byId("bad-choice"), this.#counts.size > 1);
    show(byId("bad-show"), fresh > 0 && this.#token.isUsable);
    show(byId("bad-more"), before !== null);
    say(byId("bad-show"), `Show ${counted(fresh, samples.length ? "new bad sample" : "bad sample")}`);
    say(byId("bad-words"), this.#words(all));
    sync(byId("bad-list"), samples, (each) => `${stream} ${each.sample_id}`, (each) => this.#card(stream, each));
  }

  #words(all) {
    if (!this.#counts.size) return "None so far: every sample that was needed could be read.";
    if (this.#problem) return `Not listed: ${this.#problem}`;
    if (this.#isBusy) return "The bad samples are being listed.";
    const whose = `${counted(all, "sample")} of ${visible(this.#choice.value)} could not be used`;
    if (!this.#token.isUsable) return `${whose}. The token is needed to see them.`;
    const shown = this.#page.samples.length;
    return shown ? `${whose}; ${count(shown)} shown, the newest first.` : `${whose}.`;
  }

  #card(stream, { sample_id, file, reason, kind }) {
    const [picture, none] = [html("img", { alt: "", hidden: "" }), html("span", { class: "small" }, "…")];
    const name = html("bdi", { class: "file" }, visible(file));
    const about = html("p", { class: "small" }, `${visible(kind)} · sample ${sample_id}`);
    const words = html("div", {}, name, html("p", {}, visible(reason)), about);
    const node = html("li", {}, html("div", { class: "thumbnail" }, picture, none), words);
    const end = this.#thumbnails.watch(node, `thumbnails/${encodeURIComponent(stream)}/${sample_id}`, (url) => {
      say(none, url ? "" : "nothing to see");
      show(picture, url !== null);
      picture.alt = `what can be seen of ${visible(file)}`;
      picture.onload = () => URL.revokeObjectURL(picture.src);
      if (url) picture.src = url;
    });
    return { node, update() {}, end };
  }
}

/** @returns {Promise<BadPage | string>} what is listed, or why it is not */
async function read(response) {
  return response.ok ? response.json() : visible((await response.text()).trim());
}
