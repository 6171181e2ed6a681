"""Pods with copied keys on a real API server, before the real agent: evicted, and without a share."""

from pathlib import Path
from typing import Any

import pytest

from kai.kaishare_keys import OVER_SHARE
from tests.support.administrator import Administrator
from tests.support.control_plane import ControlPlane
from tests.support.gpu_node import EVICT, RIGHTS, GpuNode, until
from tests.support.kube_objects import bind_request, reservation

NAMESPACE = "wants-evictions"
SHARE = 11500


@pytest.fixture
async def node(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> GpuNode:
    labels = {OVER_SHARE: "evict", "kai.scheduler/queue": "team-a"}
    await admin.ensure({"kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    await admin.create(reservation())
    gpu_node = GpuNode(folder=tmp_path, plane=plane, admin=admin)
    await gpu_node.forget_evictions()
    return gpu_node


async def bound(node: GpuNode, name: str, **fields: Any) -> str:
    """Create a running pod with its BindRequest; return its UID."""
    uid = await node.pod(name, namespace=NAMESPACE, **fields)
    request = bind_request(name, namespace=NAMESPACE)
    request["metadata"]["ownerReferences"][0]["uid"] = uid
    await node.admin.create(request)
    return uid


async def test_a_pod_with_forged_keys_of_vcluster_is_evicted(node: GpuNode) -> None:
    greedy = await bound(
        node, "greedy",
        labels={"vcluster.loft.sh/managed-by": "x", "vcluster.loft.sh/ns-label-x-x-4144a0673b": "24h"},
        annotations={
            "vcluster.loft.sh/object-host-name": "greedy",
            "vcluster.loft.sh/object-host-namespace": NAMESPACE,
            "vcluster.loft.sh/object-namespace": "n",
            "vcluster.loft.sh/object-name": "p",
        },
    )  # fmt: skip
    token = await node.admin.token("evictor-of-forged", *RIGHTS, *EVICT)
    with node.agent(token, "--eviction", "on") as running:
        node.hold({greedy: SHARE + 2000})
        await until(lambda: running.log_lines("pod evicted"), running)
        (line,) = running.log_lines("pod evicted")
        assert (line["uid"], line["result"]) == (greedy, "evicted")
        (pod,) = running.shares()["pods"]
        assert (pod["namespace"], pod["vcluster"]) == (NAMESPACE, None)


@pytest.mark.parametrize("starts", ["after the agent", "before the agent"])
async def test_a_copied_group_label_gives_no_share(node: GpuNode, starts: str) -> None:
    honest = await bound(node, "honest")
    token = await node.admin.token(f"agent-{starts.split(maxsplit=1)[0]}", *RIGHTS)
    copied = await node.pod("copied", namespace=NAMESPACE) if starts == "before the agent" else ""
    with node.agent(token) as running:
        copied = copied or await node.pod("copied", namespace=NAMESPACE)
        late = await bound(node, "late")
        node.hold({honest: 5000, copied: 5000, late: 5000})

        def with_a_share() -> set[str]:
            shares = [text for text in running.series() if text.startswith("kaishare_pod_gpu_memory_share")]
            return {uid for uid in (honest, copied, late) if any(uid in text for text in shares)}

        await until(lambda: with_a_share() == {honest, late}, running)
        await until(lambda: running.log_lines("pod flagged"), running)
        assert {(each["uid"], each["reason"]) for each in running.log_lines("pod flagged")} == {
            (copied, "no-share")
        }
        assert running.stop() == 0
