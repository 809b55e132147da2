"""The command line. One file per command; what a command does lives in the library.

To add a command: write its function in a file of this package and list it in `COMMANDS`; another
package names its own as entry points of the group `bestk.commands`, as `bestk_eval` does. Starting
stays light: a command's file imports torch, transformers and the like inside its function.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from bestk.cli.batch import batch
from bestk.cli.compare import compare
from bestk.cli.doctor import doctor
from bestk.cli.generate import generate
from bestk.cli.models import models
from bestk.cli.options import with_address
from bestk.cli.serve import serve
from bestk.cli.show import show
from bestk.cli.size import size
from bestk.cli.trie import trie
from bestk.errors import BestKError, OptionError, unknown
from bestk.settings import no_setting
from bestk.version import __version__

GROUP = "bestk.commands"
_ALIKE = 0.75  # a first word so near to a command is a misspelt command, not a prompt
COMMANDS: tuple[Callable[..., Any], ...] = (
    *(generate, batch, compare, show, serve, size, trie),
    *(models, doctor),
)
# What the program itself takes before a command; anything else there is `bestk generate`'s.
_OWN = ("-h", "--help", "--version", "--install-completion", "--show-completion")


@functools.cache
def app() -> typer.Typer:
    """Return the application: commands of our own, then those that other packages add."""
    made = typer.Typer(
        name="bestk",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(bestk)
    for command in (*COMMANDS, *_added()):
        # A command's help opens with an example; the list of commands says what each is for.
        purpose = (inspect.getdoc(command) or "").split("\n\n", 1)[-1]
        made.command(short_help=purpose)(command)
    return made


def _added() -> Iterator[Callable[..., Any]]:
    """Yield the commands of other packages; one that cannot be loaded costs no other its life."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            yield point.load()
        except Exception as error:  # whatever somebody else's code raises
            print(
                f"Note: command {point.name} ({point.value}) is left out: {error}", file=sys.stderr
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0, 2 for bad input, 130 after Ctrl-C.

    Commands may have codes of their own: `bestk batch` gives 1 where rows could not be searched.
    """
    arguments = with_address(list(sys.argv[1:] if argv is None else argv) or ["--help"])
    try:
        command: Any = typer.main.get_command(app())
        for option in (param for one in command.commands.values() for param in one.params):
            option.show_envvar = False  # docs/cli.md has the one rule for all
        given = {"standalone_mode": False, "auto_envvar_prefix": "BESTK"}
        code = command(with_command(arguments), prog_name="bestk", **given)
        sys.stdout.flush()
    except BestKError as error:
        return _fail(str(error))
    except typer.TyperException as error:
        return _fail(_usage(error))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain when it flushes at exit.
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
        return 0
    except OSError as error:  # no room, no rights, no such disk any more
        where = f" ({error.filename})" if error.filename else ""
        return _fail(
            f"{error.strerror or error}{where}: what was written is kept, the same command goes "
            "on when that is mended"
        )
    return code if isinstance(code, int) else 0


def with_command(arguments: Sequence[str]) -> list[str]:
    """Put `generate` before a prompt or its options: `bestk "Name a colour."` is enough.

    >>> with_command(["-n", "3", "Name a colour."])
    ['generate', '-n', '3', 'Name a colour.']
    """
    first = arguments[0]
    names = list(typer.main.get_command(app()).commands)  # type: ignore[attr-defined]
    if first in names or first in _OWN:
        return list(arguments)
    if " " not in first and difflib.get_close_matches(first, names, cutoff=_ALIKE):
        raise OptionError(unknown("command", first, names))
    return ["generate", *arguments]


def _version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"bestk {__version__}")
        raise typer.Exit


def bestk(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """[bold]bestk "Name a colour and say why you like it."[/bold]

    A large set of good, different, ranked texts from any language model, by best-k search.
    """


def _fail(message: str) -> int:
    print("Error: " + " ".join(message.split()), file=sys.stderr)
    return 2


def _usage(error: typer.TyperException) -> str:
    """Word a misuse of the command line as one line that ends in the way out."""
    context: Any = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if context is None or not error.message.startswith("No such option"):
        return error.format_message()
    names = [name for param in context.command.params for name in param.opts]
    known = [_bare(name) for name in names if name.startswith("--")]
    return no_setting(_bare(str(option)), known, lambda name: "--" + name.replace("_", "-"))


def _bare(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")
