"""Frames per second while the HTML picture of a large search is panned in headless Chromium.

    python benchmarks/viz_fps.py --nodes 5000

Needs Debian's `chromium` and the `playwright` package. Frames are counted in the page, one for each
requestAnimationFrame callback, while the view moves at every frame. `replay` is the time that a
jump to another step takes, the layout and the lists included.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
from pathlib import Path

import bestk
from bestk.backends.toy import ToyBackend
from bestk.viz.html import to_html

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

PAN = """
([name, seconds]) => new Promise((resolve) => {
  const { tree } = bestk.viewer;
  Object.assign(tree.view, tree.fitted());
  const scales = { whole: tree.view.scale, boxes: 0.25, words: 0.62 };
  tree.zoom(scales[name] / tree.view.scale);
  if (name !== "whole") { // go where the tree is thickest
    const column = tree.columns.reduce((a, b) => (b.length > a.length ? b : a));
    const at = tree.place(column[column.length >> 1]);
    tree.pan(tree.width / 2 - at.x, tree.height / 2 - at.y);
  }
  const stamps = [];
  let most = { nodes: 0, edges: 0, labels: 0 };
  const begin = performance.now();
  const move = (now) => {
    stamps.push(now);
    if (now - begin > seconds * 1000) {
      const gaps = stamps.slice(1).map((stamp, i) => stamp - stamps[i]);
      return resolve({ gaps, drawn: most });
    }
    const drawn = tree.drawn;
    if (stamps.length > 3 && drawn.nodes > most.nodes) most = { ...drawn };
    tree.pan(6 * Math.sin(stamps.length / 20), 6 * Math.cos(stamps.length / 20));
    requestAnimationFrame(move);
  };
  requestAnimationFrame(move);
})
"""


SCRUB = """
() => {
  const { viewer } = bestk;
  const times = [];
  for (let i = 0; i < 40; i += 1) {
    const begin = performance.now();
    viewer.goto(Math.round((viewer.lastStep * i) / 39));
    times.push(performance.now() - begin);
  }
  times.sort((a, b) => a - b);
  return { median_ms_per_step: +times[20].toFixed(1), most_ms: +times[39].toFixed(1) };
}
"""


def large_result(num_nodes: int) -> bestk.SearchResult:
    """Search a toy model whose distributions are drawn from the prefix, until enough is found."""

    def distribution(prefix: tuple[int, ...]) -> list[float]:
        source = random.Random(repr(prefix))
        weights = [source.random() ** 3 for _ in range(12)]
        weights[0] *= 0.3
        return [weight / sum(weights) for weight in weights]

    lm = bestk.LanguageModel(ToyBackend(distribution, vocab_size=12))
    budget = max(20, num_nodes // 5)
    return bestk.search(
        lm, [1], k=10, budget=budget, max_new_tokens=30, max_frontier=5 * budget, min_prob=0.05
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    result = large_result(options.nodes)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "tree.html"
        to_html(result, path)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        page = browser.new_page(viewport={"width": 1360, "height": 820})
        page.goto(path.as_uri())
        shown = page.evaluate("bestk.viewer.tree.columns.flat().length")
        for name in ("whole", "boxes", "words"):
            measured = page.evaluate(PAN, [name, options.seconds])
            gaps = sorted(measured["gaps"])
            row = {
                "view": name,
                "nodes_in_tree": shown,
                "drawn": measured["drawn"],
                "fps": round(1000 / statistics.mean(gaps), 1),
                "p95_ms": round(gaps[int(0.95 * (len(gaps) - 1))], 1),
            }
            print(json.dumps(row))
        print(json.dumps({"replay": page.evaluate(SCRUB)}))
        browser.close()


if __name__ == "__main__":
    main()
