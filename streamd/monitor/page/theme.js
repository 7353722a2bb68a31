// @ts-check
/** Auto, light or dark: kept for the next visit, and there before anything is drawn. */

const SCHEMES = ["auto", "light", "dark"];
const KEY = "streamd.colours";

/** @returns {string} */
function kept() {
  try {
    const scheme = localStorage.getItem(KEY);
    return scheme && SCHEMES.includes(scheme) ? scheme : "auto";
  } catch {
    return "auto"; // storage may be forbidden
  }
}

/** @param {string} scheme */
function wear(scheme) {
  document.documentElement.dataset.theme = scheme;
  try {
    localStorage.setItem(KEY, scheme);
  } catch {
    // then it lasts as long as the page
  }
}

/** @param {HTMLElement} button which goes from one to the next */
export function offerSchemes(button) {
  const show = () => (button.textContent = `Colours: ${document.documentElement.dataset.theme}`);
  button.addEventListener("click", () => {
    const at = SCHEMES.indexOf(document.documentElement.dataset.theme ?? "auto");
    wear(SCHEMES[(at + 1) % SCHEMES.length]);
    show();
  });
  show();
}

wear(kept());
