"""`bestk show`: draw a saved search, without its model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show(
    result: Annotated[Path, typer.Argument(help="A result saved with its tree, as JSON.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The picture: .html, .dot, .svg or .json (the graph)."),
    ],
) -> None:
    """[bold]bestk show result.json -o tree.html[/bold]

    Draw the tree of a saved search as a page, a Graphviz drawing or plain data.
    """
    from bestk.viz.files import read_result, write_picture

    write_picture(read_result(result), output)
    typer.echo(f"wrote {output}", err=True)
