"use strict";
/* Runs before the first paint, so that a page whose reader chose dark never flashes light. */
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("bestk.theme");
  } catch {
    // Storage is switched off: the system's choice it is.
  }
  const isDark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen || (isDark ? "dark" : "light");
})();
