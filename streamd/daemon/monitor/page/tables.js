// @ts-check
/** Tables told by their columns. Roles are written out: cells that become cards on a phone would lose theirs. */
import { html, say, set } from "./dom.js";

/** @template T @import { Part } from "./dom.js" */

/** @template T @typedef {[kind: string, words: (item: T) => string, mark?: (item: T) => string]} Field */

/**
 * A column, of which the first of a table names the row; `extra` is drawn below the texts.
 * @template T
 * @typedef {{head: string, fields: Field<T>[], extra?: (item: T) => Part<T>}} Column
 */

/** @param {Column<any>[]} columns */
export function tableHead(columns) {
  const cells = columns.map(({ head }) => html("th", { scope: "col", role: "columnheader" }, head));
  return html("thead", { role: "rowgroup" }, html("tr", { role: "row" }, ...cells));
}

/** @template T @param {Column<T>[]} columns @param {T} item @returns {Part<T>} */
export function tableRow(columns, item) {
  const cells = columns.map((column, at) => cell(column, at === 0, item));
  const node = html("tr", { role: "row" }, ...cells.map((each) => each.node));
  return { node, update: (now) => cells.forEach((each) => each.update(now)) };
}

/** @template T @param {Column<T>} column @param {boolean} isHead @param {T} item @returns {Part<T>} */
function cell({ head, fields, extra }, isHead, item) {
  const texts = fields.map(([kind]) => html("bdi", { class: kind }));
  const more = extra?.(item);
  const box = html("div", {}, ...texts.flatMap((text) => [text, " "]), ...(more ? [more.node] : []));
  /** @param {T} now */
  const update = (now) => {
    fields.forEach(([, words, mark], at) => {
      say(texts[at], words(now));
      if (mark) set(texts[at], "data-mark", mark(now));
    });
    more?.update(now);
  };
  const td = () => html("td", { role: "cell", "data-label": head }, box);
  return { node: isHead ? html("th", { role: "rowheader", scope: "row" }, box) : td(), update };
}
