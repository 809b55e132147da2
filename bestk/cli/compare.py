"""`bestk compare`: several methods on one prompt, side by side."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bestk.cli.options import (
    Device,
    Diversity,
    Dtype,
    EngineOptions,
    Model,
    Select,
    SrcLang,
    TgtLang,
    config_of,
    search_options,
)
from bestk.config import DEFAULT_MODEL, DIVERSITY, DTYPES


@search_options
def compare(
    prompt: Annotated[str, typer.Argument(help="The text to continue or answer; - reads it.")],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names such as BS,DBS,Ncls0.8,BKS_mean, or all; BKS heeds --scoring. A choice "
            "unless given."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the methods that draw.")] = 0,
    num_texts: Annotated[
        int, typer.Option("--num-texts", "-n", min=1, help="Texts that distinctness is taken of.")
    ] = 10,
    select: Select = None,
    diversity: Diversity = DIVERSITY,
    show: Annotated[int, typer.Option(min=0, help="Texts to show of each method.")] = 3,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = DTYPES[0],
    device: Device = None,
    src_lang: SrcLang = None,
    tgt_lang: TgtLang = None,
    engine_option: EngineOptions = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without chat formatting.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="System text of a chat model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    **settings: Any,
) -> None:
    """[bold]bestk compare --raw "The best thing about dogs is" --methods BS,BKS_mean[/bold]

    Compare methods on one prompt at an equal price: their texts, how different, how likely.
    """
    from bestk.baselines.comparison import ComparedRow, left_out
    from bestk.baselines.comparison import compare as compare_methods
    from bestk.cli import terminal
    from bestk.viz.comparison import ComparisonView

    config = config_of(settings)
    text = terminal.read_prompt(prompt, raw=raw, system=system)
    lm = terminal.load(
        model, engine_option, dtype=dtype, device=device, src_lang=src_lang, tgt_lang=tgt_lang
    )
    names = [name.strip() for name in methods.split(",")] if methods else None
    if names is None:
        for reason, left in left_out(config).items():
            terminal.stderr().print(f"without {', '.join(left)}: {reason}", soft_wrap=True)
    asked = lm.asked(text, raw=raw, system=system)
    rows = compare_methods(
        lm,
        asked,
        names,
        config,
        raw=raw,
        seed=seed,
        num_texts=num_texts,
        select=select,
        diversity=diversity,
    )
    found: list[ComparedRow] = []
    try:
        for row in rows:
            found.append(row)
    finally:  # an error or Ctrl-C keeps what was found before
        if as_json:
            terminal.print_json([row.to_json() for row in found])
        elif found:
            terminal.print_view(ComparisonView(found, show), is_wrapped=True)
