"""What every command line shares: its standard streams, and one line with exit status 2 for each failure."""

import argparse
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn, TextIO, TypeVar

T = TypeVar("T")


class UsageError(ValueError):
    """The command cannot be run as it was typed; the message is one line."""


UNUSABLE: Final = 2
"""Exit status: the input or the output cannot be used."""

INTERRUPTED: Final = 130


def run_command(name: str, run: Callable[[], int], *, unusable: tuple[type[Exception], ...] = ()) -> int:
    """Run a command line with usable standard streams; return its exit status.

    Args:
        name: the program, for its error line.
        run: the command.
        unusable: errors besides UsageError whose message is one line for the user.

    Raises:
        SystemExit: the help or the version is printed.
    """
    one_line: tuple[type[Exception], ...] = (UsageError, *unusable)
    _prepare_streams()
    try:
        try:
            status = run()
        finally:
            write_output("")  # the help is still in the buffer
    except one_line as error:
        _complain(f"{name}: {error}")
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def write_output(text: str) -> bool:
    """Write to standard output at once; return whether it still has a reader.

    `explain | head -1` is no error: the command goes on quietly and keeps its exit status.

    Raises:
        UsageError: standard output cannot be written; it is closed, or its disk is full.
    """
    try:
        if text:  # an empty write fails on a full disk, too
            sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        output_failed(error)
        return False
    return True


def output_failed(error: OSError) -> None:
    """Discard what is written to standard output from now on.

    Raises:
        UsageError: the failure is another than a reader that is gone.
    """
    _discard(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        raise UsageError(f"standard output: {error.strerror or error}") from None


def _prepare_streams() -> None:
    """Open the standard descriptors that are closed, and let standard output take any name.

    A file or socket opened later would get the number of a closed descriptor, and then the output or the log.
    The substitutes refuse what their stream is for: output to a closed stream still fails, and lost log lines
    are still counted.
    """
    for descriptor, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        if _is_closed(descriptor):
            os.open(os.devnull, mode)  # takes the lowest free number, which is this one
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        # Not descriptor 2, which refuses: a failed flush at exit would change the exit status.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open until the exit
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _is_closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


def _complain(line: str) -> None:
    """Write one line to standard error, if that is possible."""
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Let a stream go nowhere, with what its buffer holds: the flush at exit must not fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


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
