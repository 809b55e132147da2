"""SQuAD's development part without the articles that smollm2-question was trained on, as a task.

    bestk eval recipes/squad_held_out.py --data-dir data --model smollm2-question -o out

`--split validation` are other articles, to choose settings on. Split by article, never by question:
questions on one article are much alike.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

from bestk.errors import OptionError, unknown
from bestk_eval.examples import Example
from bestk_eval.tasks import Task, task_of
from bestk_eval.tasks.catalog import question

PARTS = ("test", "validation", "train")


class HeldOut(Task):
    """SQuAD by articles; its splits are parts of one file."""

    def of_split(self, split: str) -> Task:
        """Return the task with the articles of another part."""
        if split not in PARTS:
            raise OptionError(unknown("part of SQuAD", split, PARTS))
        return dataclasses.replace(self, gather=functools.partial(only, split))


def part_of(title: str) -> str:
    """Say what an article is for, by a hash of its title: half of them are trained on."""
    first, second, *_ = hashlib.sha256(title.encode()).digest()
    return "train" if first % 2 else "test" if second % 4 else "validation"


def read(record: Mapping[str, Any]) -> Example:
    """Read a question, with the title of its article."""
    found = question(record)
    return dataclasses.replace(found, fields={**found.fields, "title": record["title"]})


def only(part: str, examples: list[Example]) -> list[Example]:
    """Keep the articles of one part."""
    return [example for example in examples if part_of(example.fields["title"]) == part]


TASK = HeldOut(
    **{
        **vars(task_of("squad")),
        "name": "squad-held-out",
        "hub": None,
        "read": read,
        "gather": functools.partial(only, "test"),
    }
)
