// @ts-check
/** What both kinds of table are made of. Roles are written out: cells that become cards on a phone would lose theirs. */
import { html } from "./dom.js";

/** @param {string[]} columns */
export function tableHead(columns) {
  const cells = columns.map((column) => html("th", { scope: "col", role: "columnheader" }, column));
  return html("thead", { role: "rowgroup" }, html("tr", { role: "row" }, ...cells));
}

/** A cell that says what it is where there is no head above it. @param {string} label @param {...(string | Node)} children */
export function cell(label, ...children) {
  return html("td", { role: "cell", "data-label": label }, html("div", {}, ...children));
}

/** @param {...(string | Node)} children */
export function rowHead(...children) {
  return html("th", { role: "rowheader", scope: "row" }, ...children);
}

/** @param {string} [text] */
export function figure(text = "") {
  return html("span", { class: "figure" }, text);
}

/** @param {string} [text] */
export function small(text = "") {
  return html("span", { class: "small" }, text);
}
