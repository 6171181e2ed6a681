"""How a command line of ours fails: one line on standard error and exit status 2, never a traceback."""

import argparse
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")


class UsageError(ValueError):
    """The command cannot be run as it was typed; the message is one line."""


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line, and leaves the exit to `main`."""

    def error(self, message: str) -> NoReturn:
        """Report bad options.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message} (see {self.prog} --help)")


def read_by(read: Callable[[str], T]) -> Callable[[str], T]:
    """Make an option's `type` of a function whose ValueError says what is wrong and what is allowed."""

    def typed(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed


def names(text: str) -> frozenset[str]:
    """Read a comma list of names."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())
