"""SQuAD's development part without the articles that smollm2-question was trained on, as a task.

    bestk eval recipes/squad_held_out.py --data-dir data --model smollm2-question -o out

Split by article, never by question: questions on one article are much alike.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from bestk.evaluation.examples import Example
from bestk.evaluation.tasks import task_of
from bestk.evaluation.tasks.catalog import question


def is_held_out(title: str) -> bool:
    """Say whether an article is kept for testing: half of them are, by a hash of the title."""
    return hashlib.sha256(title.encode()).digest()[0] % 2 == 0


def read(record: Mapping[str, Any]) -> Example:
    """Read a question, with the title of its article."""
    found = question(record)
    return dataclasses.replace(found, fields={**found.fields, "title": record["title"]})


def held_out(examples: list[Example]) -> list[Example]:
    """Leave out the articles that were trained on."""
    return [example for example in examples if is_held_out(example.fields["title"])]


TASK = dataclasses.replace(
    task_of("squad"), name="squad-held-out", hub=None, read=read, gather=held_out
)
