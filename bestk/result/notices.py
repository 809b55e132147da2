"""Why a search found no text, or fewer than were asked for, in one line, and what would help."""

from __future__ import annotations

import math

from bestk.config import SearchConfig


def emptiness(config: SearchConfig, stop_reason: str, num_truncated: int, bound: float) -> str:
    """Return why a search found no text, and what would help.

    >>> emptiness(SearchConfig(regex="a+"), "budget", 0, -1.0)
    'no text met regex within the budget of 300 expansions: raise beam_size or budget'
    """
    names = " and ".join(config.constraints)
    none = f"no text met {names}" if names else "no text was complete"
    if stop_reason == "exhausted" and bound == -math.inf and not num_truncated:
        can = f"can meet {names}" if names else "can be complete"
        return f"no text {can}: every branch of the search came to a dead end"
    if num_truncated:
        where = f"within max_new_tokens={config.max_new_tokens}"
        return f"{none} {where}, which cut {num_truncated} branches: raise it"
    if stop_reason == "budget":
        budget = config.total_budget
        return f"{none} within the budget of {budget} expansions: raise beam_size or budget"
    if stop_reason == "exhausted":
        return f"{none} among children of at least min_prob={config.min_prob:g}: lower it"
    return f"{none} before the search ended ({stop_reason})"


def shortage(config: SearchConfig, stop_reason: str, num_found: int) -> str:
    """Return why a search found fewer texts than were asked for, and what would help.

    >>> shortage(SearchConfig(num_texts=10, regex="a|b"), "exhausted", 2)
    'found 2 of 10 texts: no other meets regex among what was opened'
    """
    names = " and ".join(config.constraints)
    told = f"found {num_found} of {config.num_texts} texts"
    if stop_reason == "budget":
        budget = config.total_budget
        return f"{told} within the budget of {budget} expansions: raise budget or max_new_tokens"
    if stop_reason == "exhausted":
        return f"{told}: no other {f'meets {names}' if names else 'is left'} among what was opened"
    return f"{told} before the search ended ({stop_reason})"


def unproven(config: SearchConfig, proven: int, bound: float) -> str | None:
    """Return why fewer texts are proven than `certify` asks for, and what would help.

    >>> unproven(SearchConfig(certify=9, scoring="sum", decay="none"), 2, -3.5)
    '2 of the 9 texts of certify are proven: use min_prob=0'
    """
    assert config.certify is not None
    if proven >= config.certify or bound == -math.inf:
        return None
    right = {"scoring": "sum", "decay": "none", "min_prob": 0}
    wrong = {name: value for name, value in right.items() if getattr(config, name) != value}
    use = ", ".join(f"{name}={value!r}" for name, value in wrong.items())
    if not use:
        use = f"a larger max_frontier ({config.max_frontier}) or budget ({config.total_budget})"
    return f"{proven} of the {config.certify} texts of certify are proven: use {use}"
