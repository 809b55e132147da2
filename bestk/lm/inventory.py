"""Which models this machine has: embedded ones, those in the hub's cache, those that servers run.

Knows names and sizes; loads nothing.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bestk.config import DEFAULT_MODEL
from bestk.lm import task_models
from bestk.lm.loading import has_embedded_model

# Where vLLM, llama.cpp and SGLang listen unless told otherwise; `bestk serve` as vLLM.
PORTS = (8000, 8080, 30000)
_PATIENCE = 0.5  # seconds for a server of this machine


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A model by the name that `bestk.load` takes."""

    name: str
    place: str  # embedded, cached or served
    about: str


def known_models(ports: Sequence[int] = PORTS) -> Iterator[KnownModel]:
    """Yield all models that can be had without a download."""
    if has_embedded_model():
        yield KnownModel(name=DEFAULT_MODEL, place="embedded", about="SmolLM2-135M-Instruct")
    for name in task_models.names():
        yield KnownModel(name=name, place="embedded", about="made for a task")
    yield KnownModel(name="toy", place="embedded", about="32 words, to try things out")
    yield from _cached()
    yield from _served(ports)


def _cached() -> Iterator[KnownModel]:
    """Yield the models in the hub's cache."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repo in sorted(found, key=lambda repo: repo.repo_id):
        if repo.repo_type == "model":
            about = f"{repo.size_on_disk / 1e6:,.0f} MB"
            yield KnownModel(name=repo.repo_id, place="cached", about=about)


def _served(ports: Sequence[int]) -> Iterator[KnownModel]:
    """Yield the models of servers that answer on this machine."""
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ThreadPoolExecutor(len(urls)) as pool:
        for url, names in zip(urls, pool.map(_ask, urls), strict=True):
            for name in names:
                yield KnownModel(name=url, place="served", about=name)


def _ask(url: str) -> list[str]:
    """Return the names of a server's models, none where there is no server."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/v1/models", timeout=_PATIENCE) as answer:
            return [str(card["id"]) for card in json.load(answer)["data"]]
    except (OSError, ValueError, LookupError, TypeError):  # nobody there, or somebody else
        return []
