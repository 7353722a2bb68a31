// @ts-check
/** What the page keeps for itself. Where storage is forbidden, it is kept as long as the page is there. */

/** @typedef {"localStorage" | "sessionStorage"} Place for good, or while the tab lives */

/** @param {Place} place @param {string} key */
export function recall(place, key) {
  try {
    return globalThis[place].getItem(key) ?? "";
  } catch {
    return "";
  }
}

/** @param {Place} place @param {string} key @param {string} value */
export function keep(place, key, value) {
  try {
    globalThis[place].setItem(key, value);
  } catch {
    // the page itself still has it
  }
}
