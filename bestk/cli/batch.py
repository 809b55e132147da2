"""`bestk batch`: search every row of a file into another file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bestk.cli.options import (
    Device,
    Diversity,
    Dtype,
    EngineOptions,
    Model,
    Rerank,
    Select,
    SrcLang,
    TgtLang,
    config_of,
    engine_options,
    search_options,
)
from bestk.config import DEFAULT_MODEL, DIVERSITY, DTYPES

_RAY = "Ray"


@search_options
def batch(
    input: Annotated[
        str, typer.Argument(help="Rows: .jsonl, .jsonl.gz or .parquet; s3://, gs://, hf:// too.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="Results, in any of the same formats.")
    ],
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = DTYPES[0],
    device: Device = None,
    src_lang: SrcLang = None,
    tgt_lang: TgtLang = None,
    engine_option: EngineOptions = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue prompts as they are, without chat formatting.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="System text of a chat model.")] = None,
    select: Select = None,
    diversity: Diversity = DIVERSITY,
    rerank: Rerank = None,
    full: Annotated[
        bool, typer.Option("--full", help="Write all that is known of each text: a whole result.")
    ] = False,
    tree: Annotated[bool, typer.Option("--tree", help="With --full, search trees too.")] = False,
    allowed: Annotated[
        Path | None,
        typer.Option(help="Trie of which every text is an item; a row's exclude leaves some out."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Column that goes to the output, such as prompt; may be repeated. All unless "
            "given, but those that say what to do."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Rows searched side by side; what memory allows.")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=1, help="Rows between two writes to disk; 16 × the batch size."),
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Do only part I of N; parts concatenate.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Run on a Ray cluster: local unless an address is given, or auto.",
            rich_help_panel=_RAY,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Copies of the model; one per GPU, or else CPU.", rich_help_panel=_RAY
        ),
    ] = None,
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(min=0, help="GPUs that each takes; 1 if there are any.", rich_help_panel=_RAY),
    ] = None,
    cpus_per_worker: Annotated[
        float, typer.Option(min=0, help="CPUs that each takes.", rich_help_panel=_RAY)
    ] = 1,
    **settings: Any,
) -> int:
    """[bold]bestk batch prompts.jsonl -o texts.jsonl -n 5 --stop .[/bold]

    Search every row of a file; stopped, the same command goes on where it was.
    """
    from bestk.batch import Job, JobConfig, ModelName, RaySettings, Shard, follow_batch
    from bestk.batch.files import file_of
    from bestk.batch.terminal import JobView
    from bestk.cli import terminal

    options = {"dtype": dtype, "device": device, "src_lang": src_lang, "tgt_lang": tgt_lang}
    given = {name: value for name, value in options.items() if value not in (None, DTYPES[0])}
    on_ray = None
    if ray is not None:
        on_ray = RaySettings(
            address=ray,
            workers=workers,
            gpus_per_worker=gpus_per_worker,
            cpus_per_worker=cpus_per_worker,
        )
    job = Job(
        model=ModelName(model, given | engine_options(engine_option or ())),
        input=file_of(input),
        output=file_of(output),
        wanted=JobConfig(
            config=config_of(settings),
            raw=raw,
            system=system,
            select=select,
            diversity=diversity,
            rerank=rerank,
            full=full,
            tree=tree,
            allowed=None if allowed is None else str(allowed),
            keep=tuple(keep) if keep else None,
        ),
        batch_size=batch_size or "auto",
        window=window,
        shard=Shard.of(shard) if shard else Shard(),
        ray=on_ray,
    )
    with JobView(terminal.stderr()) as view:
        for progress in follow_batch(job):
            view.update(progress)
    assert view.last is not None
    return terminal.print_batch(view.last)
