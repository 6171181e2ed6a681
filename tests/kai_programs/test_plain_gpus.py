"""No pod that KAI's own programs run without kaishare waits or is refused with it, in mode default.

Pods, namespaces, LimitRanges and nodes are generated: MIG nodes of strategy single, nodes with other accelerators,
nodes whose GPUs a DRA driver publishes, claims, RuntimeClasses, pods of vClusters. KAISHARE_PLAIN_PODS=3000 is the
large form.
"""

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from kai import keys
from kube.client import KubeClient
from tests.support.cluster_webhook import Canary, ca_of, configured, from_cluster, our_configurations, serving
from tests.support.kai_programs import KaiCluster
from tests.support.kai_tenant import ready_node
from tests.support.kinds import list_path, made
from tests.support.kube_user import MERGE, Asker
from tests.support.pods import GPU, container

Json = dict[str, Any]
PODS = int(os.environ.get("KAISHARE_PLAIN_PODS", "36"))
pytestmark = [pytest.mark.timeout(1800 + 2 * PODS), pytest.mark.slow]
DRA: Final = "gpu.nvidia.com"
"""A DRA driver and its device class."""
AT_ONCE: Final = 48
SECONDS: Final = 90.0
ACCELERATORS: Final = ("amd.com/gpu", "google.com/tpu", "nvidia.com/gpumem", "example.com/dongle", "rdma/hca")
LIMITS: Final[dict[str, Json | None]] = {
    "free": None,
    "most": {"type": "Container", "max": {GPU: "1"}},
    "least": {"type": "Container", "min": {GPU: "1"}},
    "pod": {"type": "Pod", "max": {GPU: "2"}},
    "ratio": {"type": "Container", "maxLimitRequestRatio": {GPU: "1"}, "default": {GPU: "1"}},
    "default": {"type": "Container", "default": {GPU: "0"}},
}
"""LimitRanges by the name of their namespaces."""
NODES: Final[dict[str, tuple[Json, Json]]] = {
    "plain": ({"nvidia.com/gpu.product": "NVIDIA-A10"}, {}),
    "mig": ({"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "A100-MIG-1g.5gb",
             "node-role.kubernetes.io/mig-enabled": "true"}, {}),
    "other": ({}, dict.fromkeys(ACCELERATORS, "1000")),
    "dra": ({"nvidia.com/gpu.product": "NVIDIA-A10"}, {GPU: "0"}),
}  # fmt: skip
"""Labels and further resources of the nodes."""
CLAIM: Final = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRA}}]}}


def node(name: str, labels: Json, resources: Json) -> Json:
    made = ready_node(name, "", 400)
    made["metadata"]["labels"] |= labels
    for amounts in (made["status"]["capacity"], made["status"]["allocatable"]):
        amounts |= {"cpu": "2000", "memory": "2000Gi", "pods": "2000", **resources}
    return made


def generated(chance: random.Random, name: str) -> Json:
    """Return a pod that a user sends, without kaishare's and KAI's keys."""
    amounts: Json = chance.choice(({GPU: "1"}, {GPU: "1"}, {GPU: "1"}, {GPU: "0"}, {}))
    if chance.random() < 0.25:
        amounts = amounts | {chance.choice(ACCELERATORS): chance.choice(("0", "1"))}
    spec: Json = {"containers": [container(limits=amounts)], "restartPolicy": "Never"}
    if chance.random() < 0.15:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
        spec["containers"][0]["resources"] |= {"claims": [{"name": "gpu"}]}
        # Without a claim KAI 0.17.0 binds a whole GPU there, too, and no share: only the node shows it, so doctor says it.
        spec["nodeSelector"] = {"kubernetes.io/hostname": "dra"} if chance.random() < 0.5 else {}
    elif chance.random() < 0.3:
        spec["nodeSelector"] = chance.choice(
            ({"nvidia.com/mig.strategy": "single"}, {"nvidia.com/gpu.product": "A100-MIG-1g.5gb"},
             {"nvidia.com/gpu.product": "NVIDIA-A10"})
        )  # fmt: skip
    elif chance.random() < 0.2:
        line = {"key": "nvidia.com/mig.strategy", "operator": chance.choice(("Exists", "DoesNotExist"))}
        required = {"nodeSelectorTerms": [{"matchExpressions": [line]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    if chance.random() < 0.2:
        spec["runtimeClassName"] = chance.choice(("nvidia", "gvisor"))
    labels = {keys.VCLUSTER_MANAGED_BY: "team"} if chance.random() < 0.15 else {}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


async def prepare(asker: Asker) -> None:
    async def send(method: str, path: str, body: Json) -> None:
        kind = "application/json" if method == "POST" else MERGE
        answer = await asker.send(method, path, body, content_type=kind)
        assert answer.status < 300, answer.message

    unbounded = {kind: {"quota": -1, "limit": -1, "overQuotaWeight": 1} for kind in ("cpu", "memory", "gpu")}
    for name, parent in (("plain-department", {}), ("team", {"parentQueue": "plain-department"})):
        queue = made("Queue", name, spec={**parent, "resources": unbounded})
        await send("POST", "/apis/scheduling.run.ai/v2/queues", queue)
    await send("POST", list_path("RuntimeClass"), made("RuntimeClass", "gvisor", handler="runsc"))
    for name, (labels, resources) in NODES.items():
        await send("POST", "/api/v1/nodes", node(name, labels, resources))
        await send("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    await send("POST", list_path("DeviceClass"), made("DeviceClass", DRA, spec={}))
    devices = [{"name": f"gpu-{n}", "attributes": {"type": {"string": "gpu"}}} for n in range(128)]
    pool = {"name": "dra", "generation": 1, "resourceSliceCount": 1}
    published = {"driver": DRA, "nodeName": "dra", "pool": pool, "devices": devices}
    await send("POST", list_path("ResourceSlice"), made("ResourceSlice", "dra", spec=published))
    shares = {keys.QUEUE_LABEL: "team", "kaishare.dev/gpu-fraction": "0.5"}
    forms = {"without": {}, "with": shares, "all": shares | {"kaishare.dev/share-for": "all"}}
    for limits, item in LIMITS.items():
        for form, labels in forms.items():
            space = f"{form}-{limits}"
            await send("POST", "/api/v1/namespaces", {"metadata": {"name": space, "labels": labels}})
            if item:
                path = f"/api/v1/namespaces/{space}/limitranges"
                await send("POST", path, made("LimitRange", "gpus", space, spec={"limits": [item]}))


async def test_no_pod_that_runs_without_kaishare_waits_or_is_refused_with_it(
    cluster: KaiCluster, tmp_path: Path
) -> None:
    plane, chance = cluster.plane, random.Random(17)
    lost: list[str] = []
    seen = Counter[str]()
    async with KubeClient(plane.access()) as client, Asker(plane) as asker:
        await prepare(asker)
        options = (*from_cluster(plane, tmp_path), f"--kai-version={cluster.build.version}")
        async with (
            serving(tmp_path / "log", *options) as webhook,
            configured(client, *our_configurations(webhook.target, ca_of(tmp_path))),
        ):
            await Canary(client, "with-free").until_mutated()
            await asyncio.sleep(2)  # LimitRanges have been listed
            for first in range(0, PODS, AT_ONCE):
                pods = [
                    (chance.choice(list(LIMITS)), chance.choice(("with", "with", "all")), generated(chance, f"p{n}"))
                    for n in range(first, min(first + AT_ONCE, PODS))
                ]  # fmt: skip
                lost += await compared(asker, pods, seen)
        for name in NODES:
            await asker.remove(f"/api/v1/nodes/{name}")
    assert not lost, "\n".join(lost[:10])
    assert seen["runs"] > PODS / 3
    reasons = {"whole-gpu-converted", "limit-range", "vcluster-synced", "mig-nodes", "resource-claims"}
    assert reasons <= seen.keys(), seen
    assert seen["a claim runs"], seen


async def compared(asker: Asker, pods: list[tuple[str, str, Json]], seen: Counter[str]) -> list[str]:
    """Create pods in both namespaces; return those that run in the first alone."""
    refused: dict[str, str] = {}
    twins: dict[str, tuple[str, Json]] = {}
    """By the pod with kaishare: its twin without."""
    for limits, form, pod in pods:
        metadata = pod["metadata"] | {"labels": pod["metadata"]["labels"] | {keys.QUEUE_LABEL: "team"}}
        of_kai = {"metadata": metadata, "spec": pod["spec"] | {"schedulerName": keys.SCHEDULER_NAME}}
        name = pod["metadata"]["name"]
        twins[f"{form}-{limits}/{name}"] = f"without-{limits}/{name}", pod
        for space, body in ((f"without-{limits}", of_kai), (f"{form}-{limits}", pod)):
            for _ in pod["spec"].get("resourceClaims", ()):
                claim = made("ResourceClaim", name, space, labels={keys.QUEUE_LABEL: "team"}, spec=CLAIM)
                await asker.send("POST", list_path("ResourceClaim", space), claim)
            answer = await asker.send("POST", f"/api/v1/namespaces/{space}/pods", body)
            if answer.status >= 300:
                refused[f"{space}/{name}"] = answer.message
    lost: list[str] = []
    until = time.monotonic() + SECONDS
    while True:
        found = (await asker.send("GET", "/api/v1/pods")).body["items"]
        there = {f"{p['metadata']['namespace']}/{p['metadata']['name']}": p for p in found}
        running = {name for name, p in there.items() if p["status"].get("phase") == "Running"}
        lost = [name for name, (twin, _) in twins.items() if twin in running and name not in running]
        waits = [name for name in there if name.startswith("without-") and name not in running]
        if (not lost and (not waits or time.monotonic() > until - SECONDS + 25)) or time.monotonic() > until:
            break
        await asyncio.sleep(1)
    for name, (_, pod) in twins.items():
        annotations = there.get(name, {}).get("metadata", {}).get("annotations", {})
        seen[annotations.get("kaishare.dev/reason", "refused")] += 1
        seen["runs"] += name in running
        seen["a claim runs"] += name in running and "resourceClaims" in pod["spec"]
        if pod["spec"].get("runtimeClassName") == "gvisor":
            assert "gpu-fraction" not in annotations, f"{name}: a share in gVisor"
    details = [
        f"{name}: {refused.get(name) or json_of(there.get(name))}; alone: {json_of(there.get(twins[name][0]))}"
        for name in lost
    ]
    for name in (each for twin, (other, _) in twins.items() for each in (twin, other)):
        space, _, own = name.partition("/")
        await asker.send("DELETE", f"/api/v1/namespaces/{space}/pods/{own}", gracePeriodSeconds="0")
        await asker.send("DELETE", f"{list_path('ResourceClaim', space)}/{own}")
    return details


def json_of(pod: Json | None) -> str:
    if pod is None:
        return "does not exist"
    kept = {key: pod["metadata"].get(key) for key in ("labels", "annotations")}
    conditions = [each.get("message") for each in pod["status"].get("conditions", ())]
    return str({**kept, "spec": {k: v for k, v in pod["spec"].items() if k in ("nodeSelector", "runtimeClassName", "nodeName")},
                "resources": [c.get("resources") for c in pod["spec"]["containers"]], "conditions": conditions})  # fmt: skip
