"""A simulated API server on loopback that holds objects, for commands that only read.

It serves objects by their paths and lists with field and label selectors, and tells missing objects, kinds that
are not served and missing rights apart as a real one does (seen on Kubernetes 1.36.3).
"""

import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from certs.authority import Authority
from kube.access import InCluster
from tests.support.api_server import Answer, refuses, says
from tests.support.credentials import in_cluster_environment, write_kubeconfig, write_service_account

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

_RESOURCES = {
    "Pod": ("v1", "pods"),
    "Event": ("v1", "events"),
    "Node": ("v1", "nodes"),
    "Namespace": ("v1", "namespaces"),
    "ConfigMap": ("v1", "configmaps"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Deployment": ("apps/v1", "deployments"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "Job": ("batch/v1", "jobs"),
    "CronJob": ("batch/v1", "cronjobs"),
    "PyTorchJob": ("kubeflow.org/v1", "pytorchjobs"),
    "Notebook": ("kubeflow.org/v1", "notebooks"),
    "RayJob": ("ray.io/v1", "rayjobs"),
    "PodGroup": ("scheduling.run.ai/v2alpha2", "podgroups"),
    "BindRequest": ("scheduling.run.ai/v1alpha2", "bindrequests"),
    "Queue": ("scheduling.run.ai/v2", "queues"),
    "SchedulingShard": ("kai.scheduler/v1", "schedulingshards"),
}


def list_path(kind: str, namespace: str = "") -> str:
    """Return the path of the list of a kind."""
    version, resource = _RESOURCES[kind]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{namespace}/{resource}" if namespace else f"{root}/{resource}"


def object_path(item: Mapping[str, Any]) -> str:
    """Return the path of an object."""
    metadata = item["metadata"]
    return f"{list_path(item['kind'], metadata.get('namespace', ''))}/{metadata['name']}"


@dataclass
class ObjectServer:
    """Holds objects by their paths."""

    folder: Path
    """Folder of the credentials."""
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    forbidden: Callable[[str], bool] = lambda _path: False
    """Which paths the caller has no right to."""
    unserved: tuple[str, ...] = ()
    """Beginnings of paths that are not served."""
    faults: dict[str, Answer] = field(default_factory=dict)
    """Answers to the requests whose path and query match a regular expression."""
    requests: list[str] = field(default_factory=list)
    """Paths of the requests with their queries, oldest first."""
    server: str = ""

    def add(self, *items: dict[str, Any]) -> None:
        """Add objects, or replace those of the same name."""
        self.objects.update({object_path(item): item for item in items})

    def items(self, kind: str) -> Iterable[dict[str, Any]]:
        """Return the objects of one kind."""
        return [item for item in self.objects.values() if item["kind"] == kind]

    @property
    def access(self) -> InCluster:
        """The access of a pod."""
        environment = in_cluster_environment(int(self.server.rpartition(":")[2]))
        return InCluster(folder=self.folder / "account", environment=environment)

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file."""
        return write_kubeconfig(
            self.folder / "kubeconfig", server=self.server, ca_file=self.folder / "ca.crt", token="a-token"
        )

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.requests.append(str(request.rel_url))
        for pattern, fault in self.faults.items():
            if re.search(pattern, str(request.rel_url)):
                return await fault(request)
        if path == REVIEWS:
            allowed = not self.forbidden(list_path("Pod"))
            return await says(
                json.dumps({"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}})
            )(request)
        if path.startswith(self.unserved or ("/nothing",)):
            return await says("404 page not found\n", status=404, kind="text/plain")(request)
        if self.forbidden(path):
            return await refuses(403, "Forbidden", f'User "developer" cannot read "{path}"')(request)
        item = self.objects.get(path)
        if item is not None:
            return await says(json.dumps(item))(request)
        kind = next((kind for kind in _RESOURCES if path.endswith(f"/{_RESOURCES[kind][1]}")), None)
        if kind is None:
            name = path.rpartition("/")[2]
            missing = {
                "kind": "Status", "code": 404, "reason": "NotFound", "message": f'"{name}" not found',
                "details": {"name": name},
            }  # fmt: skip
            return await says(json.dumps(missing), status=404)(request)
        return await self._list(request, kind)

    async def _list(self, request: web.Request, kind: str) -> web.StreamResponse:
        above = "" if request.path == list_path(kind) else request.path.split("/namespaces/")[1].split("/")[0]
        items = [
            item
            for item in self.items(kind)
            if above in ("", item["metadata"].get("namespace"))
            and _matches_fields(item, request.query.get("fieldSelector", ""))
            and _matches_labels(item, request.query.get("labelSelector", ""))
        ]
        document = {"kind": f"{kind}List", "metadata": {"resourceVersion": "1"}, "items": items}
        return await says(json.dumps(document))(request)


def _matches_fields(item: Mapping[str, Any], selector: str) -> bool:
    for term in filter(None, selector.split(",")):
        place, sign, expected = term.partition("!=" if "!=" in term else "=")
        value: Any = item
        for part in place.split("."):
            value = value.get(part, {})
        if (value == expected) is (sign == "!="):
            return False
    return True


def _matches_labels(item: Mapping[str, Any], selector: str) -> bool:
    labels = item["metadata"].get("labels", {})
    one_of = re.fullmatch(r"(\S+) in \((.*)\)", selector)
    if one_of:
        return labels.get(one_of[1]) in one_of[2].split(",")
    for term in filter(None, selector.split(",")):
        key, equals, expected = term.partition("=")
        if key not in labels or (equals and labels[key] != expected):
            return False
    return True


@asynccontextmanager
async def object_server(
    folder: Path, authority: Authority, trust: ssl.SSLContext, *items: dict[str, Any]
) -> AsyncIterator[ObjectServer]:
    """Run a server with objects in the running event loop.

    Args:
        folder: an empty folder for the credentials.
        authority: the CA of the server's certificate.
        trust: the server's certificate.
        items: the objects.
    """
    ca = authority.pair.certificate_pem
    (folder / "ca.crt").write_bytes(ca)
    write_service_account(folder / "account", token="a-token", ca=ca)
    server = ObjectServer(folder)
    server.add(*items)
    app = web.Application(client_max_size=1 << 20)
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust).start()
        server.server = f"https://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
