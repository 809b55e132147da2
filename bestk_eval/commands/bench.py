"""`bestk bench`: how fast a model's searches are, against beam search and sampling."""

from __future__ import annotations

from typing import Annotated

import typer

from bestk.cli.options import Device, Dtype, Model
from bestk.config import DEFAULT_MODEL, DTYPES
from bestk_eval.benchmark.report import BenchSettings


def bench(
    prompt: Annotated[
        str | None, typer.Argument(help="A text to continue; one of bestk's own unless given.")
    ] = None,
    ks: Annotated[
        list[int], typer.Option("--k", "-k", help="Nodes per model call; may be repeated.")
    ] = [*BenchSettings.ks],  # noqa: B006
    beam_size: Annotated[
        int, typer.Option(help="Budget of all: beam size × max new tokens.")
    ] = BenchSettings.beam_size,
    max_new_tokens: Annotated[
        int, typer.Option(help="Longest text, in tokens.")
    ] = BenchSettings.max_new_tokens,
    batch: Annotated[
        int, typer.Option(help="Prompts searched side by side.")
    ] = BenchSettings.batch,
    prompt_tokens: Annotated[
        int, typer.Option(help="Length of the prompts that bestk makes.")
    ] = BenchSettings.prompt_tokens,
    repeats: Annotated[
        int, typer.Option(help="Timed runs of each method; the median counts.")
    ] = BenchSettings.repeats,
    full: Annotated[
        bool,
        typer.Option(
            help="Make every method spend its whole budget: no beam or sample ends early."
        ),
    ] = BenchSettings.full,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = DTYPES[0],
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """[bold]bestk bench --k 5 --k 10 --prompt-tokens 300[/bold]

    Time best-k search, beam search and sampling on one model at an equal budget.
    """
    from bestk.cli import terminal
    from bestk_eval.benchmark.report import table
    from bestk_eval.benchmark.runner import bench as run_bench

    settings = BenchSettings(
        ks=tuple(ks),
        beam_size=beam_size,
        max_new_tokens=max_new_tokens,
        batch=batch,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        repeats=repeats,
        full=full,
    )
    lm = terminal.load(model, dtype=dtype, device=device)
    report = run_bench(lm, settings)
    if as_json:
        terminal.print_json(report.to_json())
    else:
        terminal.print_view(table(report))
