"""The options of the command `why`. Without the modules that read a cluster, which take long to import."""

import argparse
from typing import Final

from console.agents import add_agent_options
from console.caller import add_cluster_options
from service.command import add_namespace, namespace_name, read_by
from service.names import is_dns_subdomain
from service.text import quoted
from webhook.settings.decision_options import NAMESPACE

_POD: Final = "Pod"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `why`."""
    command.description = (
        "Says why a pod does not start, or what is wrong with it, and what to do. Exits with 1 if"
        " the pod does not run or is flagged, and with 2 if there is no such pod."
    )
    command.add_argument(
        "target",
        type=read_by(parse_target),
        metavar="POD",
        help="the pod, or KIND/NAME of a workload, such as deploy/web: its newest pod that waits, else its"
        " newest",
    )
    add_cluster_options(command)
    add_namespace(command, "namespace of the pod (default: the namespace of the context)")
    command.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format (default %(default)s)"
    )
    add_agent_options(command)
    command.add_argument(
        "--settings-namespace",
        type=read_by(namespace_name),
        default=NAMESPACE,
        metavar="NAMESPACE",
        help="namespace of the webhook with its settings (default %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status, and raise as `command.run`."""
    from console.why import command  # noqa: PLC0415 - imports only what is needed

    return command.run(arguments)


def parse_target(text: str) -> tuple[str, str]:
    """Read `POD` or `KIND/NAME`; return the kind and the name.

    Raises:
        ValueError: no object can have the name; the message is one line.
    """
    kind, slash, name = text.rpartition("/")
    if slash and not is_dns_subdomain(kind.lower()):
        raise ValueError(f"{quoted(kind)} is not the name of a kind; examples: deploy, job, pytorchjob")
    if not is_dns_subdomain(name):
        raise ValueError(f"{quoted(name)} is not the name of an object; give POD or KIND/NAME")
    return kind or _POD, name
