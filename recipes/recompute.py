"""Recomputes the numbers of a report from run files alone: nothing of bestk is imported.

    python recipes/recompute.py results/commongen --examples data/commongen/dev.jsonl --texts top
    bestk report results/commongen --data-dir data --texts top --table full      # the same numbers

Prints, for every method: S (texts completed), |S| (different ones), D (mean of D-1, D-2, D-3), R
(mean of ROUGE-1, -2 and -L over the texts), OR (the paper's oracle: the maximum of each of the
three, by itself, averaged) and best (the oracle of one text: the highest mean of its three). A run
that is put away has no examples: `--examples` are JSON lines with references, found by `id` or by
their line. `--chosen` is JSON with the places of the texts that a report chose:
{method: {example: [0, 4, ...]}}.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rouge_score.rouge_scorer import RougeScorer

ROUGES = ("rouge1", "rouge2", "rougeL")
OPENERS: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
WORD = re.compile(r"\w+(?:['’\-]\w+)*")
Row = dict[str, Any]


def lines(path: Path) -> Iterator[Row]:
    """Yield the JSON lines of a file, packed or not."""
    forms = [path, *(path.with_name(path.name + suffix) for suffix in OPENERS)]
    found = next(form for form in forms if form.exists())
    with OPENERS.get(found.suffix, open)(found, "rt", encoding="utf-8") as rows:
        yield from map(json.loads, rows)


def references(folder: Path, data: Path | None) -> dict[str, list[str]]:
    """Return what people wrote, by example."""
    if (folder / "examples.jsonl").exists() or data is None:
        return {row["id"]: row["references"] for row in lines(folder / "examples.jsonl")}
    known: dict[str, list[str]] = {}
    for number, row in enumerate(lines(data), start=1):
        name = str(next((row[k] for k in ("id", "concept_set_idx", "paper_id") if k in row), ""))
        texts = row.get("references", row.get("target", row.get("question", row.get("summaries"))))
        known[name or f"{data.name}:{number}"] = [texts] if isinstance(texts, str) else texts
    return known


def distinctness(texts: list[str]) -> float:
    """Return the mean over n = 1, 2, 3 of the different n-grams per word, in percent."""
    split = [WORD.findall(text.lower()) for text in texts]
    total = sum(map(len, split))
    if not total:
        return 0.0
    shares = []
    for n in (1, 2, 3):
        grams = {tuple(w[i : i + n]) for w in split for i in range(len(w) - n + 1)}
        shares.append(100 * len(grams) / total)
    return sum(shares) / 3


def shown(row: Row, view: str, top: int, chosen: dict[str, Any] | None) -> list[str]:
    """Return the texts of a view, one that counts twice twice."""
    if chosen is not None:
        return [row["texts"][place] for place in chosen[row["method"]][row["example"]]]
    if view == "all":
        counted = zip(row["texts"], row["counts"], strict=True)
        return [text for text, count in counted for _ in range(count)]
    return row["texts"] if view == "unique" else row["texts"][:top]


def rouges(scorer: RougeScorer, texts: list[str], refs: list[str]) -> list[list[float]]:
    """Score each text against its best reference, measure by measure."""
    known: dict[str, list[float]] = {}
    for text in texts:
        if text not in known:
            best = scorer.score_multi(refs, text)
            known[text] = [100 * best[name].fmeasure for name in ROUGES]
    return [known[text] for text in texts]


def measured(folder: Path, args: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Return the numbers of every example, by method."""
    refs = references(folder, args.examples)
    chosen = None if args.chosen is None else json.loads(args.chosen.read_text())
    scorer = RougeScorer(list(ROUGES), use_stemmer=True)
    found: dict[str, list[list[float]]] = defaultdict(list)
    for row in lines(folder / "results.jsonl"):
        if args.methods and row["method"] not in args.methods:
            continue
        texts = shown(row, args.texts, args.top, chosen)
        scores = rouges(scorer, texts, refs[row["example"]]) or [[0.0] * 3]
        mean = sum(map(sum, scores)) / (3 * len(scores))
        oracle = sum(max(column) for column in zip(*scores, strict=True)) / 3
        best = max(map(sum, scores)) / 3
        counts = [sum(row["counts"]), len(row["texts"])]
        found[row["method"]].append([*counts, distinctness(texts), mean, oracle, best])
    return found


def main() -> None:
    """Print a table of each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--examples", type=Path)
    parser.add_argument("--texts", choices=("all", "unique", "top"), default="all")
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--chosen", type=Path)
    parser.add_argument("--methods", nargs="*")
    args = parser.parse_args()
    for folder in args.folders:
        print(
            f"{folder}\n{'':44}" + "".join(f"{h:>8}" for h in ("S", "|S|", "D", "R", "OR", "best"))
        )
        for method, rows in measured(folder, args).items():
            means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
            print(f"{method:44}" + "".join(f"{value:8.2f}" for value in means))


if __name__ == "__main__":
    main()
