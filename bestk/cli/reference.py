"""The reference of all commands in Markdown, made from the commands themselves.

`python -m bestk.cli.reference > docs/cli.md` writes it; a test compares the two.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer

from bestk.cli import app


def reference() -> str:
    """Return every command with its arguments and options."""
    commands: dict[str, Any] = typer.main.get_command(app()).commands  # type: ignore[attr-defined]
    parts = [
        "# Command line\n",
        "`bestk PROMPT` is `bestk generate PROMPT`; a chat model answers the prompt, `--raw` "
        "continues it. `bestk --install-completion` teaches your shell commands and options. Any "
        "option may come from the environment: `BESTK_SERVE_PORT=8001` is `--port` of `bestk "
        "serve`.\n",
        "Made from the commands by `python -m bestk.cli.reference > docs/cli.md`.\n",
        "Results go to standard output, progress to standard error if it is a terminal. Bad input "
        "gives one line that starts with `Error:` and exit code 2. Ctrl-C keeps what was found and "
        "gives exit code 130; a second Ctrl-C ends at once.\n",
    ]
    for name in sorted(commands):
        parts += [f"## bestk {name}\n", _about(commands[name])]
        parts += _tables(commands[name].params)
    return "\n".join(parts)


def _about(command: Any) -> str:
    example, purpose = inspect.cleandoc(command.help).split("\n\n", 1)
    return f"{purpose}\n\n```\n{_plain(example)}\n```\n"


def _tables(params: list[Any]) -> list[str]:
    panels: dict[str, list[str]] = {}
    for param in params:
        is_argument = param.param_type_name == "argument"
        panel = getattr(param, "rich_help_panel", None)
        title = panel or ("Arguments" if is_argument else "Options")
        names = param.name.upper() if is_argument else ", ".join(param.opts)
        default = param.default
        is_told = default not in (None, [], ...) and default is not False
        panels.setdefault(title, []).append(
            f"| `{names}` | {f'`{default}`' if is_told else ''} | {_plain(param.help)} |"
        )
    return [
        f"{title}:\n\n| | default | |\n|---|---|---|\n" + "\n".join(rows) + "\n"
        for title, rows in panels.items()
    ]


def _plain(text: str | None) -> str:
    return re.sub(r"\[/?bold\]", "", text or "")


if __name__ == "__main__":
    print(reference(), end="")
