"""An API server whose guard refuses forbidden edits as the real policies do, one denial for each policy."""

import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.api_server import Answer, ApiServer, refuses, says

_GROUP = "/apis/admissionregistration.k8s.io/v1/"
_LISTS = {
    "ValidatingAdmissionPolicy": f"{_GROUP}validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{_GROUP}validatingadmissionpolicybindings",
}
HOST = "vcluster-team-a"


def _pods(*names: tuple[str, str]) -> dict[str, Any]:
    items = [{"metadata": {"namespace": namespace, "name": name}} for namespace, name in names]
    return {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items}


@dataclass(kw_only=True)
class GuardedApi:
    """The answers of the API server."""

    objects: list[dict[str, Any]]
    """Policies and bindings."""
    pods: dict[str, list[str]] = field(default_factory=lambda: {"strict": ["train-0"]})
    """Pods by namespace; those in `HOST` are of a vCluster."""
    admits: list[str] = field(default_factory=list)
    """Policies that admit the next edits, one edit for each entry; `*` admits all edits."""
    instead: dict[str, Answer] = field(default_factory=dict)
    """Answers by method and the end of the path, such as `POST configmaps`."""
    edits: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each dry run."""
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def serve_on(self, server: ApiServer) -> None:
        server.always = self._answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        for end, answer in self.instead.items():
            method, _, resource = end.partition(" ")
            if request.method == method and request.path.endswith(resource):
                return await answer(request)
        if request.method == "GET":
            return await says(json.dumps(self._list(request)))(request)
        body = await request.json()
        if request.path.endswith("selfsubjectreviews"):
            return await says(json.dumps(body | {"status": {"userInfo": {"username": "admin"}}}))(request)
        assert request.query["dryRun"] == "All", "nothing may be stored"
        self.edits.append((request.method, request.path))
        self.bodies.append(body)
        policy = self._refusing(body["metadata"])
        stored = {**body, "metadata": {"name": request.path.rpartition("/")[2], **body["metadata"]}}
        if "*" in self.admits:
            return await says(json.dumps(stored))(request)
        if policy in self.admits:
            self.admits.remove(policy)
            return await says(json.dumps(stored))(request)
        name = request.path.rpartition("/")[2]
        message = f"pods \"{name}\" is forbidden: ValidatingAdmissionPolicy '{policy}' with binding 'b' denied request: remove it"
        return await refuses(403, "Forbidden", message)(request)

    def _list(self, request: web.Request) -> dict[str, Any]:
        for kind, path in _LISTS.items():
            if request.path == path:
                items = [item for item in self.objects if item["kind"] == kind]
                return {"kind": f"{kind}List", "metadata": {"resourceVersion": "1"}, "items": items}
        if request.path == "/api/v1/pods":
            assert request.query["labelSelector"] == "vcluster.loft.sh/managed-by"
            return _pods(*((HOST, name) for name in self.pods.get(HOST, ())))
        namespace = request.path.split("/")[4]
        assert request.query["limit"] == "20"
        return _pods(*((namespace, name) for name in self.pods.get(namespace, ())))

    @staticmethod
    def _refusing(metadata: dict[str, Any]) -> str:
        if "ownerReferences" in metadata:
            return "kaishare-guard-references"
        if any(key.startswith("nvidia.com/mig-") for key in metadata.get("annotations", {})):
            return "kaishare-guard-keys"
        is_synced = "vcluster.loft.sh/managed-by" in metadata["labels"]
        return "kaishare-guard-queues" if is_synced else "kaishare-guard-owners"
