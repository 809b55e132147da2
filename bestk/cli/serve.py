"""`bestk serve`: the page and the API, for one model or several."""

from __future__ import annotations

from typing import Annotated

import typer

from bestk.cli.options import Device, Dtype, EngineOptions
from bestk.config import DEFAULT_MODEL, DTYPES
from bestk.errors import MissingExtraError


def serve(
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            help="Short name, folder, hub name, vllm:NAME or a server's address; may be repeated.",
            rich_help_panel="Model",
        ),
    ] = [DEFAULT_MODEL],  # noqa: B006
    dtype: Dtype = DTYPES[0],
    device: Device = None,
    engine_option: EngineOptions = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", help="Port to listen on; 0 for any.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(help="Bearer token that clients must send; $BESTK_TOKEN unless given."),
    ] = None,
    cors_origin: Annotated[
        list[str],
        typer.Option(help="Origin whose pages may use the API; may be repeated."),
    ] = [],  # noqa: B006
    rerank: Annotated[
        list[str],
        typer.Option(help="Reranker with a model to offer, loaded now; may be repeated."),
    ] = [],  # noqa: B006
    grace: Annotated[
        float, typer.Option(help="Seconds that running searches have to end at shutdown.")
    ] = 30.0,
    max_searches: Annotated[
        int | None,
        typer.Option(help="Searches that run side by side.", rich_help_panel="Limits"),
    ] = None,
    max_queue: Annotated[
        int | None,
        typer.Option(help="Searches that may wait; more are refused.", rich_help_panel="Limits"),
    ] = None,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(help="Longest prompt.", rich_help_panel="Limits")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Longest text.", rich_help_panel="Limits")
    ] = None,
    max_budget: Annotated[
        int | None, typer.Option(help="Node expansions of one search.", rich_help_panel="Limits")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Time of one search.", rich_help_panel="Limits")
    ] = None,
) -> None:
    """[bold]bestk serve --model smollm2 --port 8000[/bold]

    Serve a page, an OpenAI-compatible API and live searches over HTTP.
    """
    from bestk.cli import terminal

    try:
        from bestk.server.limits import Limits
        from bestk.server.main import ServeOptions
        from bestk.server.main import serve as run
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed: pip install 'bestk[serve]'"
        ) from error
    given = {
        "searches": max_searches,
        "queue": max_queue,
        "prompt_tokens": max_prompt_tokens,
        "new_tokens": max_new_tokens,
        "budget": max_budget,
        "seconds": max_seconds,
    }
    options = ServeOptions(
        host=host,
        port=port,
        token=token,
        cors_origins=cors_origin,
        grace=grace,
        limits=Limits.of(given),
        rerankers=rerank,
    )
    run([terminal.load(name, engine_option, dtype=dtype, device=device) for name in model], options)
