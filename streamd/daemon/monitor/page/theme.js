// @ts-check
/** Auto, light or dark: kept for the next visit, and there before anything is drawn. */
import { keep, recall } from "./kept.js";

const SCHEMES = ["auto", "light", "dark"];
const KEY = "streamd.colours";
const { dataset } = document.documentElement;

/** @param {HTMLElement} button which goes from one to the next */
export function offerSchemes(button) {
  const show = () => (button.textContent = `Colours: ${dataset.theme}`);
  button.addEventListener("click", () => {
    dataset.theme = SCHEMES[(SCHEMES.indexOf(dataset.theme ?? "") + 1) % SCHEMES.length];
    keep("localStorage", KEY, dataset.theme);
    show();
  });
  show();
}

const kept = recall("localStorage", KEY);
dataset.theme = SCHEMES.includes(kept) ? kept : "auto";
