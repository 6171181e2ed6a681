"""`kaishare why` beside KAI's own programs: the words that KAI writes about pods that wait, and who holds the GPUs."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from kai import keys
from tests.support.forked_python import run_forked, without_cluster
from tests.support.kai_programs import KaiCluster
from tests.support.kai_tenant import ready_node
from tests.support.kinds import list_path, made
from tests.support.kube_user import MERGE, Asker
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
TEAM: Final = "why-team"
_UNLIMITED: Final = {"quota": -1, "limit": -1}


def _queue(name: str, parent: str = "", pool: str = "", **gpu: float) -> dict[str, Any]:
    resources = {"gpu": _UNLIMITED | gpu, "cpu": _UNLIMITED, "memory": _UNLIMITED}
    labels = {keys.NODE_POOL_LABEL: pool} if pool else {}
    return made("Queue", name, labels=labels, spec={"parentQueue": parent, "resources": resources})


def _pod(name: str, queue: str, *, fraction: str = "", group: str = "", **limits: str) -> dict[str, Any]:
    annotations = {keys.GPU_FRACTION: fraction} if fraction else {}
    annotations |= {keys.POD_GROUP_NAME: group} if group else {}
    container = {"name": "main", "image": "image", "resources": {"limits": limits}}
    spec = {"schedulerName": keys.SCHEDULER_NAME, "activeDeadlineSeconds": 36_000, "containers": [container]}
    return made("Pod", name, TEAM, labels={keys.QUEUE_LABEL: queue}, annotations=annotations, spec=spec)


_GPU: Final = keys.GPU_RESOURCE
HOLDS: Final = _pod("holds", "speech", **{_GPU: "2"})
OBJECTS: Final = [
    made("Namespace", TEAM),
    ready_node("why-node", "anywhere", 2),
    *(_queue("department"), _queue("speech", "department"), _queue("pooled", "department", "h100")),
    _queue("vision", "department", quota=2, limit=2),
    made("PodGroup", "four", TEAM, spec={"queue": "vision", "minMember": 4}),
    made("PodGroup", "three", TEAM, spec={"queue": "speech", "minMember": 3}),
    HOLDS,
]
WAITING: Final = [
    *(_pod(f"four-{number}", "vision", group="four", **{_GPU: "1"}) for number in range(4)),
    *(_pod(f"three-{number}", "speech", group="three", fraction="0.6") for number in range(3)),
    _pod("rdma", "speech", **{"rdma/hca": "1", _GPU: "1"}),
    _pod("pool", "pooled", **{_GPU: "1"}),
    _pod("share", "speech", fraction="0.5"),
]
EXPECTED: Final = {
    "four-0": ("queue-over-limit", "the workload needs 4 pods at the same time, which request 4 in all"),
    "three-0": ("gang-does-not-fit", "KAI finds room for 0: the pod requests 0.6 of a GPU, and all GPUs are in use"),
    "rdma": ("resource-not-offered", "the pod requests 1 rdma/hca, and no node offers rdma/hca"),
    "pool": ("queue-of-other-pool", "the queue pooled is of the node pool h100"),
    "share": ("no-gpu-fits", "all GPUs are in use"),
}  # fmt: skip


@pytest.fixture(scope="module")
def filled(cluster: KaiCluster) -> Iterator[KaiCluster]:
    asyncio.run(_fill(cluster))
    yield cluster
    asyncio.run(_empty(cluster))


async def _empty(cluster: KaiCluster) -> None:
    async with Asker(cluster.plane) as asker:
        for path in ("/api/v1/nodes/why-node", f"/api/v1/namespaces/{TEAM}"):
            await asker.remove(path)


async def _fill(cluster: KaiCluster) -> None:
    async with Asker(cluster.plane) as asker:

        async def create(item: dict[str, Any]) -> None:
            path = list_path(item["kind"], item["metadata"].get("namespace", ""))
            answer = await asker.send("POST", path, item)
            assert answer.status == 201, answer.message

        async def pod(name: str) -> dict[str, Any]:
            return (await asker.send("GET", f"{list_path('Pod', TEAM)}/{name}")).body

        async def runs() -> bool:
            return (await pod("holds")).get("status", {}).get("phase") == "Running"

        async def is_told() -> bool:
            each = [await pod(name) for name in EXPECTED]
            conditions = [item.get("status", {}).get("conditions", []) for item in each]
            return all(any(one.get("message") for one in condition) for condition in conditions)

        for item in OBJECTS:
            await create(item)
        await asker.send("PATCH", "/api/v1/nodes/why-node", {"spec": {"taints": None}}, content_type=MERGE)
        await until(runs, "the pod that takes the GPUs runs", 60)
        for item in WAITING:
            await create(item)
        await until(is_told, "KAI has said something about each pod", 60)


@pytest.mark.parametrize("name", EXPECTED)
def test_why_finds_the_cause_in_the_words_of_kai(filled: KaiCluster, name: str) -> None:
    environment = without_cluster(KUBECONFIG=str(filled.plane.kubeconfig()))
    ended = run_forked("-m", "console", "why", "-n", TEAM, name, "-o", "json", environment=environment)
    cause = json.loads(ended.out)["findings"][0]
    code, sentence = EXPECTED[name]
    assert cause["code"] == code, ended.out
    assert sentence in cause["sentence"]
    if name == "share":
        assert f"{TEAM}/holds (2 GPUs, queue speech, ends by " in cause["remedies"][0]["text"]
