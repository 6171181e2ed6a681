"""The checks of `kaishare doctor` without those of the agents."""

from unittest.mock import patch

from console.doctor import command
from console.doctor.check_results import CheckResult
from console.doctor.cluster_state import DoctorOptions
from kube.access import Access, InCluster
from webhook.policy.labels import Mode

_CHECKS = tuple(check for check in command.CHECKS if check.name not in ("agents", "node labels"))


async def examine(access: Access, configuration: str, default_mode: Mode | None = None) -> list[CheckResult]:
    inside = isinstance(access, InCluster)
    options = DoctorOptions(name=configuration, default_mode=default_mode, is_inside=inside)
    with patch.object(command, "CHECKS", _CHECKS):
        return await command.examine(access, options)
