"""The command `why`: reads the objects about one pod with the caller's rights, and prints its story."""

import argparse
import asyncio
import sys

from console.caller import add_cluster_options, add_output, add_settings_namespace, cluster_access
from console.cluster.agents import add_agent_options, parse_agent_options
from console.why.core import explain
from console.why.evidence import PodEvidence
from console.why.explanation import as_json, as_text
from console.why.reader import read_evidence
from console.why.target import parse_target
from kube.client import KubeClient
from service.command import (
    UNUSABLE,
    UsageError,
    add_namespace,
    columns_of,
    read_by,
    write_document,
    write_lines,
)
from service.log_writer import discard_library_logs


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
    add_output(command, "text", "json")
    add_agent_options(command)
    add_settings_namespace(command)


def run(arguments: argparse.Namespace) -> int:
    """Print the answer; return 0 if nothing is wrong, 1 if something is, 2 if there is no such object.

    Raises UsageError if the pod, workload or namespace cannot be read, or does not exist and has left no
    Event; AccessError if the kubeconfig cannot be read, or its login fails.
    """
    discard_library_logs()
    evidence = asyncio.run(_read(arguments))
    # A workload without pods exists.
    is_missing = (evidence.pod if evidence.kind == "Pod" else evidence.workload).is_missing
    events = (evidence.pod_events, evidence.group_events, evidence.creation_events)
    if is_missing and not any(listing.value for listing in events):
        place = f"in namespace {evidence.namespace}"
        untold = "no Event tells of it" if evidence.are_events_read else "not all Events could be read"
        raise UsageError(f"{evidence.kind} {evidence.name} does not exist {place}, and {untold}")
    answer = explain(evidence)
    if arguments.output == "json":
        write_document(as_json(answer))
    else:
        write_lines(as_text(answer, columns=columns_of(sys.stdout), program=arguments.program))
    return UNUSABLE if is_missing else int(not answer.is_fine)


async def _read(arguments: argparse.Namespace) -> PodEvidence:
    kinds, name = arguments.target
    async with KubeClient(await cluster_access(arguments)) as client:
        namespace, agents = arguments.namespace or client.namespace, parse_agent_options(arguments)
        settings = arguments.settings_namespace
        return await read_evidence(client, namespace, kinds, name, agents=agents, settings_namespace=settings)
