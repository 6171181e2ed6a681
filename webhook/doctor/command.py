"""The command `doctor`: reads the cluster with the caller's rights, runs all checks, prints the findings."""

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

from kube.access import Access, AccessError, InCluster, find_access
from kube.check import reach
from kube.client import KubeClient
from service.check_results import CheckResult, State, write_report
from service.command import UsageError
from service.log import JsonLog
from service.log_capture import capture_libraries
from webhook.doctor.accounting.reader import accounting_findings
from webhook.doctor.api_reader import ApiReader, Completeness
from webhook.doctor.cluster import Cluster, read_cluster
from webhook.doctor.dry_run import dry_run_findings
from webhook.doctor.guard.check import guard_findings
from webhook.doctor.kai import kai_findings, runtime_classes
from webhook.doctor.kai_reader import runtime_class_findings, served_queue_versions
from webhook.doctor.limit_ranges import limit_range_findings
from webhook.doctor.namespaces import namespace_findings
from webhook.doctor.owners import owner_findings
from webhook.doctor.queues import queue_findings
from webhook.doctor.registration import registration_findings
from webhook.doctor.serving import serving_findings
from webhook.doctor.settings import settings_findings
from webhook.doctor.webhook_pods import webhook_pod_findings
from webhook.doctor.workloads import WORKLOAD_KINDS, workload_findings
from webhook.policy.labels import Mode
from webhook.registration.configurations import CONFIGURATION_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings:
    """The settings of `doctor`."""

    kubeconfig: str | None = None
    context: str | None = None
    configuration: str = CONFIGURATION_NAME
    output: str = "text"
    """`text` or `json`."""
    default_mode: Mode | None = None
    """The webhook's --default-mode; None reads it from the cluster."""


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
    examined = examine(access, settings.configuration, settings.default_mode)
    return access.server, [finding async for finding in examined]


async def examine(
    access: Access, configuration: str, default_mode: Mode | None = None
) -> AsyncIterator[CheckResult]:
    """Run all checks; a failed request affects only the checks that need it.

    Args:
        access: the API server and the caller's credentials.
        configuration: name of kaishare's webhook configurations.
        default_mode: the webhook's --default-mode; None reads it from the cluster.
    """
    async with KubeClient(access) as client:
        reached = await reach(client, without="nothing else was checked")
        yield reached
        if reached.state is State.PROBLEM:
            return
        reader = ApiReader(client)
        cluster = await read_cluster(reader, configuration, default_mode)
        async for finding in webhook_findings(reader, cluster, is_inside=isinstance(access, InCluster)):
            yield finding
        for finding in reader.missing:
            yield finding


async def webhook_findings(
    reader: ApiReader, cluster: Cluster, *, is_inside: bool
) -> AsyncIterator[CheckResult]:
    """Run the checks of the webhook, its policies and KAI.

    Args:
        reader: for the API server; records what could not be read.
        cluster: the state of the cluster.
        is_inside: whether doctor runs in the cluster, where pod addresses lead to the pods.
    """
    for finding in registration_findings(cluster):
        yield finding
    if not cluster.is_absent:
        hooks = [
            hook
            for configuration in (cluster.our_mutating, cluster.our_validating)
            if configuration
            for hook in configuration.hooks
        ]
        for finding in webhook_pod_findings(cluster.webhook_pods):
            yield finding
        async for finding in serving_findings(reader, hooks, is_inside=is_inside, now=datetime.now(UTC)):
            yield finding
    async for finding in policy_findings(reader, cluster):
        yield finding
    async for finding in guard_findings(reader, cluster):
        yield finding
    for finding in kai_findings(cluster):
        yield finding
    classes = runtime_classes(cluster.installation) if cluster.installation else {}
    async for finding in runtime_class_findings(reader, classes):
        yield finding
    async for finding in accounting_findings(reader, cluster):
        yield finding


async def policy_findings(reader: ApiReader, cluster: Cluster) -> AsyncIterator[CheckResult]:
    """Run the checks of the policies and of the workloads in their namespaces."""
    if not cluster.is_absent:
        for finding in settings_findings(cluster.running):
            yield finding
    for finding in namespace_findings(cluster):
        yield finding
    if not cluster.is_absent:
        async for finding in dry_run_findings(reader.client, cluster):
            yield finding
    for finding in queue_findings(cluster, await _served(reader, cluster)):
        yield finding
    async for finding in workload_findings(reader, cluster):
        yield finding
    async for finding in owner_findings(reader, cluster, WORKLOAD_KINDS):
        yield finding
    async for finding in limit_range_findings(reader, cluster):
        yield finding


async def _served(reader: ApiReader, cluster: Cluster) -> str:
    """Return the served versions of KAI's API if queues of v2 are not served; empty for none."""
    unserved = cluster.queues.extent is Completeness.UNSERVED
    return await served_queue_versions(reader.client) if unserved else ""
