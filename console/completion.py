"""Completion: scripts for shells, and candidates for `kubectl kaishare`.

kubectl 1.26 and later runs `kubectl_complete-kaishare WORD…` from the PATH (kubernetes/kubernetes#105867).
The words are those after `kubectl kaishare`; the last one is to be completed and may be empty. The output is
one candidate a line, with a description after a tab, and at last a directive of Cobra, kubectl's library of
commands.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

from service.command import UsageError, write_output
from service.text import one_line

COMMAND: Final = "__complete"
"""Hidden command, under the name that Cobra's own programs use."""

_FILES: Final = re.compile(r"FILE|DIR")
"""Metavars of options that take a path."""
_LONGEST_DESCRIPTION: Final = 60  # characters


class Directive(IntEnum):
    """What the shell does beside showing the candidates (Cobra's ShellCompDirective)."""

    DEFAULT = 0
    """Complete file names if there is no candidate."""
    NO_FILES = 4


def write_completion(program: argparse.ArgumentParser, shell: str) -> int:
    """Print a completion script, which shtab makes from the parser; return 0.

    Args:
        program: the parser, whose options with the metavar FILE or DIR complete file names.
        shell: one of bash, zsh, tcsh.

    Raises:
        UsageError: shtab is not installed, or standard output cannot be written.
    """
    try:
        import shtab  # noqa: PLC0415 - images do without it
    except ModuleNotFoundError as error:
        raise UsageError(f"completion needs the Python package {error.name}") from None
    for action in _every_action(program):
        if _takes_path(action):
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


def _takes_path(action: argparse.Action) -> bool:
    return isinstance(action.metavar, str) and _FILES.search(action.metavar) is not None


def write_candidates(program: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Print the candidates for the last word; return 0.

    Args:
        program: the parser of the program.
        words: the words after the program's name; the last one is to be completed.

    Raises:
        UsageError: standard output cannot be written.
    """
    matches, directive = candidates(program, words)
    write_output("".join(f"{candidate}\n" for candidate in matches) + f":{directive:d}\n")
    return 0


def candidates(program: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], Directive]:
    """Return the candidates for the last word, some with a description, and the directive."""
    *before, last = words or [""]
    parser, pending, positionals = program, None, 0
    for word in before:
        if pending is not None and not (pending.nargs == "?" and word.startswith("-")):
            pending = None
            continue
        pending = None
        if word == "--":
            return [], Directive.NO_FILES
        if _is_option(word):
            name, separator, _ = word.partition("=")
            option = parser._option_string_actions.get(name)  # noqa: SLF001 - argparse has no other access
            pending = None if separator or option is None or option.nargs == 0 else option
            continue
        commands = _commands(parser)
        if commands is None:
            positionals += 1
        elif (chosen := commands.choices.get(word)) is None:
            return [], Directive.NO_FILES
        else:
            parser = chosen
    if pending is not None and not (pending.nargs == "?" and last.startswith("-")):
        return _values(pending, last)
    if last.startswith("-"):
        name, separator, value = last.partition("=")
        option = parser._option_string_actions.get(name)  # noqa: SLF001
        if separator:  # the shell replaces the part after the sign
            return ([], Directive.NO_FILES) if option is None else _values(option, value)
        return sorted(_options(parser, before, last)), Directive.NO_FILES
    return _positional(parser, positionals, last)


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _commands(
    parser: argparse.ArgumentParser,
) -> "argparse._SubParsersAction[argparse.ArgumentParser] | None":
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return action
    return None


def _options(parser: argparse.ArgumentParser, before: Sequence[str], start: str) -> Iterator[str]:
    """Yield the options that begin with a text, without those that are given and cannot be repeated."""
    given = {word.partition("=")[0] for word in before}
    for action in parser._actions:  # noqa: SLF001
        is_repeatable = isinstance(action, argparse._AppendAction)  # noqa: SLF001
        if given.intersection(action.option_strings) and not is_repeatable:
            continue
        for name in action.option_strings:
            if name.startswith(start):
                yield _described(parser, action, name)


def _described(parser: argparse.ArgumentParser, action: argparse.Action, name: str) -> str:
    """Return an option with the first part of its help, which may go on with details."""
    text = action.help or ""
    if "%(" in text:
        text = parser._get_formatter()._expand_help(action)  # noqa: SLF001
    return _with_summary(name, re.split(r"[;,:(]", text, maxsplit=1)[0])


def _with_summary(name: str, text: str) -> str:
    summary = one_line(text.strip(), _LONGEST_DESCRIPTION)
    return f"{name}\t{summary}" if summary else name


def _values(action: argparse.Action, start: str) -> tuple[list[str], Directive]:
    choices = [str(choice) for choice in action.choices or ()]
    directive = Directive.DEFAULT if _takes_path(action) else Directive.NO_FILES
    return [choice for choice in choices if choice.startswith(start)], directive


def _positional(parser: argparse.ArgumentParser, index: int, start: str) -> tuple[list[str], Directive]:
    commands = _commands(parser)
    if commands is not None:
        named = [
            _with_summary(action.dest, action.help or "")
            for action in commands._choices_actions  # noqa: SLF001 - the only place of the commands' help
            if action.dest.startswith(start)
        ]
        return named, Directive.NO_FILES
    positionals = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001
    return _values(positionals[index], start) if index < len(positionals) else ([], Directive.NO_FILES)
