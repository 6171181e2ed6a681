"""The command `completion`: a completion script for a shell, made from the parser by shtab."""

import argparse
import re
from collections.abc import Iterator
from typing import Final

import shtab

from service.command import write_output

_IS_PATH: Final = re.compile(r"FILE|DIR")


def write_completion(program: argparse.ArgumentParser, shell: str) -> int:
    """Print the script; return 0.

    Args:
        program: the parser, whose options with the metavar FILE or DIR complete file names.
        shell: one of bash, zsh, tcsh.

    Raises:
        UsageError: standard output cannot be written.
    """
    for action in _actions(program):
        if isinstance(action.metavar, str) and _IS_PATH.search(action.metavar):
            action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab's own way to mark an option
    write_output(shtab.complete(program, shell) + "\n")
    return 0


def _actions(program: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the options of a parser and of its commands."""
    for action in program._actions:  # noqa: SLF001 - argparse lists its options nowhere else
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from _actions(command)
