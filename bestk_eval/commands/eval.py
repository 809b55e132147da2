"""`bestk eval`: run methods over the examples of a task, into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bestk.cli.options import Device, Dtype, EngineOptions, Model, SrcLang, TgtLang
from bestk.config import DEFAULT_MODEL, DTYPES, SearchConfig
from bestk_eval import BATCH_SIZE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def eval(
    task: Annotated[str, typer.Argument(help="A task, or a .jsonl or .py file with one.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")],
    methods: Annotated[
        str, typer.Option(help="Names with commas between, as BS,BKS_last:k=10; or paper, ours.")
    ] = "BS,BKS_mean,BKS_last",
    ablation: Annotated[
        list[str] | None,
        typer.Option(
            help="k, kappa, scoring, gamma, heap, decay, budget, efficiency, table1, table3."
        ),
    ] = None,
    num_examples: Annotated[
        int | None, typer.Option("--num-examples", "-n", help="Examples, at random; else all.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Another part of the data, such as dev or validation.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the data; the hub unless given.")
    ] = None,
    beam_size: Annotated[int, typer.Option(help="Budget of all: beam size × longest text.")] = (
        SearchConfig().beam_size
    ),
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Longest text, instead of the task's.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="String that completes a text; may be repeated.")
    ] = None,
    style: Annotated[str, typer.Option(help="Prompts: auto, plain or chat.")] = "auto",
    batch_size: Annotated[int, typer.Option(help="Examples searched side by side.")] = BATCH_SIZE,
    seed: Annotated[int, typer.Option(help="Chooses examples and draws samples.")] = 0,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = DTYPES[0],
    device: Device = None,
    src_lang: SrcLang = None,
    tgt_lang: TgtLang = None,
    engine_option: EngineOptions = None,
) -> None:
    """[bold]bestk eval commongen --data-dir data -n 50 -o out[/bold]

    Run decoding methods over a task's examples; stopped, it goes on where it was.
    """
    from bestk.cli import terminal
    from bestk_eval.methods import ablations
    from bestk_eval.methods import split as names_of
    from bestk_eval.report import make_report
    from bestk_eval.runner import Settings, evaluate

    settings = Settings(
        task=task,
        methods=tuple(ablations(ablation) if ablation else names_of(methods)),
        num_examples=num_examples,
        split=split,
        beam_size=beam_size,
        max_new_tokens=max_new_tokens,
        stop=tuple(stop or ()),
        style=style,
        batch_size=batch_size,
        seed=seed,
        data_dir=data_dir,
    )
    lm = terminal.load(
        model, engine_option, dtype=dtype, device=device, src_lang=src_lang, tgt_lang=tgt_lang
    )
    with _progress_bar(terminal.stderr()) as bar:
        for step in evaluate(lm, settings, output):
            (task_id,) = bar.task_ids
            bar.update(task_id, completed=step.done, total=step.total, description=step.method)
    if tables := [name for name in ablation or () if name in ("table1", "table3")]:
        made = make_report([output], layouts=tables, metrics=["counts", "cost"], views=["all"])
        made.print()
    typer.echo(f"bestk report {output}", err=True)


def _progress_bar(console: Console) -> Progress:
    """Return a bar with one task, the evaluation, which is described by its method."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("evaluating"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}"),
    )
    bar = Bars(*columns, console=console, disable=not console.is_terminal)
    bar.add_task("", total=None)
    return bar
