"""The rights that an agent reviews at its start, against a real API server with RBAC."""

import asyncio

import pytest

from gpuagent.own_pod import OwnRights
from kube.client import KubeClient
from tests.support.administrator import Administrator, right
from tests.support.control_plane import ControlPlane
from tests.support.waiting import until

PODS = right("pods", "list", "watch")
EVENTS = right("events", "create", "patch")


@pytest.mark.parametrize(
    ("rules", "writes_events", "evicts", "missing"),
    [
        ((PODS, EVENTS), True, False, ""),
        ((PODS,), False, False, ""),
        ((PODS,), True, False, "create events, patch events"),
        ((EVENTS,), True, False, "list pods, watch pods"),
        ((PODS, EVENTS), True, True, "create pods/eviction, get pods, list events in {}"),
        ((), False, False, "list pods, watch pods"),
    ],
)
async def test_each_right_that_is_missing_is_told_until_it_is_granted(
    plane: ControlPlane,
    admin: Administrator,
    rules: tuple[dict[str, list[str]], ...],
    writes_events: bool,
    evicts: bool,
    missing: str,
) -> None:
    async with KubeClient(plane.access(await admin.token("own-rights", *rules))) as client:
        rights = OwnRights(client, writes_events=writes_events, evicts=evicts, first_pause=0.1)
        reviewing = asyncio.create_task(rights.run())
        try:
            await until(lambda: reviewing.done() if not missing else rights.problems)
            rights_missing = missing.format(client.namespace)
            details = (
                [f"no right to {rights_missing}: apply the chart's roles kaishare-agent"]
                if rights_missing
                else []
            )
            assert [problem.detail for problem in rights.problems] == details
            if missing:
                await grant_the_rest(admin)
                await until(reviewing.done)
                assert rights.problems == ()
        finally:
            reviewing.cancel()


async def grant_the_rest(admin: Administrator) -> None:
    """Bind the account to another role, as an administrator does who follows the text."""
    group = "rbac.authorization.k8s.io"
    rules = [
        right("pods", "list", "watch", "get"),
        right("pods/eviction", "create"),
        right("events", "create", "patch", "list"),
    ]
    role = {"apiVersion": f"{group}/v1", "metadata": {"name": "own-rights-rest"}}
    await admin.create({**role, "kind": "ClusterRole", "rules": rules})
    await admin.create(
        {
            **role,
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "own-rights-rest"},
            "subjects": [{"kind": "ServiceAccount", "name": "own-rights", "namespace": "team-a"}],
        }
    )
