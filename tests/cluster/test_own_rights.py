"""The rights that an agent reviews at its start, against a real API server with RBAC."""

import asyncio
from typing import Any

import pytest

from gpuagent.own_pod import EVENT_RIGHTS, EVICTION_RIGHTS, POD_RIGHTS, OwnRights
from kube.client import KubeClient
from tests.support.administrator import Administrator, right
from tests.support.control_plane import ControlPlane
from tests.support.waiting import until

PODS = right("pods", "list", "watch")
EVENTS = right("events", "create", "patch")


@pytest.mark.parametrize(
    ("rules", "rights", "denied"),
    [
        ((PODS, EVENTS), POD_RIGHTS + EVENT_RIGHTS, ()),
        ((PODS,), POD_RIGHTS, ()),
        ((PODS,), POD_RIGHTS + EVENT_RIGHTS, EVENT_RIGHTS),
        ((EVENTS,), POD_RIGHTS + EVENT_RIGHTS, POD_RIGHTS),
        ((PODS,), POD_RIGHTS + EVICTION_RIGHTS, EVICTION_RIGHTS),
        ((), POD_RIGHTS, POD_RIGHTS),
    ],
)
async def test_each_right_that_is_missing_is_told_until_it_is_granted(
    plane: ControlPlane,
    admin: Administrator,
    rules: tuple[dict[str, Any], ...],
    rights: tuple[str, ...],
    denied: tuple[str, ...],
) -> None:
    async with KubeClient(plane.access(await admin.token("own-rights", *rules))) as client:
        own = OwnRights(client, *rights, first_pause=0.1)
        reviewing = asyncio.create_task(own.run())
        try:
            await until(lambda: own.denied if denied else reviewing.done())
            assert own.denied == denied
            if denied:
                await grant_the_rest(admin)
                await until(reviewing.done)
                assert own.denied == ()
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
