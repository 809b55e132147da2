"use strict";
/* Light or dark: the system's choice until the reader makes one. Runs before the first paint, so that a
   page whose reader chose dark never flashes light. */
(() => {
  const bestk = (window.bestk = window.bestk || {});
  const NAME = "bestk.theme";
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const heard = [];

  function chosen() {
    try {
      return localStorage.getItem(NAME);
    } catch {
      return null; // storage is switched off: a choice lasts as long as the page
    }
  }

  function set(theme) {
    document.documentElement.dataset.theme = theme;
    for (const hear of heard) hear(theme);
  }

  bestk.theme = {
    get name() {
      return document.documentElement.dataset.theme;
    },
    toggle() {
      const next = this.name === "dark" ? "light" : "dark";
      try {
        localStorage.setItem(NAME, next);
      } catch {
        // See above.
      }
      set(next);
    },
    onChange: (hear) => heard.push(hear),
  };
  const ofSystem = () => (system.matches ? "dark" : "light");
  system.addEventListener("change", () => chosen() || set(ofSystem()));
  set(chosen() || ofSystem());
})();
