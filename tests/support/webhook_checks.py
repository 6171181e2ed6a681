"""The checks of `kaishare doctor` without those of the agents."""

from unittest.mock import patch

from console.cluster.facts import FactReader
from console.doctor import command
from console.doctor.check_results import CheckResult, State, named
from console.doctor.cluster_state import DoctorOptions, read_cluster
from kube.access import Access, InCluster
from kube.client import KubeClient
from webhook.policy.labels import Mode

_CHECKS = tuple(check for check in command.CHECKS if check.name not in ("agents", "node labels"))


async def examine(access: Access, configuration: str, default_mode: Mode | None = None) -> list[CheckResult]:
    async with KubeClient(access) as client:
        reached, _ = await command.reach(client)
        (reached,) = named("API server", [reached])
        if reached.state is State.PROBLEM:
            return [reached]
        reader = FactReader(client)
        inside = isinstance(access, InCluster)
        options = DoctorOptions(name=configuration, default_mode=default_mode, is_inside=inside)
        cluster = await read_cluster(reader, options)
        with patch.object(command, "CHECKS", _CHECKS):
            return [reached, *await command.run_checks(cluster, reader)]
