"""Methods as an evaluation names them, and the ablations as lists of such names.

A name is a method of `bestk.baselines`, or BKS (best-k search, scoring free), and the settings that
it changes: `BKS_last:k=10,decay_weight=0.1`, `Ncls0.8:num_draws=10`, `BFS:beam_size=2`,
`Minp0.1:walk=distinct,seed=2`, `DBS+:diversity_penalty=0.5`. A seed is the method's own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bestk.baselines import METHODS, AnyMethod, Beam, Sampling, Scored, check_method, method_of
from bestk.config import SearchConfig
from bestk.errors import BestKError, OptionError, unknown

Own = Beam | Sampling  # what has settings that are not of the search
OURS = ("BKS_mean", "BKS_last")
PAPER_DRAWS = 10  # what the paper drew from a sampler, whatever it cost

_FAMILY = re.compile(r"(?i:(b?(ncls|typ)|minp|nsig|temp)_?[0-9.]+)")
_OF_METHODS = ("num_draws", "num_runs", "walk", "temperature", "num_groups", "diversity_penalty")
_DECAY_WEIGHTS = ("0", "0.01", "0.05", "0.1", "0.2")  # κ
_SCORINGS = ("BKS:length_alpha=0", "BKS:length_alpha=0.5", "BKS_mean", "BKS_last")


def _vary(bases: Sequence[str], option: str, values: Sequence[object]) -> list[str]:
    """Give each base each value of an option."""
    return [
        f"{base}{',' if ':' in base else ':'}{option}={value}" for base in bases for value in values
    ]


ABLATIONS: dict[str, list[str]] = {
    "k": _vary(OURS, "k", (5, 10)),
    "kappa": [
        *_vary(_SCORINGS[1:], "decay_weight", _DECAY_WEIGHTS),
        *_vary(_vary(_SCORINGS[1:], "decay", ["log"]), "decay_weight", _DECAY_WEIGHTS[1:]),
    ],
    "scoring": _vary(_SCORINGS, "decay_weight", _DECAY_WEIGHTS),
    "gamma": _vary(OURS, "min_prob", ("0.01", "0.02", "0.05", "0.1", "0.2")),
    "heap": _vary(OURS, "max_frontier", (20, 50, 100, 500, 2000)),
    "decay": _vary(OURS, "decay", ("none", "power", "log")),
    "budget": _vary(("BFS", *OURS), "beam_size", (1, 2, 5, 10)),
    "table1": ["BS", *_vary(["BFS"], "beam_size", (1, 2, 5, 10))],
    "table3": [
        *_vary(_SCORINGS, "decay_weight", _DECAY_WEIGHTS),
        *("BS", "DBS", "BNcls0.8", "BTyp0.5"),
        *_vary(["Ncls0.8", "Typ0.5"], "num_draws", [PAPER_DRAWS]),
    ],
    "efficiency": ["BS", "BTyp0.5", "BFS", "BKS_mean:k=5", "BKS_mean:k=10"],
}


@dataclass(frozen=True, kw_only=True)
class NamedMethod:
    """A method with the settings that its name changes."""

    name: str  # settings in the order of the alphabet, so that equal methods have equal names
    method: AnyMethod
    options: tuple[tuple[str, Any], ...] = ()  # of the search
    seed: int | None = None  # None: that of the run

    @property
    def base(self) -> str:
        """Return the name without its settings."""
        return self.name.partition(":")[0]

    def config(self, max_new_tokens: int, beam_size: int, stop: Sequence[str] = ()) -> SearchConfig:
        """Return the settings of a search for one length of answers."""
        shared = {"max_new_tokens": max_new_tokens, "beam_size": beam_size, "stop": tuple(stop)}
        told = {"k": SearchConfig().k, **shared, **dict(self.options)}
        # Answers to a short source may be so short that the budget pays for fewer nodes than k.
        budget = told.get("budget") or told["beam_size"] * max_new_tokens
        return SearchConfig.of({**told, "k": min(told["k"], budget)})

    def check(self, max_new_tokens: int, beam_size: int, stop: Sequence[str] = ()) -> None:
        """Raise if the method cannot run so."""
        with _named(self.name):
            check_method(self.method, self.config(max_new_tokens, beam_size, stop))


def parse(name: str) -> NamedMethod:
    """Read the name of a method.

    >>> parse("bks_last:k=10,decay_weight=0.1").name
    'BKS_last:decay_weight=0.1,k=10'
    """
    base, _, rest = name.strip().partition(":")
    method, known = _method(base)
    told = dict(_setting(part, name) for part in rest.split(",") if part.strip())
    listed = ",".join(f"{key}={told[key]}" for key in sorted(told))
    method, own = _changed(name, method, told)
    options = {key: value for key, value in told.items() if key not in own and key != "seed"}
    _check(name, method, options)
    if isinstance(seed := told.get("seed", 0), str | float):
        raise OptionError(f"method {name!r}: seed is a whole number, got {seed!r}")
    return NamedMethod(
        name=f"{known}:{listed}" if listed else known,
        method=method,
        options=tuple(sorted(options.items())),
        seed=told.get("seed"),
    )


def _changed(
    name: str, method: AnyMethod, told: dict[str, Any]
) -> tuple[AnyMethod, dict[str, Any]]:
    """Return a method with those of the settings that are its own, and these."""
    fields = {f.name for f in dataclasses.fields(method)} if isinstance(method, Own) else set()
    own = {key: value for key, value in told.items() if key in _OF_METHODS and key in fields}
    if "num_draws" in told and "num_draws" not in own:
        raise OptionError(f"method {name!r}: num_draws is for samplers, such as Ncls0.8")
    with _named(name):
        return (dataclasses.replace(method, **own) if isinstance(method, Own) else method), own


def split(names: str) -> list[str]:
    """Split a list of names; a comma may also stand between the settings of one.

    >>> split("BS,BKS_last:k=10,decay_weight=0.1,Ncls0.8")
    ['BS', 'BKS_last:k=10,decay_weight=0.1', 'Ncls0.8']
    """
    found: list[str] = []
    for part in names.split(","):
        if "=" in part and ":" not in part and found:
            found[-1] += f",{part.strip()}"
        elif part.strip():
            found.append(part.strip())
    return found


def parse_all(names: Sequence[str]) -> list[NamedMethod]:
    """Read several names, each of which may be a group: `paper`, `ours` or an ablation."""
    found: dict[str, NamedMethod] = {}
    for name in names:
        for member in groups().get(name, [name]):
            method = parse(member)
            found[method.name] = method
    if not found:
        raise OptionError("there are no methods: name one, such as BKS_mean, or a group: paper")
    return list(found.values())


def ablations(names: Sequence[str]) -> list[str]:
    """Check that names are those of ablations."""
    for name in names:
        if name not in ABLATIONS:
            raise OptionError(unknown("ablation", name, ABLATIONS))
    return list(names)


def groups() -> dict[str, list[str]]:
    """Return the lists of methods that have a name of their own, the ablations included."""
    samplers = [name for name, method in METHODS.items() if isinstance(method, Sampling)]
    draws = [f"{name}:num_draws={PAPER_DRAWS}" for name in samplers]
    beams = [name for name, one in METHODS.items() if isinstance(one, Beam) and one.filter]
    beam_samplers = [*beams, *(f"{name}:num_runs={PAPER_DRAWS}" for name in beams)]
    named = {"paper": [*METHODS, *draws], "beam-samplers": beam_samplers, "ours": list(OURS)}
    return {**named, **ABLATIONS}


def _method(base: str) -> tuple[AnyMethod, str]:
    names = [*METHODS, "BKS"]
    known = next((name for name in names if name.lower() == base.lower()), base)
    if known not in names and not _FAMILY.fullmatch(base):
        raise OptionError(unknown("method", base, names))
    return method_of(known), known


def _setting(part: str, name: str) -> tuple[str, Any]:
    key, equals, value = (side.strip() for side in part.partition("="))
    if not equals or not value:
        raise OptionError(f"method {name!r}: a setting is key=value, got {part!r}")
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value


def _check(name: str, method: AnyMethod, options: dict[str, Any]) -> None:
    if "max_new_tokens" in options:
        raise OptionError(f"method {name!r}: the task sets max_new_tokens, for all methods alike")
    is_fixed = isinstance(method, Scored) and method.scoring is not None
    if is_fixed and options.keys() & {"scoring", "length_alpha"}:
        raise OptionError(f"method {name!r}: its scoring is in its name, use BKS to choose another")
    fields = {field.name for field in dataclasses.fields(SearchConfig)}
    for option in options:
        if option not in fields:
            raise OptionError(f"method {name!r}: " + unknown("option", option, fields))
    with _named(name):
        SearchConfig.of(options)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say of which method something is wrong."""
    try:
        yield
    except BestKError as error:
        raise OptionError(f"method {name!r}: {error}") from None
