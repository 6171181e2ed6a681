"""Opening a source of policies, with what it has to say going to log and metrics."""

from collections.abc import Mapping
from pathlib import Path

from kube.client import KubeClient
from service.log import ERROR, JsonLog
from webhook.metrics import Metrics
from webhook.policies.cluster import ClusterPolicies, Managed
from webhook.policies.files import FilePolicies
from webhook.policies.problems import ProblemLog
from webhook.policies.reading import PoliciesError
from webhook.policies.source import PolicySource
from webhook.policy import NamespacePolicy


async def open_files(path: Path, *, metrics: Metrics, log: JsonLog) -> PolicySource:
    """Read policies from a file or directory.

    Raises:
        PoliciesError: they cannot be read.
    """
    problems = ProblemLog(log)

    async def changed(policies: Mapping[str, NamespacePolicy]) -> None:
        log("policies changed", namespaces=len(policies))
        await problems.report(policies)

    def broken(error: PoliciesError) -> None:
        metrics.failed("policies")
        log("policies not taken up, the last good ones stay", ERROR, problem=str(error))

    policies = FilePolicies(path, on_change=changed, on_broken=broken)
    metrics.show_policies(policies.all)
    await problems.report(policies.all())
    return policies


def open_cluster(client: KubeClient, *, metrics: Metrics, log: JsonLog) -> PolicySource:
    """Follow the namespaces of a cluster, once it runs."""
    problems = ProblemLog(log)

    async def changed(managed: Managed) -> None:
        await problems.report({name: found.policy for name, found in managed.items()})

    policies = ClusterPolicies(
        client=client, log=log, on_change=changed, on_error=lambda: metrics.failed("policies")
    )
    metrics.show_policies(policies.all)
    metrics.show_watch(policies.watch)
    return policies
