// @ts-check
/** One picture of a batch, large, with all that is known of it; the batch stays while it is looked at. */
import { byId, html, say } from "./dom.js";
import { visible } from "./words.js";

/** @import { Batch, Sample } from "./shapes.js" */

export class Large {
  #dialog = /** @type {HTMLDialogElement} */ (byId("large"));
  /** @type {Batch | null} */
  #batch = null;
  #row = 0;

  /** @param {() => void} closed */
  constructor(closed) {
    this.#dialog.addEventListener("close", closed);
    this.#dialog.addEventListener("keydown", (event) => this.#key(event.key));
    this.#dialog.addEventListener("click", (event) => event.target === this.#dialog && this.#dialog.close());
    byId("large-close").onclick = () => this.#dialog.close();
    byId("large-before").onclick = () => this.#go(-1);
    byId("large-after").onclick = () => this.#go(1);
  }

  get isOpen() {
    return this.#dialog.open;
  }

  /** @param {Batch} batch @param {number} row */
  open(batch, row) {
    this.#batch = batch;
    this.#row = row;
    this.#draw();
    this.#dialog.showModal();
  }

  #key(key) {
    if (key === "ArrowLeft") this.#go(-1);
    if (key === "ArrowRight") this.#go(1);
  }

  #go(steps) {
    const rows = this.#batch?.samples.length ?? 0;
    if (rows) this.#row = (this.#row + steps + rows) % rows;
    this.#draw();
  }

  #draw() {
    const sample = this.#batch?.samples[this.#row];
    if (!this.#batch || !sample) return;
    const place = `${visible(this.#batch.stream)} ${this.#batch.epoch}:${this.#batch.index}`;
    say(byId("large-heading"), `Row ${this.#row} of batch ${place}`);
    const picture = byId("large-picture");
    picture.hidden = !sample.picture;
    if (sample.picture) picture.src = sample.picture;
    picture.alt = labelsOf(sample) || "no label";
    const facts = factsOf(sample).flatMap(([name, words]) => [html("dt", {}, name), html("dd", {}, words)]);
    byId("large-facts").replaceChildren(...facts);
  }
}

/** @param {Sample} sample */
export function labelsOf(sample) {
  return sample.labels.map(visible).join(", ");
}

/** Why a row is not what was planned; nothing for most. @param {Sample} sample */
export function markOf(sample) {
  if (sample.mark) return sample.mark;
  return sample.weight === 1 ? "" : `weight ${sample.weight}`;
}

function factsOf(sample) {
  /** @type {[string, string][]} */
  const facts = [
    ["Labels", labelsOf(sample) || "none"],
    ["File", visible(sample.file)],
    ["Sample", String(sample.sample_id)],
    ["Weight", String(sample.weight)],
  ];
  if (sample.mark) facts.push(["Mark", sample.mark]);
  if (sample.bad) facts.push(["Planned file", visible(sample.bad.file)], ["Reason", visible(sample.bad.reason)]);
  return facts;
}
