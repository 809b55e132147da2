r"""Tools of a chat: the grammar that makes every call of one valid, and calls read out of texts.

The form is what chat templates teach: a line of JSON with the function's name and its arguments,
in `<tool_call>` tags where the template has them. Knows no routes and no searches.

>>> weather = {"name": "weather", "parameters": {"type": "object"}}
>>> tools = Tools([weather], "<tool_call> tools", is_needed=True)
>>> tools.read('Now.\n<tool_call>\n{"name": "weather", "arguments": {"at": "Rome"}}\n</tool_call>')
('Now.', [('weather', '{"at": "Rome"}')])
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bestk.errors import OptionError, unknown

_TAGS = ("<tool_call>\n", "\n</tool_call>")
_PARAMETERS = '"parameters": dictionary'  # how templates of Llama's kind ask for arguments
_ANY = {"type": "object"}


class Tools:
    """The functions that a model may call, or must."""

    def __init__(
        self,
        functions: Sequence[Mapping[str, Any]],
        template: str,
        *,
        is_needed: bool = False,
        is_single: bool = False,
    ) -> None:
        self.functions = {one["name"]: one for one in functions}
        self.is_needed, self.is_single = is_needed, is_single
        self.opening, self.closing = _TAGS if _TAGS[0].strip() in template else ("", "")
        self.key = "parameters" if _PARAMETERS in template else "arguments"

    @property
    def specs(self) -> list[dict[str, Any]]:
        """The functions as chat templates take them."""
        return [{"type": "function", "function": dict(one)} for one in self.functions.values()]

    @property
    def grammar(self) -> str:
        """A structural tag: text with calls in it, or calls alone where one is needed."""
        tags = [self._tag(one) for one in self.functions.values()]
        calls: dict[str, Any] = {"tags": tags, "stop_after_first": self.is_single}
        if self.is_needed:
            calls |= {"type": "tags_with_separator", "separator": "\n", "at_least_one": True}
        else:
            trigger = self.opening.strip() or '{"name": "'
            calls |= {"type": "triggered_tags", "triggers": [trigger]}
        return json.dumps({"type": "structural_tag", "format": calls}, ensure_ascii=False)

    def read(self, text: str) -> tuple[str, list[tuple[str, str]]]:
        """Take the calls out of a text: what else it says, names and arguments as JSON."""
        said, calls, place = [], [], 0
        opening = self.opening + '{"name": "'
        while (start := text.find(opening, place)) >= 0:
            found = self._call(text, start + len(self.opening))
            if found is None:  # cut off: it stays text
                break
            said.append(text[place:start])
            call, place = found
            calls.append(call)
        said.append(text[place:])
        return "".join(said).strip() if calls else text, calls

    def _tag(self, function: Mapping[str, Any]) -> dict[str, Any]:
        name = json.dumps(function["name"], ensure_ascii=False)
        schema = function.get("parameters") or _ANY
        return {
            "type": "tag",
            "begin": f'{self.opening}{{"name": {name}, "{self.key}": ',
            "content": {"type": "json_schema", "json_schema": schema},
            "end": "}" + self.closing,
        }

    def _call(self, text: str, start: int) -> tuple[tuple[str, str], int] | None:
        try:
            call, end = json.JSONDecoder().raw_decode(text, start)
            name, arguments = call["name"], call[self.key]
        except (ValueError, KeyError, RecursionError):
            return None
        if name not in self.functions or not text.startswith(self.closing, end):
            return None
        written = json.dumps(arguments, ensure_ascii=False)
        return (name, written), end + len(self.closing)


def tools_of(
    functions: Sequence[Mapping[str, Any]], choice: Any, template: str | None, *, is_single: bool
) -> Tools | None:
    """Make the tools of a request; None where the model is to call none."""
    if not functions or choice == "none":
        return None
    if template is None:
        raise OptionError(
            "tools need a chat template that tells the model of them, and this model's does not: "
            "use another model, or response_format with a json_schema"
        )
    chosen, mode = [one["name"] for one in functions], choice or "auto"
    if isinstance(choice, dict):
        chosen, mode = _chosen(choice)
    known = {one["name"]: one for one in functions}
    for name in chosen:
        if name not in known:
            raise OptionError(unknown("function", name, known))
    if mode not in ("auto", "required"):
        raise OptionError(unknown("tool_choice", str(mode), ("none", "auto", "required")))
    picked = [known[name] for name in chosen]
    return Tools(picked, template, is_needed=mode == "required", is_single=is_single)


def _chosen(choice: Mapping[str, Any]) -> tuple[list[str], str]:
    """Read a choice that names functions: one that must be called, or those that may be."""
    try:
        if choice["type"] == "function":
            return [str(choice["function"]["name"])], "required"
        if choice["type"] == "allowed_tools":
            allowed = choice["allowed_tools"]
            return [str(one["function"]["name"]) for one in allowed["tools"]], allowed["mode"]
    except (KeyError, TypeError):
        pass
    raise OptionError(
        'tool_choice is none, auto, required or {"type": "function", "function": {"name": …}}'
    )
