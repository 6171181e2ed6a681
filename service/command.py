"""Common parts of the command lines: standard streams, and a one-line error with exit status 2."""

import argparse
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NoReturn, TextIO, TypeVar

from service.names import is_dns_label
from service.text import fold, printable, quoted

T = TypeVar("T")

_LONGEST_NOTE: Final = 4096  # maximum length of a line on standard error, in characters


class UsageError(ValueError):
    """The command line or its input is invalid; the message is one line."""


UNUSABLE: Final = 2  # exit status for invalid input or unusable output
INTERRUPTED: Final = 130  # exit status after Ctrl-C
DEFAULT_COLUMNS: Final = 80  # width of text that is not written to a terminal
LEAST_COLUMNS: Final = 40  # smallest width for which text is formatted; a narrower terminal wraps it


def run_command(name: str, run: Callable[[], int], *, unusable: tuple[type[Exception], ...] = ()) -> int:
    """Run a command line with usable standard streams; return its exit status.

    UsageError and the errors of type `unusable` end it with one line. SystemExit after --help and --version.
    """
    one_line: tuple[type[Exception], ...] = (UsageError, *unusable)
    _prepare_streams()
    try:
        try:
            status = run()
        finally:
            write_output("")  # the help is still in the buffer
    except one_line as error:
        write_note(f"{name}: {error}")
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def run_chosen(arguments: argparse.Namespace) -> int:
    """Run the function that the parser of the chosen command has set as `run`; return the exit status."""
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def write_output(text: str) -> bool:
    """Write and flush standard output; return whether it still has a reader.

    A closed pipe, as after `explain | head -1`, is no error: the command continues and keeps its exit status.
    UsageError if standard output is closed, or its disk is full.
    """
    try:
        if text:  # an empty write also fails on a full disk
            sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        _discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise UsageError(f"standard output: {error.strerror or error}") from None
        return False
    return True


def write_lines(lines: Iterable[str]) -> bool:
    """Write lines to standard output; see `write_output`."""
    return write_output("".join(f"{line}\n" for line in lines))


def write_document(text: str) -> bool:
    """Write JSON or YAML to standard output as UTF-8, whatever the locale; see `write_output`.

    In another encoding characters would be lost, and kubectl reads UTF-8 only.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    return write_output(text)


def columns_of(stream: TextIO) -> int:
    """Return the largest width of a line on a standard stream: the terminal's, but at least 40; else 80."""
    if not stream.isatty():
        return DEFAULT_COLUMNS
    return max(shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns, LEAST_COLUMNS)


def output_has_colour() -> bool:
    """Whether standard output may be coloured: it is a terminal, and `NO_COLOR` is unset or empty."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _prepare_streams() -> None:
    """Open closed standard descriptors, and make standard output replace characters that it cannot encode.

    A file or socket opened later would get the number of a closed descriptor and receive the output or the
    log. Each substitute is opened in the opposite mode, so that output to a closed stream still fails and
    lost log lines are still counted.
    """
    for descriptor, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest free number, which is this one
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        # Not descriptor 2, which is read-only here: a failed flush at exit would change the exit status.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open until the exit
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def write_note(line: str) -> None:
    """Write one line to standard error; discard it if that fails.

    The line may contain names of files and objects, so characters that a terminal interprets are replaced.
    """
    try:
        sys.stderr.write(f"{printable(line, _LONGEST_NOTE)}\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def write_warning(line: str) -> None:
    """Write a sentence to standard error, on several lines if it is longer than one; see `write_note`."""
    for part in fold(printable(line, _LONGEST_NOTE), columns_of(sys.stderr), indent="  "):
        write_note(part)


def _discard(stream: TextIO) -> None:
    """Redirect a stream and its buffer to /dev/null, so that the flush at exit does not fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


TOKENS: Final = "tokens"  # the value of --authentication for tokens that the API server checks


def add_authentication(parser: argparse.ArgumentParser) -> None:
    """Add the option --authentication of a service."""
    parser.add_argument(
        "--authentication",
        choices=("none", TOKENS),
        default="none",
        help="access to the port of metrics: tokens requires a bearer token, which the API server checks, of"
        " a user with the right to get the path (nonResourceURLs); health checks need no token"
        " (default %(default)s)",
    )


def add_log_level(parser: argparse.ArgumentParser) -> None:
    """Add the option --log-level of a service."""
    from service.log import INFO, LEVELS  # noqa: PLC0415 - a service's option; the log takes long to import

    parser.add_argument(
        "--log-level",
        choices=LEVELS,
        default=INFO,
        help="least severe lines of the log that are written; debug adds a line for each request for"
        " metrics, health or a page (default %(default)s)",
    )


def add_kubeconfig(parser: argparse.ArgumentParser, *, default: str, has_context: bool = True) -> None:
    """Add the options --kubeconfig and --context; `default` describes the access without the first."""
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help=f"kubeconfig of the cluster (default: {default})"
    )
    if has_context:
        parser.add_argument(
            "--context", metavar="NAME", help="context of the kubeconfig (default: the current context)"
        )


def add_namespace(parser: argparse.ArgumentParser, description: str) -> None:
    """Add the option --namespace."""
    parser.add_argument(
        "-n", "--namespace", type=read_by(namespace_name), metavar="NAMESPACE", help=description
    )


class Parser(argparse.ArgumentParser):
    """An argument parser that raises a one-line UsageError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def read_by(read: Callable[[str], T]) -> Callable[[str], T]:
    """Turn a function into an option's `type`: its ValueError becomes argparse's error message."""

    def typed(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed


def namespace_name(text: str) -> str:
    """Read the name of a namespace; ValueError, in one line, if no namespace can have it."""
    if not is_dns_label(text):
        raise ValueError(
            f"{quoted(text)} is not the name of a namespace; allowed: a-z, 0-9 and -, at most 63 characters"
        )
    return text


def namespace_names(text: str) -> frozenset[str]:
    """Read a comma-separated list of namespaces, which may be empty; raises as `namespace_name`."""
    return frozenset(namespace_name(item.strip()) for item in text.split(",") if item.strip())
