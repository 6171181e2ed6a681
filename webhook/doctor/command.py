"""The command `doctor`: reads the cluster with the caller's rights, runs all checks, prints the findings."""

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct

from kube.access import Access, AccessError, InCluster, find_access
from kube.check import reach
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.check_results import CheckResult, State, write_report
from service.command import UsageError
from service.log import JsonLog
from service.log_capture import capture_libraries
from service.text import MALFORMED
from webhook.doctor.accounting.reader import accounting_findings
from webhook.doctor.api_reader import ApiReader, Completeness, ListSpec
from webhook.doctor.cluster import Cluster, read_cluster
from webhook.doctor.dry_run import dry_run_findings
from webhook.doctor.guard import guard_findings
from webhook.doctor.kai import kai_findings, runtime_class_finding, runtime_classes
from webhook.doctor.limit_ranges import limit_range_findings
from webhook.doctor.namespaces import namespace_findings
from webhook.doctor.owners import owner_findings
from webhook.doctor.queues import queue_findings
from webhook.doctor.registration import registration_findings
from webhook.doctor.serving import serving_findings
from webhook.doctor.workloads import WORKLOAD_KINDS, workload_findings
from webhook.registration.configurations import CONFIGURATION_NAME

_RUNTIME_CLASSES: Final = ListSpec(
    resource="runtimeclasses",
    verb="get",
    group="node.k8s.io",
    path="/apis/node.k8s.io/v1/runtimeclasses",
    without="the RuntimeClass of pods with a share was not checked",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings:
    """The settings of `doctor`."""

    kubeconfig: str | None = None
    context: str | None = None
    configuration: str = CONFIGURATION_NAME
    output: str = "text"
    """`text` or `json`."""


def run(settings: DoctorSettings) -> int:
    """Run all checks and print the findings; return 1 if there is a problem, else 0.

    Raises:
        UsageError: no access to a cluster is configured.
    """
    capture_libraries(JsonLog(io.BytesIO()))  # the checks report the errors that libraries would log
    server, findings = asyncio.run(_examine(settings))
    about = {"server": server, "configuration": settings.configuration}
    return write_report(findings, output=settings.output, about=about)


async def _examine(settings: DoctorSettings) -> tuple[str, list[CheckResult]]:
    try:
        access = await find_access(settings.kubeconfig, settings.context)
    except AccessError as error:
        raise UsageError(f"no cluster: {error}") from None
    return access.server, [finding async for finding in examine(access, settings.configuration)]


async def examine(access: Access, configuration: str) -> AsyncIterator[CheckResult]:
    """Run all checks; a failed request affects only the checks that need it."""
    async with KubeClient(access) as client:
        reached = await reach(client, without="nothing else was checked")
        yield reached
        if reached.state is State.PROBLEM:
            return
        reader = ApiReader(client)
        cluster = await read_cluster(reader, configuration)
        async for finding in _findings(reader, cluster, is_inside=isinstance(access, InCluster)):
            yield finding
        for finding in reader.missing:
            yield finding


async def _findings(reader: ApiReader, cluster: Cluster, *, is_inside: bool) -> AsyncIterator[CheckResult]:
    for finding in registration_findings(cluster):
        yield finding
    hooks = [
        hook
        for configuration in (cluster.our_mutating, cluster.our_validating)
        if configuration
        for hook in configuration.hooks
    ]
    async for finding in serving_findings(reader, hooks, is_inside=is_inside, now=datetime.now(UTC)):
        yield finding
    for finding in namespace_findings(cluster):
        yield finding
    async for finding in guard_findings(reader, cluster):
        yield finding
    async for finding in dry_run_findings(reader.client, cluster):
        yield finding
    for finding in kai_findings(cluster):
        yield finding
    for name, users in (runtime_classes(cluster.installation) if cluster.installation else {}).items():
        exists = await reader.get(_RUNTIME_CLASSES, name, lambda _document: True)
        yield runtime_class_finding(name, users, exists or False)
    served = await _queue_versions(reader.client) if cluster.queues.extent is Completeness.UNSERVED else ""
    for finding in queue_findings(cluster, served):
        yield finding
    async for finding in accounting_findings(reader, cluster):
        yield finding
    async for finding in workload_findings(reader, cluster):
        yield finding
    async for finding in owner_findings(reader, cluster, WORKLOAD_KINDS):
        yield finding
    async for finding in limit_range_findings(reader, cluster):
        yield finding


class _Version(Struct):
    version: str


class _Group(Struct):
    versions: list[_Version]


async def _queue_versions(client: KubeClient) -> str:
    """Return the served versions of KAI's API, separated by commas; empty for none."""
    try:
        group = msgspec.json.decode(await client.get("/apis/scheduling.run.ai"), type=_Group)
        return ", ".join(sorted(version.version for version in group.versions))
    except (ApiError, Unreachable, AccessError, *MALFORMED):
        return ""
