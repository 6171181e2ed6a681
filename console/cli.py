"""The command `kaishare`, which is also installed as `kubectl-kaishare`.

Exit status: 0 for success, 1 for a negative result, 2 for unusable input or output and for a cluster that
cannot be read.
"""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from console.help import ADDRESS
from service.command import Parser, UsageError, read_by, run_chosen, run_command, write_output
from service.text import one_line, quoted

# Module and help of each command. A module has `add_arguments` and `run`; it is imported for its own command
# only, since all of them take a second.
_COMMANDS: Final = {
    "explain": ("console.explain.command", "show what the webhook would do to pods of files or of a cluster"),
    "why": ("console.why.command", "say why a pod does not start, or what is wrong with it"),
    "doctor": ("console.doctor.command", "check webhook, policies, KAI and agents for problems"),
    "policies": ("console.policies", "list the policies of managed namespaces"),
    "top": ("console.top.command", "show the agents of the cluster in one interactive view"),
    "ui": ("console.ui", "serve the agents' page over all nodes on a port of this machine"),
    "advise": ("console.usage.advise", "suggest the share of each size or workload, from what it used"),
    "report": ("console.usage.report", "show GPU-hours by team: promised, used, idle, saved by sharing"),
    "render": (
        "console.render.policy_manifests",
        "print the policy as admission policies, without a webhook",
    ),
    "help": ("console.help", "print what the documentation says about a code, such as queue-over-quota"),
    "completion": ("console.cli", "print a completion script for a shell"),
}
_PLUGIN: Final = "kubectl-kaishare"
_FILES: Final = re.compile(r"FILE|DIR")  # metavars of options that take a path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    name = program_name(sys.argv[0])
    return run_command(name, lambda: _run(name, argv))


def program_name(path: str) -> str:
    """Return the name under which the user started the program."""
    return "kubectl kaishare" if Path(path).name.startswith(_PLUGIN) else "kaishare"


def _run(name: str, argv: Sequence[str] | None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    chosen = next((word for word in words if word in _COMMANDS), "")
    if not chosen and (other := next((w for w in words if not w.startswith("-") and "://" not in w), "")):
        near = difflib.get_close_matches(other[:100], _COMMANDS, n=1)
        hint = f"the nearest is {near[0]}" if near else f"see {name} --help"
        raise UsageError(f"{quoted(one_line(other, 100))} is not a command; {hint}")
    arguments = parser(name, (chosen,)).parse_args(words)
    if arguments.docs:
        os.environ[ADDRESS] = arguments.docs
    try:
        return run_chosen(arguments)
    except Exception as error:
        if isinstance(error, _one_line_errors()):
            raise UsageError(str(error)) from error
        raise


def _one_line_errors() -> tuple[type[Exception], ...]:
    """Return the errors whose message is one line for the user."""
    from console.cluster.prometheus import PrometheusError  # noqa: PLC0415 - imported after an error only
    from kube.answers import AccessError, ApiError, Unreachable  # noqa: PLC0415
    from service.documents import DocumentError  # noqa: PLC0415
    from webhook.namespaces.file_policies import PoliciesError  # noqa: PLC0415

    return (AccessError, ApiError, DocumentError, PoliciesError, PrometheusError, Unreachable)


def parser(name: str = "kaishare", chosen: Collection[str] = tuple(_COMMANDS)) -> argparse.ArgumentParser:
    """Build the parser of the command line; the chosen commands get their options."""
    program = Parser(
        prog=name,
        description="Shows how a cluster shares its GPUs. Reads the cluster with the rights of your"
        " kubeconfig and changes nothing.",
    )
    program.add_argument("--version", action=_Version, nargs=0, help="print name and release, and exit")
    program.add_argument(
        "--docs",
        type=read_by(_address),
        metavar="URL",
        help=f"published documentation that findings link to (default: ${ADDRESS}, else kaishare help)",
    )
    commands = program.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for word, (module_name, text) in _COMMANDS.items():
        options = commands.add_parser(word, help=text)
        if word in chosen:
            module = import_module(module_name)
            module.add_arguments(options)
            options.set_defaults(run=module.run, program=name)
    return program


def _address(text: str) -> str:
    if text.startswith(("https://", "http://")) and text.isascii() and text.isprintable() and " " not in text:
        return text
    raise ValueError(f"{quoted(text)} is not an address; allowed: https://HOST/PATH")


class _Version(argparse.Action):
    """Prints the release, which is read from the installed package only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from service.version import version  # noqa: PLC0415

        write_output(f"{parser.prog} {version()}\n")
        parser.exit()


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `completion`."""
    command.description = "Prints a completion script of kaishare. bash: source <(kaishare completion bash)."
    command.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")


def run(arguments: argparse.Namespace) -> int:
    """Print a completion script, which shtab makes from the parsers; return 0, or raise UsageError."""
    try:
        import shtab  # noqa: PLC0415 - images do without it
    except ModuleNotFoundError as error:
        raise UsageError(f"completion needs the Python package {error.name}") from None
    program = parser()
    for action in _every_action(program):
        if isinstance(action.metavar, str) and _FILES.search(action.metavar):
            action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab's own way to mark an option
    write_output(shtab.complete(program, arguments.shell) + "\n")
    return 0


def _every_action(program: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in program._actions:  # noqa: SLF001 - argparse lists its options nowhere else
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from _every_action(command)
