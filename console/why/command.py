"""The command `why`: reads the objects about one pod with the caller's rights, and prints its story."""

import asyncio
import io
import sys
from dataclasses import dataclass

from console.agent_options import AgentOptions
from console.cluster import ClusterOptions
from console.why.core import explain
from console.why.evidence import Absence, PodEvidence
from console.why.reading.reader import read_evidence
from console.why.reading.target import Target
from console.why.telling.text import as_json, as_text
from kube.client import KubeClient
from service.command import UNUSABLE, UsageError, columns_of, output_has_colour, write_document, write_output
from service.log import JsonLog
from service.log_capture import capture_libraries


@dataclass(frozen=True, slots=True, kw_only=True)
class WhySettings:
    """The settings of `why`."""

    program: str
    """Name of the running command, for messages."""
    cluster: ClusterOptions
    namespace: str | None
    """The namespace of the pod; None for the context's."""
    kind: str
    """The kind as it was typed."""
    name: str
    """Name of the pod or workload."""
    agents: AgentOptions
    settings_namespace: str
    """The namespace of the ConfigMap with the settings of the cluster's webhook."""
    output: str
    """`text` or `json`."""


def run(settings: WhySettings) -> int:
    """Print the answer; return 0 if nothing is wrong, 1 if something is, 2 if there is no such object.

    Events may explain why a pod does not exist any more; then they are the answer.

    Raises:
        UsageError: the pod, workload or namespace cannot be read, or does not exist and has left no trace;
            or standard output cannot be written.
        AccessError: the kubeconfig cannot be read, or its login fails.
    """
    capture_libraries(JsonLog(io.BytesIO()))  # errors are raised as well
    evidence = asyncio.run(_read(settings))
    is_missing = _is_missing(evidence)
    if is_missing and not _has_traces(evidence):
        place = f"in namespace {evidence.namespace}"
        raise UsageError(f"{evidence.kind} {evidence.name} does not exist {place}, and no Event tells of it")
    answer = explain(evidence)
    if settings.output == "json":
        write_document(as_json(answer))
    else:
        columns, colour = columns_of(sys.stdout), output_has_colour()
        lines = as_text(answer, columns=columns, colour=colour, program=settings.program)
        write_output("".join(f"{line}\n" for line in lines))
    if is_missing:
        return UNUSABLE
    return 0 if answer.is_fine else 1


async def _read(settings: WhySettings) -> PodEvidence:
    async with KubeClient(await settings.cluster.access()) as client:
        namespace = settings.namespace or client.namespace
        target = Target(namespace=namespace, kind=settings.kind, name=settings.name)
        return await read_evidence(
            client, target, agents=settings.agents, settings_namespace=settings.settings_namespace
        )


def _is_missing(evidence: PodEvidence) -> bool:
    """Whether the named pod or workload does not exist. A workload without pods does."""
    named = evidence.pod if evidence.kind == "Pod" else evidence.workload
    return named is Absence.MISSING


def _has_traces(evidence: PodEvidence) -> bool:
    return bool(evidence.pod_events or evidence.group_events or evidence.creation_events)
