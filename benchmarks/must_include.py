"""How often a search returns a text with all words of a set, with and without must_include.

python benchmarks/must_include.py            # a dozen sets, two prompts: about ten minutes on a CPU
python benchmarks/must_include.py --sets 2
"""

from __future__ import annotations

import argparse
from typing import Any

import bestk
from bestk.constraints.phrases import Phrase

SETS = (
    "ball dog mouth run",
    "apple tree pick",
    "book read table",
    "cat sleep sofa",
    "coffee drink morning cup",
    "car drive road night",
    "bird sing tree",
    "boy kick ball field",
    "rain umbrella walk street",
    "music dance party",
    "fish swim lake",
    "cook kitchen pan egg",
)
PROMPTS = {
    "named": "Write one short sentence with all of these words: {words}.",
    "open": "Write one short sentence about everyday life.",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=len(SETS))
    parser.add_argument("--include-bonus", type=float, default=bestk.SearchConfig().include_bonus)
    arguments = parser.parse_args()
    lm = bestk.load("smollm2", dtype="float32")
    for name, prompt in PROMPTS.items():
        for is_constrained in (False, True):
            rows = [
                measure(lm, prompt, words.split(), is_constrained, arguments.include_bonus)
                for words in SETS[: arguments.sets]
            ]
            found = [score for count, score in rows if count]
            mean = sum(found) / len(found) if found else float("nan")
            print(
                f"{name:6} {'must_include' if is_constrained else 'none':12} "
                f"{len(found)}/{len(rows)} searches, "
                f"{sum(count for count, _ in rows) / len(rows):.1f} texts, best {mean:.2f}",
                flush=True,
            )


def measure(
    lm: bestk.LanguageModel, prompt: str, words: list[str], is_constrained: bool, bonus: float
) -> tuple[int, float]:
    """Count the texts with all words, and return the score of the best of them."""
    options: dict[str, Any] = {}
    if is_constrained:
        options = {"must_include": words, "include_bonus": bonus}
    message = {"role": "user", "content": prompt.format(words=", ".join(words))}
    result = bestk.search(lm, [message], keep_tree=False, **options)
    good = [h for h in result.hypotheses if all(Phrase(word).is_in(h.text) for word in words)]
    return len(good), good[0].score if good else float("nan")


if __name__ == "__main__":
    main()
