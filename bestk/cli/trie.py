"""`bestk trie`: build a catalogue's trie, or tell what one holds."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bestk.cli.options import Model
from bestk.config import DEFAULT_MODEL
from bestk.errors import OptionError


class _Action(StrEnum):
    build = "build"
    info = "info"


def trie(
    action: Annotated[_Action, typer.Argument(help="What is to be done.")],
    file: Annotated[
        Path, typer.Argument(help="To build of: .npy, .jsonl, .parquet or .txt; or a trie.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Trie that is built.")
    ] = None,
    model: Model = DEFAULT_MODEL,
    start: Annotated[str, typer.Option(help="What stands before every text.")] = " ",
    end: Annotated[str, typer.Option(help="What stands after every text.")] = "\n",
) -> None:
    """[bold]bestk trie build titles.txt -o titles.trie --model smollm2[/bold]

    Build the trie of a catalogue from ids or texts, or tell what one holds.
    """
    from bestk.cli import terminal
    from bestk.constraints.sequences import read
    from bestk.constraints.trie import Trie

    if action is _Action.info:
        print(Trie.load(file, mmap=True).describe())
        return
    if output is None:
        raise OptionError("a trie is built into a file: name it with --output")
    rows, items = read(file)
    if len(rows) and isinstance(rows[0], str):
        tokenizer = terminal.load(model, ()).tokenizer
        made = Trie.from_texts(rows, tokenizer, start=start, end=end, items=items)
    else:
        made = Trie.from_sequences(rows, items)
    made.save(output)
    print(made.describe())
