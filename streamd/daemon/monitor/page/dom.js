// @ts-check
/** The few things the page does with the document. Text goes in as text only, and only what has changed is touched. */

import { visible } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {string | Node} Child */
/** @typedef {Record<string, string | number | null>} Attributes */

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 */
export function html(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/**
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 */
export function svg(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

/** @template {Element} N @param {N} node @param {Attributes} attributes @param {Child[]} children */
function furnish(node, attributes, children) {
  setAll(node, attributes);
  node.append(...children);
  return node;
}

/** The element of the page's own skeleton. @param {string} id @returns {any} */
export function byId(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`the page lacks #${id}`);
  return node;
}

/** @param {Element} node @param {string} name @param {string | number | null} value null takes it away */
export function set(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/** @param {Element} node @param {Attributes} attributes */
export function setAll(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) set(node, name, value);
}

/** What is selected in a text, or read out, stays so. @param {Element} node @param {string} text */
export function say(node, text) {
  const [only] = node.childNodes;
  if (!(only instanceof Text)) node.textContent = text;
  else if (only.data !== text) only.data = text;
}

/** A sentence of the daemon's, in which `this` is code. @param {Element} node @param {string} text */
export function sayProse(node, text) {
  if (node.textContent === text.replaceAll("`", "")) return;
  node.replaceChildren(...text.split("`").map((part, at) => (at % 2 ? html("code", {}, part) : part)));
}

/** @param {HTMLElement} node @param {boolean} isShown */
export function show(node, isShown) {
  if (node.hidden === isShown) node.hidden = !isShown;
}

/**
 * A node that stands for an item as long as the item is there.
 * @template T
 * @typedef {object} Part
 * @property {Element} node
 * @property {(item: T) => void} update
 * @property {() => void} [end]
 */

/** @type {WeakMap<Element, Map<string, Part<any>>>} */
const known = new WeakMap();

/**
 * Lets the children of `parent` be the parts of `items`, in their order. Those that stay are neither made anew nor
 * moved without need, so that nothing in them loses focus or scroll position.
 * @template T
 * @param {Element} parent
 * @param {readonly T[]} items
 * @param {(item: T) => string | number} keyOf
 * @param {(item: T) => Part<T>} make
 */
export function sync(parent, items, keyOf, make) {
  const parts = known.get(parent) ?? new Map();
  known.set(parent, parts);
  dismiss(parts, new Set(items.map((item) => String(keyOf(item)))));
  /** @type {Element | null} */
  let last = null;
  for (const item of items) {
    const key = String(keyOf(item));
    const part = parts.get(key) ?? make(item);
    parts.set(key, part);
    const next = last ? last.nextSibling : parent.firstChild;
    if (part.node !== next) parent.insertBefore(part.node, next);
    part.update(item);
    last = part.node;
  }
}

function dismiss(parts, kept) {
  for (const [key, part] of parts) {
    if (kept.has(key)) continue;
    part.node.remove();
    part.end?.();
    parts.delete(key);
  }
}

/** Options of a choice; what was chosen stays so. @param {HTMLSelectElement} select @param {string[]} names */
export function offer(select, names) {
  sync(select, names, String, (name) => ({ node: html("option", { value: name }, visible(name)), update() {} }));
}
