"""Schemas made to hurt: a check of a text ends soon, and says what a regular expression says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestk.constraints.json_schema import compiled, validator
from bestk.errors import OptionError

ATOMS = ["a", "b", ".", "[ab]", "[^a]", r"\d", r"\W", "^", "$", r"\b", "-"]
PATTERNS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(pattern=PATTERNS, text=st.text("ab1-\n", max_size=8))
def test_patterns_match_what_re_matches(pattern: str, text: str) -> None:
    # As JSON Schema means them: classes are ASCII's, and $ is the end alone.
    expected = re.search(pattern.replace("$", r"\Z"), text, re.ASCII)
    assert bool(compiled(pattern).search(text)) is bool(expected)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "^(a|a)*$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$", "(.*)*=(.*)*;"]
)
def test_catastrophic_patterns_end(pattern: str) -> None:
    """`re` would take 2**200 steps."""
    is_valid = validator(json.dumps({"type": "string", "pattern": pattern}))
    assert not is_valid(json.dumps("a" * 200 + "!"))


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        (r"(a)\1", r"cannot be checked: invalid escape sequence: \\1"),
        ("a(?=b)", "invalid perl operator"),
        ("a{5000}", "invalid repetition size"),
        (r"(\pL{100}){9}", "too large"),
        ("(", "missing"),
    ],
)
def test_patterns_that_cannot_be_linear_are_refused(pattern: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        compiled(pattern)


def doubling(size: int) -> dict[str, Any]:
    """Each part asks twice for the next: 2**size checks."""
    parts: dict[str, Any] = {
        f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(size)
    }
    return {"$defs": {**parts, f"a{size}": {"type": "string"}}, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize(
    "schema",
    [
        doubling(60),
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"multipleOf": 5e-324},
    ],
)
def test_a_check_of_a_text_ends(schema: dict[str, Any]) -> None:
    assert not validator(json.dumps(schema))(f"1{'0' * 400}")


def test_texts_that_python_cannot_read_are_not_valid() -> None:
    is_valid = validator("{}")
    assert is_valid("1")
    assert not is_valid("1" * 10_000)
    assert not is_valid("[" * 100_000)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"pattern": "b"}, '"abc"', '"acc"'),
        ({"not": {"pattern": "b"}}, '"acc"', '"abc"'),
        ({"oneOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, '"ac"', '"ab"'),
        ({"patternProperties": {"^a": {"type": "null"}}}, '{"ab": null, "b": 1}', '{"ab": 1}'),
        (
            {
                "properties": {"c": {}},
                "patternProperties": {"^a": {}},
                "additionalProperties": False,
            },
            '{"ab": 1, "c": 1}',
            '{"b": 1}',
        ),
        ({"properties": {"c": {}}, "additionalProperties": {"type": "null"}}, '{"b": null}',
         '{"b": 1}'),
    ],
)  # fmt: skip
def test_patterns_say_what_jsonschema_says(schema: dict[str, Any], good: str, bad: str) -> None:
    import jsonschema

    for text, wanted in ((good, True), (bad, False)):
        assert validator(json.dumps(schema))(text) is wanted
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)) is wanted


def test_what_would_be_checked_past_the_count_is_refused() -> None:
    part = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}
    with pytest.raises(OptionError, match=r"\$schema in a part"):
        validator(json.dumps({"anyOf": [part]}))
    with pytest.raises(OptionError, match="leave one out"):
        validator('{"patternProperties": {"a": {}}, "unevaluatedProperties": false}')
