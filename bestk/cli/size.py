"""`bestk size`: what a search takes of memory, tokens and requests."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from bestk.cli.options import Model
from bestk.config import DEFAULT_MODEL, SearchConfig


def size(
    model: Model = DEFAULT_MODEL,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of a prompt.")] = 300,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of the job.")] = 1,
    memory: Annotated[
        float | None, typer.Option(help="GB of a device: says how many searches fit.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Number format of the weights: float32, bfloat16, float16.")
    ] = "bfloat16",
    k: Annotated[int, typer.Option("--k", "-k", help="Nodes expanded in one model call.")] = (
        SearchConfig().k
    ),
    beam_size: Annotated[
        int, typer.Option(help="Equivalent beam size.")
    ] = SearchConfig().beam_size,
    max_new_tokens: Annotated[int, typer.Option(help="Longest text, in tokens.")] = (
        SearchConfig.max_new_tokens
    ),
    budget: Annotated[
        int | None, typer.Option(help="Expansions, instead of beam size × max new tokens.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """[bold]bestk size --model smollm2 --prompt-tokens 300 --memory 80[/bold]

    Say what a search takes of memory, tokens and requests; no weights are loaded.
    """
    from bestk import sizing
    from bestk.cli import terminal

    sizing.check_dtype(dtype)
    config = SearchConfig(k=k, beam_size=beam_size, max_new_tokens=max_new_tokens, budget=budget)
    found = sizing.size_of(model, config, prompt_tokens=prompt_tokens, dtype=dtype)
    memory_bytes = None if memory is None else int(memory * 1e9)
    if as_json:
        lanes = {} if memory_bytes is None else {"lanes": found.rows_in_memory(memory_bytes)}
        total = {"prompts": prompts, **found.times(prompts)}
        terminal.print_json(dataclasses.asdict(found) | lanes | {"total": total})
    else:
        terminal.print_facts(sizing.describe(found, prompts, memory_bytes))
