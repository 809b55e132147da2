"""`bestk report`: tables and figures of what `bestk eval` found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders that bestk eval wrote.")],
    form: Annotated[
        str, typer.Option("--format", help="terminal, markdown, latex or json.")
    ] = "terminal",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Save all formats and figures here.")
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option(help="Score all, unique, top or diverse texts; each unless given."),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Rows to show, with commas between; all unless given.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Data of runs that were put away without their examples.")
    ] = None,
    top: Annotated[int, typer.Option(help="Texts compared at an equal number.")] = 10,
    table: Annotated[
        list[str] | None,
        typer.Option(help="full, condensed, translation, search, table1 or table3."),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Families of metrics; all unless given.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Test every method against this one.")
    ] = None,
    rerank: Annotated[
        str | None,
        typer.Option(help="Also BLEU before and after: mbr-chrf, mbr-bleu, comet-qe, reward:NAME."),
    ] = None,
    mauve_model: Annotated[str | None, typer.Option(help="Model for MAUVE's features.")] = None,
    grammar_model: Annotated[str | None, typer.Option(help="CoLA classifier.")] = None,
    keep_scores: Annotated[
        bool,
        typer.Option(
            "--keep-scores",
            help="Keep the scores of slow metrics in the folders for later reports.",
        ),
    ] = False,
    intervals: Annotated[bool, typer.Option(help="Show 95% intervals.")] = True,
    figures: Annotated[str, typer.Option(help="Format of the figures: png, pdf, svg.")] = "png",
) -> None:
    """[bold]bestk report out --baseline BS -o report[/bold]

    Show the paper's tables of an evaluation; save them with the figures.
    """
    from bestk_eval.methods import split as names_of
    from bestk_eval.metrics.registry import MetricModels
    from bestk_eval.report import check_output, make_report

    check_output(form, output, figures)
    made = make_report(
        folders,
        methods=None if methods is None else names_of(methods),
        data_dir=data_dir,
        metrics=metric,
        models=MetricModels(grammar=grammar_model, mauve=mauve_model),
        views=texts,
        top=top,
        layouts=table,
        baseline=baseline,
        rerank=rerank,
        intervals=intervals,
        keep_scores=keep_scores,
    )
    if output is not None:
        made.save(output, figures)
    made.print(form)
