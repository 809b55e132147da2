"""Has the last word on a JSON document: xgrammar reads over some parts of JSON Schema.

What a schema may ask of a text is counted, and its patterns take linear time, by RE2: whoever wrote
it, a check ends soon. Knows jsonschema and texts, neither grammars nor tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from bestk.constraints.compiling import missing
from bestk.errors import OptionError

_MOST_CHECKS = 10_000  # of one text: keywords, and each hundred values in them
_MOST_BYTES = 1 << 20  # of a compiled pattern


class _TooMany(Exception):
    """A schema asks too much of a text."""


@lru_cache(64)
def validator(text: str) -> Callable[[str], bool]:
    """Make a check of whole documents from a schema, once."""
    try:
        import jsonschema
        import referencing
    except ImportError as error:
        raise missing("jsonschema") from error
    schema = json.loads(text)
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(map(str, error.path)) or "the schema"
        raise OptionError(f"json_schema is not a schema: {error.message} at {where}") from None
    except RecursionError:
        raise OptionError("json_schema is too deep: make it simpler") from None
    patterns = _patterns(schema)
    left = 0

    def counted(check: Any) -> Any:
        def keyword(checks: Any, value: Any, instance: Any, schema: Any) -> Any:
            nonlocal left
            sizes = [len(one) for one in (value, instance) if isinstance(one, dict | list)]
            left -= 1 + sum(sizes) // 100
            if left < 0:
                raise _TooMany
            return check(checks, value, instance, schema)

        return keyword

    def matches(pattern: str, name: str) -> bool:
        return patterns[pattern].search(name) is not None

    def pattern(checks: Any, value: str, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, str) and not matches(value, instance):
            yield jsonschema.ValidationError(f"no match of {value}")

    def of_patterns(checks: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        for name in instance if isinstance(instance, dict) else ():
            for known, below in value.items():
                if matches(known, name):
                    yield from checks.descend(instance[name], below)

    def additional(checks: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        known, others = schema.get("properties", {}), schema.get("patternProperties", {})
        for name in instance if isinstance(instance, dict) else ():
            if name in known or any(matches(other, name) for other in others):
                continue
            if value is False:
                yield jsonschema.ValidationError(f"{name} is not allowed")
            else:
                yield from checks.descend(instance[name], value)

    ours = {
        "pattern": pattern,
        "patternProperties": of_patterns,
        "additionalProperties": additional,
    }
    every = {name: counted(ours.get(name, check)) for name, check in kind.VALIDATORS.items()}
    counting = jsonschema.validators.extend(kind, every)
    # A registry of its own keeps references to other files from being fetched.
    checks = counting(schema, registry=referencing.Registry(), format_checker=kind.FORMAT_CHECKER)

    def is_valid(text: str) -> bool:
        nonlocal left
        left = _MOST_CHECKS
        try:
            return bool(checks.is_valid(json.loads(text)))
        except Exception:  # no JSON, or a stranger's schema that leads nowhere: no fault of others
            return False

    return is_valid


def compiled(pattern: str) -> Any:
    """Compile a pattern, which takes linear time: nothing looks ahead, or back at groups."""
    try:
        import re2
    except ImportError as error:
        raise missing("google-re2") from error
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MOST_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace")
        told = f"pattern {pattern[:60]!r} cannot be checked: {why:.60}; leave that out"
        raise OptionError(told) from None


def _patterns(schema: Any) -> dict[str, Any]:
    """Return every pattern in a schema; refuse what would be checked past the count."""
    found: dict[str, Any] = {}
    left: list[Any] = [schema]
    names: set[str] = set()
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, dict):
            left += part.values()
            names |= part.keys()
            if part is not schema and isinstance(part.get("$schema"), str):
                raise OptionError("json_schema has a $schema in a part of it: leave that out")
            patterns = part.get("patternProperties", {})
            texts = [part.get("pattern"), *(patterns if isinstance(patterns, dict) else ())]
            found |= {text: compiled(text) for text in texts if isinstance(text, str)}
    if {"patternProperties", "unevaluatedProperties"} <= names:
        raise OptionError(
            "json_schema has patternProperties and unevaluatedProperties: leave one out"
        )
    return found
