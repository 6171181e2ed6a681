"""The checks of `kaishare doctor` without those of the agents."""

from console.doctor.api_reader import ApiReader
from console.doctor.check_results import CheckResult, State
from console.doctor.cluster_checks import webhook_findings
from console.doctor.cluster_state import read_cluster
from console.doctor.shared_checks import reach
from kube.access import Access, InCluster
from kube.client import KubeClient
from webhook.policy.labels import Mode


async def examine(access: Access, configuration: str, default_mode: Mode | None = None) -> list[CheckResult]:
    async with KubeClient(access) as client:
        reached, _ = await reach(client, without="nothing else was checked")
        if reached.state is State.PROBLEM:
            return [reached]
        reader = ApiReader(client)
        cluster = await read_cluster(reader, configuration, default_mode)
        findings = await webhook_findings(reader, cluster, is_inside=isinstance(access, InCluster))
        return [reached, *findings, *reader.missing]
