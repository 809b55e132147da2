"""Forty prompts of a user, as a task: taglines, names, openings, explanations, emails.

    bestk eval recipes/chat.py --model smollm2 --max-new-tokens 64 -o out

There are no references: what is measured is how many different texts come, how many end by
themselves, how likely the model finds them, and what a judge says that is not the model. Texts that
were cut at the longest length are kept beside the complete ones.

    python recipes/chat.py results/chat-64                # a table of ten texts of each method
    python recipes/chat.py results/chat-64 --judge alike  # by a sentence model, to be kept
    python recipes/chat.py results/chat-64 --judge GRM --methods BKS_diverse   # by a CoLA model
    python recipes/chat.py results/chat-64 --texts 10 --methods BKS_diverse Minp0.1:walk=distinct

The ten are what the selector chooses of all texts, complete ones before cut ones. What a judge says
is kept beside the run, and is in every table from then on; it needs minutes. The last command
prints the texts as Markdown, all of them, for the first prompts of the run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bestk.rerank.ngrams import distinctness
from bestk.rerank.select import diverse
from bestk_eval.examples import Example
from bestk_eval.metrics.grammar import Grammar
from bestk_eval.statistics import estimate
from bestk_eval.store import read_lines
from bestk_eval.tasks import Task

PROMPTS: dict[str, tuple[str, ...]] = {
    "tagline": (
        "Write a tagline for a bakery.",
        "Write a slogan for a bicycle repair shop.",
        "Write a tagline for a podcast about the history of maps.",
        "Give me a slogan for a city library.",
        "Write a tagline for a tea that helps people sleep.",
        "Write one line that advertises a language school.",
        "Write a slogan for a campaign against food waste.",
        "Write a tagline for a small theatre.",
    ),
    "name": (
        "Give me a name for a grey cat and say why.",
        "Suggest a name for a coffee shop at a railway station.",
        "Invent a name for a board game about beekeeping.",
        "Suggest a name for a sailing boat and explain it.",
        "Give me a name for a band that plays only at weddings.",
        "Suggest a title for a cookbook of soups.",
        "Invent a name for a planet in a science fiction story.",
        "Suggest a name for a community garden.",
    ),
    "opening": (
        "Write the opening sentence of a mystery story.",
        "Write the first sentence of a novel set on a lighthouse island.",
        "Start a fairy tale about a river that forgot its way.",
        "Write the opening of a speech at a retirement party.",
        "Write the first two sentences of a travel essay about Lisbon.",
        "Begin a story in which nobody can lie for one day.",
        "Write an opening line for a talk about sleep.",
        "Write the first sentence of a letter to a future grandchild.",
    ),
    "explanation": (
        "Explain why the sky is blue.",
        "Explain to a child how bread rises.",
        "What is inflation, in simple words?",
        "Why do leaves change colour in autumn?",
        "Explain how a vaccine works.",
        "What does a compiler do?",
        "Explain the rules of chess to a beginner in a few sentences.",
        "Why do we have leap years?",
    ),
    "email": (
        "Write a short email that declines a meeting.",
        "Write an email that asks a landlord to repair the heating.",
        "Write a thank-you note after a job interview.",
        "Write an email to a colleague who is moving to another team.",
        "Write a polite reminder about an unpaid invoice.",
        "Invite the neighbours to a barbecue on Saturday.",
        "Write an apology to a customer whose parcel was late.",
        "Ask a professor for a letter of recommendation.",
    ),
}


def examples() -> list[Example]:
    """List the prompts, in turn one of every kind: the first five are one of each."""
    return [
        Example(id=f"{kind}-{turn + 1}", input=prompts[turn], references=(), fields={"kind": kind})
        for turn in range(len(PROMPTS["tagline"]))
        for kind, prompts in PROMPTS.items()
    ]


TASK = Task(
    name="chat",
    kind="text",
    plain="{input}",
    chat="{input}",
    max_new_tokens=64,
    keeps_cut=True,
    examples=examples,
)

NUM_TEXTS = 10


@dataclass(frozen=True, kw_only=True)
class Ten:
    """The texts of a method that a user is shown for one prompt."""

    example: str
    texts: tuple[str, ...]
    is_complete: tuple[bool, ...]
    per_token: tuple[float, ...]  # log-probability
    expanded: int

    @classmethod
    def of(cls, record: dict[str, Any]) -> Ten:
        """Choose them from a line of results."""
        texts = [*record["texts"], *record["cut"]]
        log_probs = [*record["log_probs"], *record["cut_log_probs"]]
        lengths = [*record["lengths"], *record["cut_lengths"]]
        complete = [True] * len(record["texts"]) + [False] * len(record["cut"])
        places = diverse(texts, log_probs, NUM_TEXTS, is_complete=complete)
        return cls(
            example=record["example"],
            texts=tuple(texts[place] for place in places),
            is_complete=tuple(complete[place] for place in places),
            per_token=tuple(log_probs[place] / max(lengths[place], 1) for place in places),
            expanded=record["expanded"],
        )

    @property
    def numbers(self) -> list[float]:
        """Return how many differ and are complete, how different and how likely they are."""
        return [
            len(set(self.texts)),
            sum(self.is_complete),
            100 * sum(distinctness(self.texts)) / 3,
            float(np.mean(self.per_token)) if self.per_token else float("nan"),
        ]


def tens(folder: Path, methods: Sequence[str] | None = None) -> dict[str, list[Ten]]:
    """Return what a user is shown, by method, in the order of the run."""
    found: dict[str, list[Ten]] = {}
    for _, record in read_lines(folder / "results.jsonl"):
        if not methods or record["method"] in methods:
            found.setdefault(record["method"], []).append(Ten.of(record))
    return found


def similarity(ten: Ten) -> float:
    """Return the mean cosine of the pairs, by a small sentence model."""
    from bestk.rerank.embed import sentence_model

    if len(ten.texts) < 2:
        return float("nan")
    vectors = np.array([list(map(float, v)) for v in sentence_model("minilm")(list(ten.texts))])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return 100 * float((vectors @ vectors.T)[np.triu_indices(len(vectors), 1)].mean())


def grammar(model: str) -> Callable[[Ten], float]:
    """Return the mean probability of being acceptable of complete texts, by a CoLA model."""
    judge, nothing = Grammar(model), Example(id="", input="", references=())

    def score(ten: Ten) -> float:
        complete = [
            text for text, is_whole in zip(ten.texts, ten.is_complete, strict=True) if is_whole
        ]
        return float(np.mean(judge.score(complete, nothing))) if complete else float("nan")

    return score


JUDGES: dict[str, Callable[[str], Callable[[Ten], float]]] = {
    "alike": lambda _: similarity,
    "GRM": grammar,
}
Judged = dict[str, dict[str, dict[str, float]]]  # by judge, method and example


def judged(folder: Path) -> Judged:
    """Return what judges said of a run."""
    path = folder / "judged.json"
    return json.loads(path.read_text()) if path.exists() else {}


def judge(folder: Path, name: str, found: dict[str, list[Ten]], model: str) -> None:
    """Ask a judge, and keep what it says."""
    told, score = judged(folder), JUDGES[name](model)
    for method, rows in found.items():
        numbers = {ten.example: score(ten) for ten in rows}
        kept = {key: round(value, 2) for key, value in numbers.items() if value == value}
        told.setdefault(name, {})[method] = kept
        (folder / "judged.json").write_text(json.dumps(told, indent=None, sort_keys=True))


def table(found: dict[str, list[Ten]], told: Judged) -> str:
    """Write a row for each method; a judge has a column where it judged all of them."""
    told = {name: said for name, said in told.items() if said.keys() >= found.keys()}
    heads = ["different", "complete", "D", "log p a token", *told, "expansions"]
    lines = ["|  | " + " | ".join(heads) + " |", "| :-- |" + " --: |" * len(heads)]
    for method, rows in found.items():
        said = [told[name].get(method, {}) for name in told]
        numbers = [ten.numbers + [one.get(ten.example, np.nan) for one in said] for ten in rows]
        cells = [_cell(np.array(column)) for column in zip(*numbers, strict=True)]
        expanded = sum(ten.expanded for ten in rows) / len(rows)
        lines.append(f"| {method} | {' | '.join(cells)} | {expanded:.0f} |")
    return "\n".join(lines)


def _cell(values: Any) -> str:
    found = estimate(values, len(values))
    if found.low is None or found.high is None:
        return "none"
    digits = 2 if found.value < 0 else 1
    return f"{found.value:.{digits}f}\N{PLUS-MINUS SIGN}{(found.high - found.low) / 2:.{digits}f}"


def listing(found: dict[str, list[Ten]], most: int) -> str:
    """Write all texts of the first prompts, method after method."""
    prompts = {example.id: example.input for example in examples()}
    lines: list[str] = []
    for place in range(most):
        shown = {method: rows[place] for method, rows in found.items()}
        lines += ["", f"## {prompts[next(iter(shown.values())).example]}"]
        for method, ten in shown.items():
            lines += ["", f"`{method}`", ""]
            marks = ["" if whole else " ✂" for whole in ten.is_complete]
            lines += [
                f"{number}. {_one_line(text)}{mark}"
                for number, (text, mark) in enumerate(zip(ten.texts, marks, strict=True), 1)
            ]
    return "\n".join(lines).strip()


def _one_line(text: str) -> str:
    """Write a text as code on one line, a line's end as a sign."""
    told = text.strip().replace("\n", "⏎")
    fence = "``" if "`" in told else "`"
    return f"{fence}{told}{fence}" if told else "(nothing)"


def main() -> None:
    """Print the table of a run, or its texts."""
    parser = argparse.ArgumentParser(description="Ten texts of each method for prompts of a user.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--texts", type=int, help="print those of so many prompts")
    parser.add_argument("--judge", choices=JUDGES, help="ask, and keep what is said")
    parser.add_argument("--grammar-model", default="smollm2-cola", help="CoLA classifier")
    options = parser.parse_args()
    found = tens(options.folder, options.methods)
    if options.texts is not None:
        print(listing(found, options.texts))
        return
    if options.judge:
        judge(options.folder, options.judge, found, options.grammar_model)
    print(table(found, judged(options.folder)))


if __name__ == "__main__":
    main()
