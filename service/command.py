"""How a command line of ours fails: one line on standard error and exit status 2, never a traceback."""

import argparse
from typing import NoReturn


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
