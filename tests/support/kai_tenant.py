"""A tenant of a cluster with KAI: namespace, queue and nodes of their own, and what the tenant's pods get."""

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.kai_programs import RESERVATIONS
from tests.support.kinds import list_path, made, version_of
from tests.support.kube_user import MERGE, Answer, Asker

ALICE: Final = "alice"
GPU: Final = "nvidia.com/gpu"
QUIET_SECONDS: Final = 6.0
"""A pod that KAI has judged and that does not run for so long, six rounds of the scheduler, will not run."""
UNGUARDED_SECONDS: Final = 25.0
"""The same without the guard, where pods are expected to run."""
PATIENCE_SECONDS: Final = 60.0
_JSON_PATCH: Final = "application/json-patch+json"
_QUEUES: Final = "/apis/scheduling.run.ai/v2/queues"
_DEVELOPER: Final = "developer-of-operators"

Object = dict[str, Any]


def _amount(quota: float, limit: float) -> Object:
    return {"quota": quota, "limit": limit, "overQuotaWeight": 1}


def _queue(name: str, parent: str, quota: float, limit: float) -> Object:
    resources = {"cpu": _amount(-1, -1), "memory": _amount(-1, -1), "gpu": _amount(quota, limit)}
    return made("Queue", name, spec={**({"parentQueue": parent} if parent else {}), "resources": resources})


def ready_node(name: str, place: str, gpus: int) -> Object:
    """Return a node that is ready, with GPUs of an A10."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi", GPU: str(gpus)}
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.count": str(gpus), "place": place}
    labels["nvidia.com/gpu.memory"] = "23028"
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    ready |= dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), "2026-01-01T00:00:00Z")
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    return made("Node", name, labels=labels, status=status)


def role_of_developers() -> Object:
    """Return the rights that an operator's users have beside the ClusterRole `edit`."""
    verbs = ["create", "get", "list", "patch", "update", "delete"]
    resources = {"ray.io": "rayclusters", "kubeflow.org": "pytorchjobs"}
    rules = [{"apiGroups": [group], "resources": [name], "verbs": verbs} for group, name in resources.items()]
    return made("ClusterRole", _DEVELOPER, rules=rules)


@dataclass(kw_only=True)
class Tenant:
    """Alice, who has the ClusterRole `edit` in a namespace, and a rival beside her."""

    asker: Asker
    name: str
    limit: float = 1
    quota: float = 1
    gpus: int = 2
    is_enforced: bool = True
    requested: dict[str, float] = field(default_factory=dict)
    """GPUs by name of the pods that were created, as they asked for them."""
    refusals: list[str] = field(default_factory=list)
    """Messages of the requests that were refused."""

    @property
    def queue(self) -> str:
        return self.name

    @property
    def other(self) -> str:
        return f"{self.name}-rival"

    async def prepare(self) -> None:
        """Create the queues, the namespaces, the node and the rights."""
        department = f"{self.name}-department"
        await self._admin("POST", _QUEUES, _queue(department, "", self.gpus, -1))
        await self._admin("POST", _QUEUES, _queue(self.queue, department, self.quota, self.limit))
        await self._admin("POST", _QUEUES, _queue(self.other, department, self.gpus - self.quota, -1))
        node = f"{self.name}-node"
        await self._admin("POST", "/api/v1/nodes", ready_node(node, self.name, self.gpus))
        await self._admin("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": None}})
        for name in (self.name, self.other):
            await self._admin("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            await self.set_namespace(name, is_enforced=self.is_enforced)
        group = {"apiGroup": "rbac.authorization.k8s.io"}
        for role in ("edit", _DEVELOPER):  # nothing is written before alice has both
            reference = {**group, "kind": "ClusterRole", "name": role}
            alice = {**group, "kind": "User", "name": ALICE}
            body = {"metadata": {"name": role}, "roleRef": reference, "subjects": [alice]}
            await self._admin("POST", list_path("RoleBinding", self.name), body)

        async def may_write() -> bool:
            lists = [self.path(kind) for kind in ("ConfigMap", "RayCluster")]
            answers = [await self.asker.send("GET", path, user=ALICE, group="developers") for path in lists]
            return all(answer.status == 200 for answer in answers)

        assert await self.until(may_write), "RBAC does not act"

    async def set_namespace(self, name: str, *, is_enforced: bool, **labels: str) -> None:
        mode = "enforce" if is_enforced else "default"
        wanted = {"kai.scheduler/queue": name, "kaishare.dev/mode": mode, **labels}
        await self._admin("PATCH", f"/api/v1/namespaces/{name}", {"metadata": {"labels": wanted}})

    async def clean_up(self) -> None:
        """Let the nodes and pods go, so that the scheduler's rounds stay short."""
        await self._admin("DELETE", f"/api/v1/nodes/{self.name}-node")
        for name in (self.name, self.other):
            path = f"/api/v1/namespaces/{name}/pods"
            await self.asker.send("DELETE", path, gracePeriodSeconds="0")

    async def _admin(self, method: str, path: str, body: Object | None = None) -> Answer:
        kind = MERGE if method == "PATCH" else "application/json"
        answer = await self.asker.send(method, path, body, content_type=kind)
        assert answer.status < 300, f"{method} {path}: {answer.message}"
        return answer

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str = ALICE,
        content_type: str = "application/json",
    ) -> Answer:
        """Send a request as alice; a refusal is recorded, and the attacker goes on."""
        answer = await self.asker.send(
            method, path, body, user=user, group="system:masters" if user == "admin" else "developers", content_type=content_type
        )  # fmt: skip
        if answer.status >= 300:
            self.refusals.append(answer.message)
        return answer

    def path(self, kind: str, name: str = "", namespace: str = "") -> str:
        return list_path(kind, namespace or self.name) + (f"/{name}" if name else "")

    async def create(
        self, kind: str, name: str, *, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None,
        owners: Sequence[Object] = (), user: str = ALICE, **content: Any,
    ) -> Answer:  # fmt: skip
        metadata: Object = {"labels": labels or {}, "annotations": annotations or {}}
        metadata |= {"ownerReferences": list(owners), "generateName" if name.endswith("-") else "name": name}
        item = {"apiVersion": version_of(kind), "kind": kind, "metadata": metadata, **content}
        return await self.send("POST", self.path(kind), item, user=user)

    async def reference(self, kind: str, name: str) -> Object:
        item = (await self.asker.send("GET", self.path(kind, name))).body
        # Where the owner was refused, there is none.
        uid = item["metadata"].get("uid", "11111111-1111-1111-1111-111111111111")
        return {"apiVersion": version_of(kind), "kind": kind, "name": name, "uid": uid}

    def pod_template(self, gpus: float = 1, *, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None,
                     container: Object | None = None, queue: bool = True, **spec: Any) -> Object:  # fmt: skip
        is_share = 0 < gpus < 1
        amounts = {GPU: str(gpus)} if gpus and not is_share else {}
        return {
            "metadata": {
                "labels": {**({"kai.scheduler/queue": self.queue} if queue else {}), **(labels or {})},
                "annotations": {**({"gpu-fraction": str(gpus)} if is_share else {}), **(annotations or {})},
            },
            "spec": {
                "schedulerName": "kai-scheduler",
                "nodeSelector": {"place": self.name},
                "containers": [{"name": "main", "image": "example.invalid/image", "resources": {"limits": amounts}, **(container or {})}],
                **spec,
            },
        }  # fmt: skip

    async def pod(
        self, name: str, gpus: float = 1, *, owners: Sequence[Object] = (), user: str = ALICE, **template: Any
    ) -> Answer:
        item = self.pod_template(gpus, **template)
        metadata = {"name": name, "ownerReferences": list(owners), **item["metadata"]}
        answer = await self.send(
            "POST", self.path("Pod"), {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": item["spec"]}, user=user
        )  # fmt: skip
        if answer.status < 300:
            self.requested[name] = gpus
        return answer

    async def patch(self, kind: str, name: str, body: Any, *, user: str = ALICE) -> Answer:
        kind_of_patch = _JSON_PATCH if isinstance(body, list) else MERGE
        return await self.send("PATCH", self.path(kind, name), body, user=user, content_type=kind_of_patch)

    async def annotate(self, kind: str, name: str, annotations: Mapping[str, str | None]) -> Answer:
        return await self.patch(kind, name, {"metadata": {"annotations": dict(annotations)}})

    async def set_labels(self, kind: str, name: str, labels: Mapping[str, str | None]) -> Answer:
        return await self.patch(kind, name, {"metadata": {"labels": dict(labels)}})

    async def own(self, pod: str, *owners: Object) -> Answer:
        return await self.patch("Pod", pod, {"metadata": {"ownerReferences": list(owners) or None}})

    async def touch(self, *pods: str) -> None:
        """Change something, so that KAI's pod-grouper looks at the pods again."""
        for pod in pods:
            await self.annotate("Pod", pod, {"touched": str(time.monotonic_ns())})

    async def delete(self, kind: str, name: str, **options: Any) -> Answer:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        return await self.send("DELETE", self.path(kind, name), body)

    async def get(self, kind: str, name: str, namespace: str = "") -> Object:
        """Return an object; empty without one."""
        answer = await self.asker.send("GET", self.path(kind, name, namespace))
        return answer.body if answer.status < 300 else {}

    async def objects(self, kind: str, namespace: str = "") -> list[Object]:
        answer = await self.asker.send("GET", self.path(kind, "", namespace))
        assert answer.status < 300, answer.message
        items: list[Object] = answer.body["items"]
        return items

    async def until(self, condition: Any, seconds: float = PATIENCE_SECONDS) -> bool:
        """Wait for a condition; return whether it came to hold."""
        ends = time.monotonic() + seconds
        while not await condition():
            if time.monotonic() > ends:
                return False
            await asyncio.sleep(0.3)
        return True

    async def runs(self, *pods: str, seconds: float = PATIENCE_SECONDS) -> bool:
        """Wait until pods of this namespace run; return whether they do. Pods that are not there are not awaited."""
        phases: dict[str, str] = {}

        async def is_over() -> bool:
            pods_now = await self.objects("Pod")
            phases.clear()
            phases.update({item["metadata"]["name"]: item["status"].get("phase", "") for item in pods_now})
            return not phases.keys() >= set(pods) or all(phases[pod] == "Running" for pod in pods)

        await self.until(is_over, seconds)
        return all(phases.get(pod) == "Running" for pod in pods)

    async def group_of(self, pod: str, seconds: float = 15) -> str:
        """Wait until KAI has grouped a pod; return the name of its PodGroup, or nothing."""
        name = ""

        async def is_so() -> bool:
            nonlocal name
            item = await self.get("Pod", pod)
            name = item.get("metadata", {}).get("annotations", {}).get("pod-group-name", "")
            return bool(name) or not item

        await self.until(is_so, seconds)
        return name

    async def is_gone(self, kind: str, name: str, seconds: float = 6, namespace: str = "") -> bool:
        """Wait for an object to go; return whether it did."""

        async def is_so() -> bool:
            return not await self.get(kind, name, namespace)

        return await self.until(is_so, seconds)

    async def words(self, pod: str) -> list[str]:
        """Return the messages of the Events on a pod, and why it waits."""
        return [
            f"{item['reason']}: {item.get('message', '')}"
            for item in await self.objects("Event")
            if item["involvedObject"].get("name") == pod and item["involvedObject"]["kind"] == "Pod"
        ]

    async def _judged(self, pods: Iterable[Object]) -> bool:
        """Return whether each pod runs, or KAI has said why it does not."""
        waiting = [
            item
            for item in pods
            if not item["spec"].get("nodeName") and not item["spec"].get("schedulingGates")
        ]
        groups = {item["metadata"]["name"] for item in await self.objects("PodGroup")}
        for item in waiting:
            if item["metadata"].get("annotations", {}).get("pod-group-name", "") not in {"", *groups}:
                continue  # a pod whose PodGroup is gone waits without a word
            conditions = {each["type"]: each["status"] for each in item["status"].get("conditions", [])}
            if conditions.get("PodScheduled") == "False":
                continue
            words = await self.words(item["metadata"]["name"])
            if not any(word.startswith(("PodGrouperWarning", "Unschedulable", "NotReady")) for word in words):
                return False
        return True

    async def gpus_in_use(self) -> float:
        """Return the GPUs on nodes that pods of this namespace use, as they asked for them at first."""
        return sum(
            self.requested.get(item["metadata"]["name"], 0)
            for item in await self.objects("Pod")
            if item["spec"].get("nodeName") and item["status"].get("phase") in ("Pending", "Running")
        )

    async def over(self, limit: float | None = None) -> str:
        """Return OVER once pods use more than the limit; `.` if KAI lets them wait."""
        limit = self.limit if limit is None else limit
        began = time.monotonic()
        quiet_since = began
        while True:
            pods = await self.objects("Pod")
            if await self.gpus_in_use() > limit:
                return "OVER"
            now = time.monotonic()
            if not await self._judged(pods):
                quiet_since = now
            if now > quiet_since + (QUIET_SECONDS if self.is_enforced else UNGUARDED_SECONDS):
                return "."
            assert now < began + PATIENCE_SECONDS, (
                f"{self.name}: KAI has not judged {[pod['metadata']['name'] for pod in pods]}"
            )
            await asyncio.sleep(0.4)

    async def queue_of(self, *pods: str) -> str:
        """Return `other` once a pod runs in a PodGroup of another queue; `.` if the pods wait, or run in their own queue."""
        began = quiet_since = time.monotonic()
        while True:
            items = [item for item in await self.objects("Pod") if item["metadata"]["name"] in pods]
            groups = {
                (item["metadata"]["namespace"], item["metadata"]["name"]): item["spec"].get("queue")
                for item in await self._groups()
            }
            for item in items:
                name = item["metadata"].get("annotations", {}).get("pod-group-name")
                queues = {queue for (_, group), queue in groups.items() if group == name}
                if item["spec"].get("nodeName") and queues and self.queue not in queues:
                    return "other"
            now = time.monotonic()
            if not await self._judged(items):
                quiet_since = now
            if now > quiet_since + (QUIET_SECONDS if self.is_enforced else UNGUARDED_SECONDS):
                return "."
            assert now < began + PATIENCE_SECONDS, f"{self.name}: KAI has not judged {pods}"
            await asyncio.sleep(0.4)

    async def _groups(self) -> list[Object]:
        answer = await self.asker.send("GET", "/apis/scheduling.run.ai/v2alpha2/podgroups")
        items: list[Object] = answer.body["items"]
        return items

    async def reclaimed(self, gpus: int = 2, seconds: float | None = None) -> str:
        """Let the rival ask for GPUs; return `.` once the rival's pods run, `kept` if they go on waiting."""
        for index in range(gpus):
            item = self.pod_template(1)
            labels = {"kai.scheduler/queue": self.other}
            metadata = {**item["metadata"], "name": f"rival-{index}", "labels": labels}
            await self._admin("POST", self.path("Pod", namespace=self.other), {**item, "metadata": metadata})

        async def run() -> bool:
            pods = await self.objects("Pod", self.other)
            return sum(pod["status"].get("phase") == "Running" for pod in pods) >= gpus

        wait = seconds or (PATIENCE_SECONDS if self.is_enforced else 15)
        return "." if await self.until(run, wait) else "kept"

    async def reservation_of(self, pod: str) -> str:
        item = await self.get("Pod", pod)
        group = item["metadata"]["labels"].get("runai-gpu-group")
        names = [
            each["metadata"]["name"]
            for each in await self.objects("Pod", RESERVATIONS)
            if each["metadata"]["labels"].get("runai-gpu-group") == group
        ]
        return names[0] if names else ""

    def __repr__(self) -> str:
        return json.dumps({"name": self.name, "refusals": self.refusals})
