"""An administrator of a cluster for tests: creates objects, binds pods, grants rights."""

import asyncio
import json
from typing import Any

from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.kinds import definition, list_path, made
from tests.support.kube_objects import NODE, RESERVATIONS

NAMESPACES = ("research", "team-a", RESERVATIONS)
# Objects that the recording's cluster had and this one lacks.
_NOT_HERE = frozenset({"priority", "priorityClassName", "preemptionPolicy", "runtimeClassName"})


class Administrator:
    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self._made: list[str] = []

    async def prepare(self) -> None:
        await self.ensure(definition("scheduling.run.ai/v1alpha2", "BindRequest"))
        for name in NAMESPACES:
            await self.ensure({"kind": "Namespace", "metadata": {"name": name}})
        path = list_path("BindRequest", "research")
        for _ in range(100):
            try:
                await self.client.get(path)
            except ApiError:  # a new CRD is served after a short delay
                await asyncio.sleep(0.05)
            else:
                return
        raise AssertionError("BindRequests are not served")

    async def clean_up(self) -> None:
        for path in reversed(self._made):
            try:
                await self.client.request("DELETE", path, params={"gracePeriodSeconds": "0"})
            except ApiError as error:
                if error.status != 404:
                    raise

    async def ensure(self, item: dict[str, Any]) -> None:
        try:
            await self.post(list_path(item["kind"], item["metadata"].get("namespace", "")), item)
        except ApiError as error:
            if error.status != 409:
                raise

    async def create(self, item: dict[str, Any]) -> dict[str, Any]:
        """Create an object, a pod with its status; return the stored object."""
        metadata = {
            key: value
            for key, value in item["metadata"].items()
            if key in ("name", "namespace", "labels", "annotations", "ownerReferences")
        }
        sent = {**item, "metadata": metadata}
        namespace = metadata.get("namespace", "")
        if item["kind"] == "Pod":
            sent = admissible(sent)
        path = list_path(item["kind"], namespace)
        kept = await self.post(path, sent)
        where = f"{path}/{metadata['name']}"
        self._made.append(where)
        if item["kind"] == "Pod" and item.get("status"):
            return await self.set_status(where, item["status"])
        return kept

    async def bind(self, namespace: str, name: str, node: str = NODE) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self.post(f"/api/v1/namespaces/{namespace}/pods/{name}/binding", binding)

    async def merge(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(patch).encode()
        answer = await self.client.request(
            "PATCH", path, body=body, content_type="application/merge-patch+json"
        )
        merged: dict[str, Any] = json.loads(answer)
        return merged

    async def set_status(self, path: str, status: dict[str, Any]) -> dict[str, Any]:
        kept = {
            key: value for key, value in status.items() if key == "phase" or key.endswith("ontainerStatuses")
        }
        return await self.merge(f"{path}/status", {"status": kept})

    async def post(self, path: str, item: dict[str, Any], **params: str) -> dict[str, Any]:
        """Post an object unchanged; the caller deletes it."""
        body = json.dumps({"apiVersion": "v1", **item}).encode()
        created: dict[str, Any] = json.loads(
            await self.client.request("POST", path, params=params, body=body)
        )
        return created

    async def read(self, path: str) -> dict[str, Any]:
        item: dict[str, Any] = json.loads(await self.client.get(path))
        return item

    async def delete(self, path: str) -> None:
        await self.client.request("DELETE", path, params={"gracePeriodSeconds": "0"})

    async def token(self, name: str, *rules: dict[str, Any]) -> str:
        """Create a service account with these rights; return a token of it."""
        account = {"kind": "ServiceAccount", "metadata": {"name": name, "namespace": "team-a"}}
        await self.create(account)
        await self.grant(name, *rules)
        return await self.audience_token(name)

    async def audience_token(self, name: str, *audiences: str) -> str:
        """Return a token of an existing service account, by default for the API server."""
        path = f"/api/v1/namespaces/team-a/serviceaccounts/{name}/token"
        spec = {"audiences": list(audiences)}
        sent = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str((await self.post(path, sent))["status"]["token"])

    async def grant(self, name: str, *rules: dict[str, Any]) -> None:
        group = "rbac.authorization.k8s.io"
        await self.create(made("ClusterRole", name, rules=list(rules)))
        role = {"apiGroup": group, "kind": "ClusterRole", "name": name}
        account = {"kind": "ServiceAccount", "name": name, "namespace": "team-a"}
        await self.create(made("ClusterRoleBinding", name, roleRef=role, subjects=[account]))


def right(resource: str, *verbs: str, group: str = "") -> dict[str, Any]:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


def admissible(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded pod without references to objects that only the recording's cluster had."""
    spec = {key: value for key, value in pod["spec"].items() if key not in _NOT_HERE}
    for kind in ("containers", "initContainers"):
        if kind in spec:
            spec[kind] = [{"image": "example.invalid/image", **container} for container in spec[kind]]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "spec": spec}
