"""`bestk serve`: the page and the API, for one model or several."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bestk.cli.options import Device, Dtype, EngineOptions, limit_options
from bestk.config import DEFAULT_MODEL, DTYPES
from bestk.errors import MissingExtraError
from bestk.server.limits import Limits


@limit_options
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
    allowed: Annotated[
        list[str],
        typer.Option(metavar="NAME=FILE", help="Trie that requests may name; may be repeated."),
    ] = [],  # noqa: B006
    grace: Annotated[
        float, typer.Option(help="Seconds that running searches have to end at shutdown.")
    ] = 30.0,
    **limits: Any,
) -> None:
    """[bold]bestk serve --model smollm2 --port 8000[/bold]

    Serve a page, an OpenAI-compatible API and live searches over HTTP.
    """
    from bestk.cli import terminal

    try:
        from bestk.server.main import ServeOptions
        from bestk.server.main import serve as run
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed: pip install 'bestk[serve]'"
        ) from error
    options = ServeOptions(
        host=host,
        port=port,
        token=token,
        cors_origins=cors_origin,
        grace=grace,
        limits=Limits(**{name.removeprefix("max_"): most for name, most in limits.items()}),
        rerankers=rerank,
        tries=allowed,
    )
    run([terminal.load(name, engine_option, dtype=dtype, device=device) for name in model], options)
