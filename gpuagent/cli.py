"""The command `kaishare-agent`.

Exit status: 0 success, 1 internal error, 2 invalid input or unusable output, 3 restart required.
"""

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence

from gpuagent.serve_options import add_options, read_settings
from service.command import Parser, run_chosen, run_command
from service.documents import DocumentError
from service.version import version


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_command(
        "kaishare-agent", lambda: run_chosen(_parser().parse_args(argv)), unusable=(DocumentError,)
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kaishare-agent",
        description="Reports the GPU memory that each pod of this node uses, compared with its share.",
    )
    parser.add_argument("--version", action="version", version=f"kaishare-agent {version()}")
    serve = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser).add_parser(
        "serve",
        help="measure GPU memory and serve metrics",
        description="Samples the GPUs of this node, compares each pod's memory with its share, and serves"
        " metrics, a JSON API, a page and health checks. Optionally writes Events and evicts pods.",
    )
    add_options(serve)
    serve.set_defaults(run=_serve)
    return parser


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Exit with 0 on SIGTERM before the server has its own handler; the kernel ignores SIGTERM for PID 1."""
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@_ending_on_sigterm()
def _serve(arguments: argparse.Namespace) -> int:
    settings = read_settings(arguments)
    # Imported here: --help and a mistyped option need no server.
    from gpuagent.serve import run  # noqa: PLC0415

    return run(settings)
