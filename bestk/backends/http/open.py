"""A server's model as a language model: connects, finds the tokenizer, and puts both together.

Knows addresses, keys and where tokenizers come from; how servers are spoken to is in
`backends/http/`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from bestk.backends.http.backend import HttpBackend
from bestk.backends.http.detection import find_dialect
from bestk.backends.http.dialect import PREFIXES_PER_REQUEST, Dialect, Served
from bestk.backends.http.llama_cpp import LlamaCppDialect, LlamaCppTokenizer
from bestk.backends.http.transport import Connection, Transport
from bestk.backends.prefix import EngineInfo
from bestk.errors import ModelError, OptionError, first_line
from bestk.lm.language_model import LanguageModel

KEY_VARIABLES = ("BESTK_API_KEY", "OPENAI_API_KEY")


def from_server(
    url: str,
    *,
    model: str | None = None,
    tokenizer: Any = None,
    server: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = Connection.timeout,
    patience: float = Connection.patience,
    num_connections: int = Connection.num_connections,
    prefixes_per_request: int = PREFIXES_PER_REQUEST,
    extra_body: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
) -> LanguageModel:
    """Search a model that a vLLM, SGLang or llama.cpp server runs.

    `model` is one of the server's models or adapters, the only one by default. `tokenizer` is a
    name, a folder or an object; by default that of the server's model. `server` says which kind the
    server is where it cannot be told. `api_key` is sent as a bearer token, by default that of
    $BESTK_API_KEY or $OPENAI_API_KEY. A request may take `timeout` seconds; a server that gives no
    answer for `patience` seconds is given up, with what was found until then. `extra_body` goes
    into every request.
    """
    connection = Connection(
        headers={**_authorization(api_key), **(headers or {})},
        timeout=_seconds("timeout", timeout),
        patience=_seconds("patience", patience),
        num_connections=_count("num_connections", num_connections),
    )
    size = _count("prefixes_per_request", prefixes_per_request)
    transport = Transport(_base(url), connection)
    dialect = find_dialect(transport, model, server, extra_body or {})
    served = dialect.learn(transport)
    options = {"trust_remote_code": trust_remote_code}
    reader = _find_tokenizer(tokenizer, served, dialect, transport, options)
    backend = HttpBackend(transport, dialect, _facts(served, dialect, reader), size)
    return LanguageModel(backend, reader.tokenizer, served.model)


class _Reader:
    """A tokenizer, and the folder or hub name that it came from, if any."""

    def __init__(self, tokenizer: Any, source: str | None = None, options: Any = None) -> None:
        self.tokenizer = tokenizer
        self.source = source
        self.options = options or {}

    def config(self, kind: str = "AutoConfig") -> Any:
        """Load a config beside the tokenizer, by its class; None where there is none."""
        import transformers

        if self.source is None:
            return None
        try:
            return getattr(transformers, kind).from_pretrained(self.source, **self.options)
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _find_tokenizer(
    given: Any, served: Served, dialect: Dialect, transport: Transport, options: dict[str, Any]
) -> _Reader:
    """Take the one given, else the server's model's, else the server itself."""
    from transformers import AutoTokenizer

    sources, complaint = served.sources, f"tokenizer {given} cannot be loaded"
    if isinstance(given, str | os.PathLike):
        sources = (str(given),)
    elif given is not None:
        return _Reader(given)
    elif isinstance(dialect, LlamaCppDialect):
        return _Reader(LlamaCppTokenizer(transport, dialect))
    else:
        complaint = f"{transport.url} serves {served.model}, whose tokenizer is not found here"
    reason = "no name or folder is told"
    for source in sources:
        try:
            return _Reader(AutoTokenizer.from_pretrained(source, **options), source, options)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = first_line(error)
    raise ModelError(f"{complaint} ({reason}): pass tokenizer=, a name, a folder or an object")


def _facts(served: Served, dialect: Dialect, reader: _Reader) -> EngineInfo:
    config = reader.config()
    vocab_size = served.vocab_size or _vocab_size(config, reader.tokenizer)
    eos_ids = served.eos_ids or _eos_ids(reader, config)
    return EngineInfo(
        name=served.model,
        vocab_size=vocab_size,
        eos_ids=tuple(token for token in eos_ids if 0 <= token < vocab_size),
        max_length=served.max_length,
        max_listed=served.max_listed,
        way_out=dialect.way_out,
    )


def _vocab_size(config: Any, tokenizer: Any) -> int:
    if config is not None and (size := config.get_text_config(decoder=True).vocab_size):
        return int(size)
    try:
        return len(tokenizer)
    except TypeError:
        raise ModelError(
            "the size of the vocabulary is not known: pass a tokenizer that has a length"
        ) from None


def _eos_ids(reader: _Reader, config: Any) -> tuple[int, ...]:
    """Name the ids that end a text, by the generation config, the model's, or the tokenizer."""
    for source in (reader.config("GenerationConfig"), config, reader.tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return tuple(map(int, ids)) if isinstance(ids, list | tuple) else (int(ids),)
    return ()


def _authorization(api_key: str | None) -> dict[str, str]:
    key = api_key or next(filter(None, map(os.environ.get, KEY_VARIABLES)), None)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise OptionError(f"{name} must be a number of seconds above 0, got {value!r}")
    return float(value)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}")
    return value


def _base(url: str) -> str:
    """Cut an address down to what comes before the endpoints."""
    parts = urlsplit(url)
    try:
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host:
        raise OptionError(f"an address is like http://localhost:8000, got {url!r}")
    return url.rstrip("/").removesuffix("/v1")
