// @ts-check
/** Figures and names for people. Pure. */
/** @import { Trainer } from "./shapes.js" */

const NOT_KNOWN = "–";
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const EXACT_BELOW = 10; // slower rates than this show a decimal
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// Controls, what reorders or hides text, and halves of pairs. Joiners stay: scripts and emoji need them.
const UNSEEN = /[\p{Cc}\p{Cs}\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;

/** @param {number | null | undefined} number */
export function count(number) {
  return number == null ? NOT_KNOWN : WHOLE.format(number);
}

/** `1 batch`, `1,234 batches`. @param {number} number @param {string} what @param {string} [plural] */
export function counted(number, what, plural = `${what}s`) {
  return `${count(number)} ${number === 1 ? what : plural}`;
}

/** In as many digits as tell something. @param {number | null | undefined} perS */
export function rate(perS) {
  if (perS == null) return NOT_KNOWN;
  return perS > 0 && perS < EXACT_BELOW ? perS.toFixed(1) : WHOLE.format(perS);
}

/** @param {number | null | undefined} part 0 to 1 */
export function percent(part) {
  return part == null ? NOT_KNOWN : `${Math.round(part * 100)} %`;
}

/** @param {number | null | undefined} number */
export function hundredths(number) {
  return number == null ? NOT_KNOWN : number.toFixed(2);
}

/** @param {number | null | undefined} number */
export function bytes(number) {
  if (number == null) return NOT_KNOWN;
  const power = Math.min(UNITS.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, number)) / 10)));
  const value = number / 1024 ** power;
  return `${value < EXACT_BELOW && power ? value.toFixed(1) : WHOLE.format(value)} ${UNITS[power]}`;
}

/** In one unit, to a hundredth or so. @param {number} seconds */
export function span(seconds) {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} d`;
}

/** A name from outside with what cannot be seen, or would reorder the text, written out. @param {string} text */
export function visible(text) {
  const code = (each) => (each.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0");
  return String(text).replace(UNSEEN, (each) => `⟨U+${code(each)}⟩`);
}

/** As much of a text as so many cells hold; wide letters take two. @param {string} text @param {number} chars */
export function fitted(text, chars) {
  let left = Math.floor(chars);
  let fits = "";
  for (const each of text) {
    left -= (each.codePointAt(0) ?? 0) >= 0x1100 ? 2 : 1;
    if (left < 0) return `${fits.slice(0, -1)}…`;
    fits += each;
  }
  return fits;
}

/** How many trainers there are: what one process reads, such as training and validation, is one. */
export function processesOf(/** @type {Trainer[]} */ trainers) {
  return new Set(trainers.map(({ pid, session }) => (pid ? `pid ${pid}` : `session ${session}`))).size;
}

/** @param {Trainer} trainer */
export function epochOf(trainer) {
  return `epoch ${count(trainer.epoch + 1)}${trainer.epochs == null ? "" : ` of ${count(trainer.epochs)}`}`;
}
