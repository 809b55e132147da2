"""`bestk generate`: search one prompt, show the ranked texts."""

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
    search_options,
)
from bestk.config import DEFAULT_MODEL, DIVERSITY, DTYPES, SELECTIONS
from bestk.errors import OptionError

NUM_TEXTS = 20  # shown in a terminal, and chosen where texts are to differ


@search_options
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue or answer; - reads it.")],
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
    num_texts: Annotated[
        int | None,
        typer.Option(
            "--num-texts",
            "-n",
            min=1,
            help=f"Texts to choose; {NUM_TEXTS} unless given, with --json all.",
        ),
    ] = None,
    select: Select = SELECTIONS[0],
    diversity: Diversity = DIVERSITY,
    rerank: Rerank = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print each text as it completes, unranked.")
    ] = False,
    tree: Annotated[bool, typer.Option("--tree", help="Draw the search tree.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Save everything, as JSON, to this file.")
    ] = None,
    **settings: Any,
) -> None:
    """[bold]bestk generate --raw --stop . "The best thing about dogs is"[/bold]

    Search one prompt and show its ranked texts.
    """
    from bestk.cli import terminal
    from bestk.cli.view import SearchView
    from bestk.engine.request import requests_of
    from bestk.rerank.postprocess import Finish

    if stream and (as_json or tree or num_texts or rerank or select != SELECTIONS[0]):
        raise OptionError(
            "--stream prints all texts as they come: "
            "give it without --json, --tree, -n, --select, --rerank"
        )
    is_choosing = num_texts is not None or not as_json or select != SELECTIONS[0]
    wanted = (num_texts or NUM_TEXTS) if is_choosing else None
    order = Finish(rerank=rerank)
    choose = Finish(num_texts=wanted, select=select, diversity=diversity)
    config = config_of(settings)
    text = terminal.read_prompt(prompt, raw=raw, system=system)
    lm = terminal.load(
        model, engine_option, dtype=dtype, device=device, src_lang=src_lang, tgt_lang=tgt_lang
    )
    requests = requests_of(lm, [text if raw else lm.chat_prompt(text, system)], config)
    with SearchView(requests, stream=stream) as view:
        for update in view.scheduler.run(requests):
            view.update(update)
    result = order(view.result)
    if output is not None:
        result.save(output)
    chosen = choose(result)
    if as_json:
        terminal.print_json({**chosen.brief(), "prompt": text})
    elif stream:
        terminal.print_summary(result)
    else:
        shown = chosen.hypotheses
        terminal.print_result(result, shown, lm.tokens_text if tree else None)
    terminal.print_notice(result)
    if view.error is not None:
        raise view.error
