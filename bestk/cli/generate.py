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
from bestk.config import DEFAULT_MODEL, DIVERSITY, DTYPES
from bestk.errors import OptionError

NUM_TEXTS = 10  # unless the settings name Algorithm 2, which knows no number


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
    select: Select = None,
    diversity: Diversity = DIVERSITY,
    rerank: Rerank = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print each text as it completes, unranked.")
    ] = False,
    tree: Annotated[bool, typer.Option("--tree", help="Draw the search tree.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    as_jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Print each text as a line of JSON; --stream as well.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Save everything, as JSON, to this file.")
    ] = None,
    **settings: Any,
) -> None:
    """[bold]bestk -n 10 "Write a tagline for a bakery."[/bold]

    Search one prompt and show its ranked texts; the word generate may be left out.
    """
    from bestk.cli import terminal
    from bestk.cli.view import SearchView
    from bestk.engine.request import requests_of
    from bestk.rerank.postprocess import Finish

    if stream and (as_json or tree or rerank or select):
        raise OptionError(
            "--stream prints texts as they come: give it without --json, --tree, --select, --rerank"
        )
    finish = Finish(rerank=rerank, select=select, diversity=diversity)
    config = config_of(settings)
    if config.num_texts is None:
        told = config_of({**settings, "num_texts": NUM_TEXTS})
        config = told if told.policy == "diverse" else config
    finish.check(config)
    text = terminal.read_prompt(prompt, raw=raw, system=system)
    lm = terminal.load(
        model, engine_option, dtype=dtype, device=device, src_lang=src_lang, tgt_lang=tgt_lang
    )
    requests = requests_of(lm, [lm.asked(text, raw=raw, system=system)], config)
    tell = terminal.print_lines if as_jsonl else terminal.print_new
    with SearchView(requests, tell if stream else None) as view:
        for update in view.scheduler.run(requests):
            view.update(update)
            if stream and view.room == 0:
                break
    whole = finish.order(view.result)
    if output is not None:
        whole.save(output)
    result = finish.choose(whole)
    if as_json:
        terminal.print_json({**result.to_dict(), "prompt": text})
    elif stream:
        tell(view.rest(result))
        if not as_jsonl:
            terminal.print_summary(result)
    elif as_jsonl:
        terminal.print_lines(result)
    else:
        terminal.print_result(result, lm.tokens_text if tree else None)
    terminal.print_notice(result)
    if view.error is not None:
        raise view.error
