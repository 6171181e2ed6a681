"""The checks of `kaishare doctor --pre`: what an installation of kaishare needs, and what it would change.

The checks of KAI, queues and nodes are those of an installed kaishare.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Final

from console.doctor.nodes import node_findings, read_gpu_nodes
from kai import keys
from kai.installation import RUNTIME_CLASS
from kube.access import Access, AccessError
from kube.check import API_SERVER, kubernetes_release, reach
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from kube.rights import review_right
from service.check_results import CheckResult, State, ok, problem, unknown, warning
from service.text import counted, listed, one_line
from webhook.doctor.api_reader import ApiReader, Completeness
from webhook.doctor.cluster import Cluster, read_cluster
from webhook.doctor.kai import kai_findings, runtime_classes
from webhook.doctor.kai_reader import runtime_class_findings, served_queue_versions
from webhook.doctor.queues import queue_findings, usable_queue_findings
from webhook.policy.labels import Mode

OLDEST_KUBERNETES: Final = (1, 30)
"""The oldest release that the chart accepts: ValidatingAdmissionPolicy and matchConditions are v1 there."""

_ADMISSION: Final = "admissionregistration.k8s.io"
_CONFIGURATIONS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_RIGHTS: Final = "rights"
_MANAGED: Final = "managed namespaces"


async def examine_before(
    access: Access, configuration: str, default_mode: Mode | None
) -> AsyncIterator[CheckResult]:
    """Run the checks that need no kaishare in the cluster.

    Args:
        access: the API server and the caller's credentials.
        configuration: name of kaishare's webhook configurations.
        default_mode: the mode of namespaces that name none.
    """
    async with KubeClient(access) as client:
        reached = await reach(client, without="nothing else was checked")
        yield reached
        if reached.state is State.PROBLEM:
            return
        yield await _release(client)
        yield await _rights(client)
        reader = ApiReader(client)
        cluster = await read_cluster(reader, configuration, default_mode)
        async for finding in _findings(reader, cluster):
            yield finding
        for finding in reader.missing:
            yield finding


async def _findings(reader: ApiReader, cluster: Cluster) -> AsyncIterator[CheckResult]:
    if cluster.our_mutating is not None:
        yield ok(
            "mutating webhook", f"{one_line(cluster.our_mutating.name)} exists: run doctor without --pre"
        )
    for finding in kai_findings(cluster):
        yield finding
    async for finding in _runtime_classes(reader, cluster):
        yield finding
    unserved = cluster.queues.extent is Completeness.UNSERVED
    served = await served_queue_versions(reader.client) if unserved else ""
    for finding in (*queue_findings(cluster, served), *usable_queue_findings(cluster.queues)):
        yield finding
    for finding in (*node_findings(await read_gpu_nodes(reader), None), *managed_findings(cluster)):
        yield finding


async def _release(client: KubeClient) -> CheckResult:
    try:
        release = await kubernetes_release(client)
    except (ApiError, Unreachable, AccessError) as error:
        return unknown(API_SERVER, f"its release is not known: {one_line(str(error))}")
    if release is None:
        return unknown(API_SERVER, "its release is not known")
    title = f"Kubernetes {release[0]}.{release[1]}"
    if release >= OLDEST_KUBERNETES:
        return ok(API_SERVER, title)
    oldest = f"{OLDEST_KUBERNETES[0]}.{OLDEST_KUBERNETES[1]}"
    return problem(API_SERVER, f"{title}: kaishare needs {oldest} or later", "upgrade the cluster")


async def _rights(client: KubeClient) -> CheckResult:
    missing = []
    for resource in _CONFIGURATIONS:
        try:
            status = await review_right(client, verb="create", resource=resource, group=_ADMISSION)
        except (ApiError, Unreachable, AccessError) as error:
            return unknown(_RIGHTS, f"the right to create {resource} is not known: {one_line(str(error))}")
        if not status.allowed:
            missing.append(f"{resource}.{_ADMISSION}")
    if missing:
        return problem(
            _RIGHTS, f"the caller may not create {listed(missing)}", "install with an administrator's rights"
        )
    return ok(_RIGHTS, "the caller may create webhook configurations")


async def _runtime_classes(reader: ApiReader, cluster: Cluster) -> AsyncIterator[CheckResult]:
    """Yield findings about the RuntimeClasses that KAI sets; without KAI, about the one of its defaults."""
    installed = cluster.installation
    if installed is not None and installed.programs:
        async for finding in runtime_class_findings(reader, runtime_classes(installed)):
            yield finding
        return
    async for finding in runtime_class_findings(reader, {RUNTIME_CLASS: "pods with a share by default"}):
        yield replace(finding, state=State.WARNING) if finding.state is State.PROBLEM else finding


def managed_findings(cluster: Cluster) -> Iterator[CheckResult]:
    """Yield findings about the namespaces that an installation would manage at once. Pure."""
    if not cluster.namespaces.is_known:
        return
    managed = {
        namespace.name: namespace
        for namespace in cluster.namespaces.items
        if namespace.policy and namespace.name not in cluster.excluded
    }
    taken = [name for name, namespace in managed.items() if not namespace.has_own_labels]
    if not managed:
        yield ok(_MANAGED, f"no namespace has the label {keys.QUEUE_LABEL}, so no pod changes at first")
        return
    ours = managed.keys() - set(taken)
    if ours:
        yield ok(_MANAGED, f"{counted(len(ours), 'namespace')} with labels of kaishare: {listed(ours)}")
    if taken:
        count = counted(len(taken), "namespace")
        title = f"{count} with {keys.QUEUE_LABEL} and no label of kaishare: {listed(taken)}"
        if cluster.default_mode is not Mode.DEFAULT:
            yield ok(_MANAGED, f"{title}; their mode would be {cluster.default_mode}")
            return
        yield warning(
            _MANAGED,
            f"{title}; the webhook would change their new pods",
            "install with webhook.defaultMode=observe: docs/start/cluster-in-use.md",
        )
