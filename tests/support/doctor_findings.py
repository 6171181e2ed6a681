"""The findings of `kaishare doctor` about a control plane."""

from functools import partial
from unittest.mock import patch

from console.cli import parser
from console.cluster.agents import Agents
from console.doctor import command, node_checks
from console.doctor.check_results import CheckResult
from tests.support.control_plane import ControlPlane

_SECONDS = 1.0
"""Time limit of one request to an agent; some agents of the tests never answer."""


async def doctor(plane: ControlPlane, *options: str, token: str | None = None) -> list[CheckResult]:
    """Run the checks, as an administrator without a token."""
    arguments = parser().parse_args(["doctor", *options])
    access = plane.access(token) if token else plane.access()
    with patch.object(node_checks, "Agents", partial(Agents, seconds=_SECONDS)):
        return await command.examine(access, arguments)
