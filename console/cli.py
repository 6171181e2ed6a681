"""The command `kaishare`, which is also installed as `kubectl-kaishare`.

Exit status: 0 for success, 1 for a negative result, 2 for unusable input or output and for a cluster that
cannot be read.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from console.advise import command as advise
from console.agents import add_agent_options
from console.caller import DEFAULT_KUBECONFIG, add_cluster_options, use_own_kubeconfig
from console.completion import COMMAND, write_candidates, write_completion
from console.explain.explain_options import add_explain
from console.prometheus.query_api import PrometheusError
from console.report import command as report
from console.top import command as top
from console.why import why_options as why
from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from service.command import Parser, add_namespace, read_by, run_chosen, run_command
from service.documents import DocumentError
from service.units import parse_duration
from service.version import version
from webhook.cli import add_doctor_options, add_running_default_mode
from webhook.namespaces.file_policies import PoliciesError

_PLUGIN: Final = "kubectl-kaishare"
_UNUSABLE: Final = (PoliciesError, DocumentError, AccessError, ApiError, PrometheusError, Unreachable)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    name = program_name(sys.argv[0])
    return run_command(name, lambda: _run(name, argv), unusable=_UNUSABLE)


def program_name(path: str) -> str:
    """Return the name under which the user started the program."""
    return "kubectl kaishare" if Path(path).name.startswith(_PLUGIN) else "kaishare"


def complete() -> int:
    """Run `kubectl_complete-kaishare`, which kubectl calls; return the exit status."""
    return main([COMMAND, *sys.argv[1:]])


def _run(name: str, argv: Sequence[str] | None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == [COMMAND]:
        return write_candidates(parser(name), words[1:])
    arguments = parser(name).parse_args(words)
    use_own_kubeconfig(arguments)
    return run_chosen(arguments)


def parser(name: str = "kaishare") -> argparse.ArgumentParser:
    """Build the parser of the command line.

    Args:
        name: the program's name in its messages.
    """
    program = Parser(
        prog=name,
        description="Shows how a cluster shares its GPUs. Reads the cluster with the rights of your"
        " kubeconfig and changes nothing.",
    )
    program.add_argument("--version", action="version", version=f"{name} {version()}")
    commands = program.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    add_explain(commands, default_access=DEFAULT_KUBECONFIG)
    _add(commands, "why", why, "say why a pod does not start, or what is wrong with it")
    _add_doctor(commands)
    _add_policies(commands)
    _add(commands, "top", top, "show the agents of the cluster in one interactive view")
    _add(
        commands,
        "advise",
        advise,
        "suggest the share that each size or workload should have, from what it used",
    )
    _add(commands, "report", report, "show GPU-hours by team: promised, used, idle, and saved by sharing")
    _add_completion(commands)
    return program


def _add_doctor(commands: Any) -> None:
    examining = commands.add_parser(
        "doctor",
        help="check webhook, policies, KAI and agents for problems",
        description="Checks webhook, policies, KAI and agents. Exits with 1 if there is a problem.",
    )
    add_doctor_options(examining, default_access=DEFAULT_KUBECONFIG)
    add_agent_options(examining)
    examining.add_argument(
        "--wait",
        nargs="?",
        const="5m",
        type=read_by(parse_duration),
        metavar="DURATION",
        help="repeat the checks until there is no problem, for at most this time (default without a value:"
        " 5m)",
    )
    add_namespace(
        examining, "check the policy of this namespace only, with rights in it (default: the whole cluster)"
    )
    examining.add_argument(
        "--pre",
        action="store_true",
        help="check what an installation of kaishare needs and would change, before there is one",
    )
    examining.set_defaults(run=_doctor, program=examining.prog.rpartition(" ")[0])


def _doctor(arguments: argparse.Namespace) -> int:
    from console.doctor.command import run  # noqa: PLC0415 - imports only what is needed

    return run(arguments)


def _add_policies(commands: Any) -> None:
    listing = commands.add_parser(
        "policies",
        help="list the policies of managed namespaces",
        description="Lists the policy of each managed namespace. Exits with 1 if a policy is invalid.",
    )
    add_cluster_options(listing)
    add_namespace(listing, "show this namespace only (default: all managed namespaces)")
    listing.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json", "yaml"),
        default="table",
        help="output format; wide has every value, one below the other (default %(default)s)",
    )
    add_running_default_mode(listing)
    listing.set_defaults(run=_policies)


def _policies(arguments: argparse.Namespace) -> int:
    from console.policies import run  # noqa: PLC0415 - imports only what is needed

    return run(arguments)


def _add(commands: Any, name: str, module: Any, description: str) -> None:
    """Add a command whose module has `add_arguments` and `run`."""
    command = commands.add_parser(name, help=description)
    module.add_arguments(command)
    command.set_defaults(run=module.run, program=command.prog.rpartition(" ")[0])


def _add_completion(commands: Any) -> None:
    completing = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description="Prints a completion script of kaishare. bash: source <(kaishare completion bash)."
        " kubectl completes `kubectl kaishare` itself, with the program kubectl_complete-kaishare.",
    )
    completing.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")
    completing.set_defaults(run=_completion)


def _completion(arguments: argparse.Namespace) -> int:
    return write_completion(parser(), arguments.shell)


if __name__ == "__main__":
    sys.exit(main())
