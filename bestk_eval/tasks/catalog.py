"""The tasks of the paper with its settings, and two more: SciTLDR and Multi30k.

Records are read by the keys of the local files or of the hub's datasets, whichever they have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bestk_eval.examples import Example
from bestk_eval.tasks.base import Hub, Record, Task

# A branch that the hub keeps for datasets whose own files are scripts.
_PARQUET = "refs/convert/parquet"

_ASK = (
    "Write one question about the text below. Its answer must be: {answer}\n\n"
    "Text: {context}\n\nReply with the question alone."
)
_SUMMARISE = (
    "Summarise the text below in one sentence.\n\n{document}\n\nReply with the summary alone."
)


def question(record: Record) -> Example:
    """Read a question with its answer and context; the question is what is to be written."""
    answers = record.get("answers", record.get("answer", record.get("answers_spans")))
    if isinstance(answers, dict):
        answers = answers.get("text", answers.get("spans"))
    answer = answers if isinstance(answers, str) else answers[0]
    context = record["context"] if "context" in record else record["passage"]
    return Example(
        id=_id(record, "id", "query_id"),
        input=context,
        references=(record["question"],),
        fields={"answer": answer, "context": context},
    )


def concepts(record: Record) -> Example:
    """Read a set of words and the sentences that people made of them."""
    listed = list(record["concepts"])
    references = record["references"] if "references" in record else [record["target"]]
    return Example(
        id=_id(record, "id", "concept_set_idx"),
        input=" ".join(listed),
        references=tuple(references),
        fields={"concepts": listed},
    )


def summary(record: Record) -> Example:
    """Read a document and its summaries."""
    document = record["document"] if "document" in record else record["source"]
    summaries = next(record[k] for k in ("summaries", "summary", "target") if k in record)
    text = document if isinstance(document, str) else " ".join(document)
    return Example(
        id=_id(record, "id", "paper_id"),
        input=text,
        references=(summaries,) if isinstance(summaries, str) else tuple(summaries),
        fields={"document": text},
    )


def translation(source: str, target: str) -> Callable[[Record], Example]:
    """Make a reader of sentence pairs, with more references where there are."""

    def read(record: Record) -> Example:
        pair: Any = record.get("translation", record)
        text = pair["src"] if "src" in pair else pair[source]
        reference = pair["ref"] if "ref" in pair else pair[target]
        references = [reference] if isinstance(reference, str) else list(reference)
        return Example(
            id=_id(record, "id"),
            input=text if isinstance(text, str) else text[0],
            references=tuple(references + list(pair.get("extra_refs", []))),
        )

    return read


def by_input(examples: list[Example]) -> list[Example]:
    """Join examples of one input: the hub's CommonGen has a row for each reference."""
    found: dict[str, Example] = {}
    for example in examples:
        known = found.get(example.input)
        references = (known.references if known else ()) + example.references
        found[example.input] = Example(
            id=(known or example).id,
            input=example.input,
            references=references,
            fields=example.fields,
        )
    return list(found.values())


def _id(record: Record, *keys: str) -> str:
    return next((str(record[key]) for key in keys if key in record), "")


def _question_task(name: str, hub: Hub, max_new_tokens: int, *files: str) -> Task:
    return Task(
        name=name,
        kind="question",
        plain=r"{answer} \n {context}",  # as MixQG was trained, the backslash included
        chat=_ASK,
        max_new_tokens=max_new_tokens,
        long_field="context",
        files=files,
        hub=hub,
        read=question,
    )


def _summary_task(name: str, hub: Hub, max_new_tokens: int) -> Task:
    return Task(
        name=name,
        kind="summary",
        plain="{document}",
        chat=_SUMMARISE,
        max_new_tokens=max_new_tokens,
        long_field="document",
        files=(f"{name}/test*", f"{name}/dev*"),
        hub=hub,
        read=summary,
    )


_LANGUAGES = {"de": "German", "fr": "French"}


def _translation_task(name: str, target: str, hub: Hub | None, *files: str) -> Task:
    language = _LANGUAGES[target]
    return Task(
        name=name,
        kind="translation",
        plain="{input}",
        chat=f"Translate into {language}: {{input}}\n\nReply with the translation alone.",
        source_factor=1.5,
        files=files,
        hub=hub,
        read=translation("en", target),
    )


_COMMONGEN = Task(
    name="commongen",
    kind="concepts",
    plain="{concepts}",
    chat="Write one short sentence about everyday life that uses all of these words: {concepts}"
    "\n\nReply with the sentence alone.",
    max_new_tokens=20,
    files=("commongen/test*", "commongen/dev*"),
    hub=Hub(path="allenai/common_gen", split="validation"),  # the hub's test has no references
    read=concepts,
    gather=by_input,
)

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _question_task("squad", Hub(path="rajpurkar/squad", split="validation"), 25, "squad/dev*"),
        _question_task(
            "quoref",
            Hub(path="allenai/quoref", split="validation", revision=_PARQUET),
            25,
            "quoref/dev*",
        ),
        _question_task(
            "drop", Hub(path="ucinlp/drop", split="validation"), 20, "drop/dev*", "drop/*test*"
        ),
        _COMMONGEN,
        _summary_task("xsum", Hub(path="EdinburghNLP/xsum", revision=_PARQUET), 30),
        # A quarter of its summaries are longer than 30 tokens.
        _summary_task(
            "scitldr", Hub(path="allenai/scitldr", name="Abstract", revision=_PARQUET), 40
        ),
        _translation_task(
            "wmt14-en-de",
            "de",
            Hub(path="wmt/wmt14", name="de-en"),
            "wmt14_multiref/en-de*",
            "wmt14/en-de*",
        ),
        _translation_task(
            "wmt14-en-fr",
            "fr",
            Hub(path="wmt/wmt14", name="fr-en"),
            "wmt14_multiref/en-fr*",
            "wmt14/en-fr*",
        ),
        _translation_task(
            "multi30k-en-de", "de", Hub(path="bentrevett/multi30k"), "multi30k/test_2016*"
        ),
        _translation_task("multi30k-en-fr", "fr", None, "multi30k/test_2016*"),
    )
}
