"""The command `completion`: prints a script for a shell, made from the parsers by shtab."""

import argparse
import re
from collections.abc import Iterator
from typing import Final

from service.command import UsageError, write_output

_FILES: Final = re.compile(r"FILE|DIR")  # metavars of options that take a path


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `completion`."""
    command.description = "Prints a completion script of kaishare. bash: source <(kaishare completion bash)."
    command.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")


def run(arguments: argparse.Namespace) -> int:
    """Print the script; raise as `write_completion`."""
    from console.cli import parser  # noqa: PLC0415 - it imports this module

    return write_completion(parser(), arguments.shell)


def write_completion(program: argparse.ArgumentParser, shell: str) -> int:
    """Print a completion script, which shtab makes from the parser; return 0, or raise UsageError."""
    try:
        import shtab  # noqa: PLC0415 - images do without it
    except ModuleNotFoundError as error:
        raise UsageError(f"completion needs the Python package {error.name}") from None
    for action in _every_action(program):
        if isinstance(action.metavar, str) and _FILES.search(action.metavar):
            action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab's own way to mark an option
    write_output(shtab.complete(program, shell) + "\n")
    return 0


def _every_action(program: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the options of a parser and of its commands."""
    for action in program._actions:  # noqa: SLF001 - argparse lists its options nowhere else
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from _every_action(command)
