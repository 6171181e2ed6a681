"""The checks of `kaishare doctor --pre`: what an installation of kaishare needs, and what it would change.

The checks of KAI, queues and nodes are those of an installed kaishare.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from console.doctor.api_reader import ApiReader
from console.doctor.check_results import CheckResult, State, ok, problem, unknown, warning
from console.doctor.cluster_state import Cluster
from console.doctor.gpu_nodes import node_findings
from console.doctor.kai_checks import kai_findings, runtime_class_findings, runtime_classes
from console.doctor.queue_checks import queue_findings, usable_queue_findings
from console.doctor.shared_checks import API_SERVER
from kai import keys
from kai.installation import RUNTIME_CLASS
from kube.answers import REQUEST_ERRORS
from kube.client import KubeClient
from kube.tokens import review_right
from service.text import counted, listed, one_line
from webhook.policy.labels import Mode

OLDEST_KUBERNETES: Final = (1, 30)
"""The oldest release that the chart accepts: ValidatingAdmissionPolicy and matchConditions are v1 there."""

_ADMISSION: Final = "admissionregistration.k8s.io"
_CONFIGURATIONS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_RIGHTS: Final = "rights"
_MANAGED: Final = "managed namespaces"


async def installation_findings(reader: ApiReader, cluster: Cluster) -> list[CheckResult]:
    """Run the checks that need no kaishare in the cluster."""
    findings = []
    if cluster.our_mutating is not None:
        what = f"{one_line(cluster.our_mutating.name)} exists: run doctor without --pre"
        findings.append(ok("mutating webhook", what))
    return [
        *findings,
        *kai_findings(cluster),
        *await _runtime_classes(reader, cluster),
        *queue_findings(cluster),
        *usable_queue_findings(cluster.queues),
        *node_findings(cluster.nodes, None),
        *managed_findings(cluster),
    ]


def release_finding(release: tuple[int, int] | None) -> CheckResult:
    """Check the API server's release; None if it is not known."""
    if release is None:
        return unknown(API_SERVER, "its release is not known")
    title = f"Kubernetes {release[0]}.{release[1]}"
    if release >= OLDEST_KUBERNETES:
        return ok(API_SERVER, title)
    oldest = f"{OLDEST_KUBERNETES[0]}.{OLDEST_KUBERNETES[1]}"
    return problem(API_SERVER, f"{title}: kaishare needs {oldest} or later", "upgrade the cluster")


async def right_finding(client: KubeClient) -> CheckResult:
    """Check the right to install."""
    missing = []
    for resource in _CONFIGURATIONS:
        try:
            status = await review_right(client, verb="create", resource=resource, group=_ADMISSION)
        except REQUEST_ERRORS as error:
            return unknown(_RIGHTS, f"the right to create {resource} is not known: {one_line(str(error))}")
        if not status.allowed:
            missing.append(f"{resource}.{_ADMISSION}")
    if missing:
        return problem(
            _RIGHTS, f"the caller may not create {listed(missing)}", "install with an administrator's rights"
        )
    return ok(_RIGHTS, "the caller may create webhook configurations")


async def _runtime_classes(reader: ApiReader, cluster: Cluster) -> list[CheckResult]:
    """Return findings about the RuntimeClasses that KAI sets; without KAI, about the one of its defaults."""
    installed = cluster.installation
    if installed is not None and installed.programs:
        return await runtime_class_findings(reader, runtime_classes(installed))
    findings = await runtime_class_findings(reader, {RUNTIME_CLASS: "pods with a share by default"})
    return [
        replace(finding, state=State.WARNING) if finding.state is State.PROBLEM else finding
        for finding in findings
    ]


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
