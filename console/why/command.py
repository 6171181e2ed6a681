"""The command `why`: reads the objects about one pod with the caller's rights, and prints its story."""

import argparse
import asyncio
import sys

from console.agents import parse_agent_options
from console.caller import cluster_access
from console.why.core import explain
from console.why.evidence import Absence, PodEvidence
from console.why.reading.evidence_reader import read_evidence
from console.why.reading.target import Target
from console.why.text import as_json, as_text
from kube.client import KubeClient
from service.command import UNUSABLE, UsageError, columns_of, output_has_colour, write_document, write_lines
from service.log_writer import discard_library_logs


def run(arguments: argparse.Namespace) -> int:
    """Print the answer; return 0 if nothing is wrong, 1 if something is, 2 if there is no such object.

    Events may explain why a pod does not exist any more; then they are the answer.

    Raises:
        UsageError: the pod, workload or namespace cannot be read, or does not exist and has left no trace;
            or standard output cannot be written.
        AccessError: the kubeconfig cannot be read, or its login fails.
    """
    discard_library_logs()
    evidence = asyncio.run(_read(arguments))
    is_missing = _is_missing(evidence)
    if is_missing and not _has_traces(evidence):
        place = f"in namespace {evidence.namespace}"
        events = "no Event tells of it" if evidence.are_events_read else "not all Events could be read"
        raise UsageError(f"{evidence.kind} {evidence.name} does not exist {place}, and {events}")
    answer = explain(evidence)
    if arguments.output == "json":
        write_document(as_json(answer))
    else:
        columns, colour = columns_of(sys.stdout), output_has_colour()
        write_lines(as_text(answer, columns=columns, colour=colour, program=arguments.program))
    if is_missing:
        return UNUSABLE
    return 0 if answer.is_fine else 1


async def _read(arguments: argparse.Namespace) -> PodEvidence:
    kind, name = arguments.target
    async with KubeClient(await cluster_access(arguments)) as client:
        target = Target(namespace=arguments.namespace or client.namespace, kind=kind, name=name)
        agents, namespace = parse_agent_options(arguments), arguments.settings_namespace
        return await read_evidence(client, target, agents=agents, settings_namespace=namespace)


def _is_missing(evidence: PodEvidence) -> bool:
    """Whether the named pod or workload does not exist. A workload without pods does."""
    named = evidence.pod if evidence.kind == "Pod" else evidence.workload
    return named is Absence.MISSING


def _has_traces(evidence: PodEvidence) -> bool:
    return bool(evidence.pod_events or evidence.group_events or evidence.creation_events)
