"""The checks of the webhook, its policies and KAI."""

from datetime import UTC, datetime

from console.doctor.accounting import accounting_findings
from console.doctor.api_reader import ApiReader
from console.doctor.check_results import CheckResult
from console.doctor.cluster_state import Cluster
from console.doctor.dry_run import dry_run_findings
from console.doctor.guard_checks import guard_findings
from console.doctor.kai_checks import kai_findings, runtime_class_findings, runtime_classes
from console.doctor.missed_pods import missed_pod_findings
from console.doctor.namespace_checks import limit_range_findings, namespace_findings
from console.doctor.queue_checks import group_queue_findings, queue_findings
from console.doctor.registration_checks import registration_findings
from console.doctor.serving import serving_findings
from console.doctor.vclusters import host_findings, inner_kai_findings, read_hosts
from console.doctor.webhook_deployment import settings_findings, webhook_pod_findings


async def webhook_findings(reader: ApiReader, cluster: Cluster, *, is_inside: bool) -> list[CheckResult]:
    """Run the checks of the webhook, its policies and KAI.

    Args:
        reader: for the API server; records what could not be read.
        cluster: the state of the cluster.
        is_inside: whether doctor runs in the cluster, where pod addresses lead to the pods.
    """
    findings = list(registration_findings(cluster))
    if not cluster.is_absent:
        hooks = [
            hook
            for configuration in (cluster.our_mutating, cluster.our_validating)
            if configuration
            for hook in configuration.hooks
        ]
        findings += webhook_pod_findings(cluster.webhook_pods)
        findings += await serving_findings(reader, hooks, is_inside=is_inside, now=datetime.now(UTC))
    hosts = await read_hosts(reader, cluster)
    return [
        *findings,
        *await policy_findings(reader, cluster),
        *host_findings(cluster, hosts),
        *await inner_kai_findings(reader, cluster, hosts),
        *await guard_findings(reader, cluster, hosts),
        *kai_findings(cluster),
        *await missed_pod_findings(reader, cluster),
        *await runtime_class_findings(reader, runtime_classes(cluster.installation)),
        *await accounting_findings(reader, cluster),
    ]


async def policy_findings(reader: ApiReader, cluster: Cluster) -> list[CheckResult]:
    """Run the checks of the policies and of the PodGroups in their namespaces."""
    is_absent = cluster.is_absent
    return [
        *(() if is_absent else settings_findings(cluster.running)),
        *namespace_findings(cluster),
        *(() if is_absent and cluster.policies is None else await dry_run_findings(reader.client, cluster)),
        *queue_findings(cluster),
        *group_queue_findings(cluster),
        *await limit_range_findings(reader, cluster),
    ]
