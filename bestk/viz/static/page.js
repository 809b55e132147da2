"use strict";
/* The file that `to_html` writes: reads the graph out of the page and shows it. */
(() => {
  const { bestk } = window;
  const graph = JSON.parse(document.getElementById("bestk-graph").textContent);
  bestk.viewer = bestk.view(document.getElementById("bestk-viewer"), graph);
})();
