r"""Regular expressions in time linear in the text: a set of states, never a way back.

Knows what patterns of JSON schemas are made of; groups that are looked back at, or ahead, are not.

>>> Linear("(a+)+$").search("a" * 1000 + "b")
False
>>> Linear(r"^\d{2,3}(-x)?$").search("123-x")
True
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from bestk.errors import OptionError

_MOST_STATES = 1000
_Step = tuple[Callable[[str, int], bool], bool, tuple[int, ...]]  # test, whether it reads, next
_CATEGORIES = {
    f"CATEGORY_{negation}{name}": re.compile(f"\\{letter.upper() if negation else letter}")
    for name, letter in (("DIGIT", "d"), ("SPACE", "s"), ("WORD", "w"))
    for negation in ("", "NOT_")
}
_ANCHORS = {
    "AT_BEGINNING": re.compile("^"),
    "AT_END": re.compile("$"),
    "AT_BOUNDARY": re.compile(r"\b"),
    "AT_NON_BOUNDARY": re.compile(r"\B"),
    "AT_BEGINNING_STRING": re.compile(r"\A"),
    "AT_END_STRING": re.compile(r"\Z"),
}


class Linear:
    """A pattern."""

    def __init__(self, pattern: str) -> None:
        try:
            tree = _parser.parse(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise OptionError(
                f"pattern {pattern[:60]!r} is no regular expression: {error}"
            ) from None
        self.pattern = pattern
        self.steps: list[_Step] = []
        if tree.state.flags != re.UNICODE.value:
            raise self._unfit("flags")
        self.end = self._add(lambda text, place: False, True)
        self.start = self._build(tree, self.end)

    def search(self, text: str) -> bool:
        """Return whether any part of a text matches, as `re.search` does."""
        states: set[int] = set()
        for place in range(len(text) + 1):
            states = self._reached([*states, self.start], text, place)
            if self.end in states:
                return True
            if place < len(text):
                steps = (self.steps[state] for state in states)
                states = {next_ for test, _, after in steps if test(text, place) for next_ in after}
        return False

    def _reached(self, states: Iterable[int], text: str, place: int) -> set[int]:
        """Follow what reads nothing; return the states that read."""
        left, seen = list(states), set(states)
        while left:
            test, reads, after = self.steps[left.pop()]
            if not reads and test(text, place):
                fresh = [state for state in after if state not in seen]
                seen.update(fresh)
                left += fresh
        return {state for state in seen if self.steps[state][1]}

    def _build(self, tree: Iterable[Any], after: int) -> int:
        """Add the states of a part of a pattern, from its end; return where it begins."""
        for operator, value in reversed(list(tree)):
            after = self._part(str(operator), value, after)
        return after

    def _part(self, operator: str, value: Any, after: int) -> int:
        if operator in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            is_one = _one_of([(operator, value)] if operator != "IN" else value)
            return self._add(lambda text, place: is_one(text[place]), True, after)
        if operator == "AT" and str(value) in _ANCHORS:
            anchor = _ANCHORS[str(value)]
            return self._add(lambda text, place: bool(anchor.match(text, place)), False, after)
        if operator == "BRANCH":
            return self._fork(*(self._build(branch, after) for branch in value[1]))
        if operator == "SUBPATTERN" and not value[1] and not value[2]:
            return self._build(value[3], after)
        if operator in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeated(value[0], value[1], value[2], after)
        raise self._unfit(operator.lower().replace("_", " "))

    def _repeated(self, least: int, most: Any, tree: Any, after: int) -> int:
        if most == _parser.MAXREPEAT:
            again = self._fork(after)
            self.steps[again] = (_always, False, (self._build(tree, again), after))
            after = again
        else:
            end = after
            for _ in range(most - least):
                after = self._fork(self._build(tree, after), end)
        for _ in range(least):
            after = self._build(tree, after)
        return after

    def _fork(self, *after: int) -> int:
        return self._add(_always, False, *after)

    def _add(self, test: Callable[[str, int], bool], reads: bool, *after: int) -> int:
        if len(self.steps) >= _MOST_STATES:
            raise self._unfit(f"more than {_MOST_STATES} states")
        self.steps.append((test, reads, after))
        return len(self.steps) - 1

    def _unfit(self, what: str) -> OptionError:
        return OptionError(
            f"pattern {self.pattern[:60]!r} cannot be checked, it has {what}: leave that out"
        )


def _always(text: str, place: int) -> bool:
    return True


def _one_of(items: Sequence[tuple[Any, Any]]) -> Callable[[str], bool]:
    """Make the test of a single character."""
    tests = [_test(str(operator), value) for operator, value in items if str(operator) != "NEGATE"]
    negated = len(tests) < len(list(items))
    return lambda c: any(test(c) for test in tests) != negated


def _test(operator: str, value: Any) -> Callable[[str], bool]:
    if operator == "ANY":
        return lambda c: c != "\n"
    if operator == "RANGE":
        return lambda c: bool(value[0] <= ord(c) <= value[1])
    if operator == "CATEGORY":
        known = _CATEGORIES[str(value)]
        return lambda c: bool(known.match(c))
    is_not = operator == "NOT_LITERAL"
    return lambda c: (ord(c) == value) != is_not
