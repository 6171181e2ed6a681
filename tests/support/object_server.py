"""A simulated API server on loopback that holds objects, for commands that only read.

It serves objects by their paths and lists with field and label selectors, and tells missing objects, kinds that
are not served and missing rights apart as a real one does (seen on Kubernetes 1.36.3).
"""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from certs.authority import Authority
from kube.access import InCluster
from tests.support.api_server import Answer, says, status_object
from tests.support.credentials import in_cluster_environment, write_kubeconfig, write_service_account
from tests.support.kinds import CLUSTER_SCOPED, SIMULATED, list_path, object_path, resource_path

__all__ = ["ObjectServer", "list_path", "object_path", "object_server"]

_NO_PAGE = "404 page not found\n"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_PATH = re.compile(r"/(?:api|apis/([^/]+))/([^/]+)(?:/namespaces/([^/]+)(?=/))?/([^/]+)(?:/([^/]+))?")


@dataclass
class ObjectServer:
    folder: Path
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    forbidden: Callable[[str], bool] = lambda _path: False
    unserved: tuple[str, ...] = ()
    """Beginnings of paths that are not served."""
    faults: dict[str, Answer] = field(default_factory=dict)
    """Answers to the requests whose path and query match a regular expression."""
    create: Callable[[str, Any], tuple[int, Any]] = lambda _path, sent: (201, sent)
    """Answers a creation with status and body; nothing is stored."""
    date: datetime | None = None
    """The server's time in its answers; None for the real one."""
    requests: list[str] = field(default_factory=list)
    """Paths of the requests with their queries, oldest first."""
    server: str = ""

    def add(self, *items: dict[str, Any]) -> None:
        self.objects.update({object_path(item): item for item in items})

    def items(self, kind: str) -> Iterable[dict[str, Any]]:
        return [item for item in self.objects.values() if item["kind"] == kind]

    @property
    def access(self) -> InCluster:
        environment = in_cluster_environment(int(self.server.rpartition(":")[2]))
        return InCluster(folder=self.folder / "account", environment=environment)

    @property
    def kubeconfig(self) -> Path:
        return write_kubeconfig(
            self.folder / "kubeconfig", server=self.server, ca_file=self.folder / "ca.crt", token="a-token"
        )

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(str(request.rel_url))
        for pattern, fault in self.faults.items():
            if re.search(pattern, str(request.rel_url)):
                return await fault(request)
        body = await request.read()
        status, document = await asyncio.to_thread(
            self._answer, request, body
        )  # `create` may take a loop of its own
        if isinstance(document, str):
            return await says(document, status=status, kind="text/plain")(request)
        return await says(json.dumps(document), status=status)(request)

    async def set_date(self, _request: web.Request, response: web.StreamResponse) -> None:
        if self.date is not None:
            response.headers["Date"] = format_datetime(self.date, usegmt=True)

    def _answer(self, request: web.Request, body: bytes) -> tuple[int, Any]:
        path = request.path
        if path == "/version":
            return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.1"}
        if path in ("/api", "/apis"):
            return 200, self._discovery(is_core=path == "/api")
        if path == REVIEWS:
            wanted = json.loads(body)["spec"].get("resourceAttributes", {})
            version = "/".join(filter(None, (wanted.get("group"), wanted.get("version") or "v1")))
            place = resource_path(version, wanted.get("resource", ""), wanted.get("namespace", ""))
            return 201, {"kind": "SelfSubjectAccessReview", "status": {"allowed": not self.forbidden(place)}}
        if path.endswith("/selfsubjectreviews"):
            user = {"username": "developer", "groups": ["system:authenticated"]}
            return 201, {"kind": "SelfSubjectReview", "status": {"userInfo": user}}
        if self.forbidden(path):
            return 403, status_object(403, "Forbidden", f'User "developer" cannot read "{path}"')
        if self.unserved and path.startswith(self.unserved):
            return 404, _NO_PAGE
        if path in self.objects:
            return 200, self.objects[path]
        matched = _PATH.fullmatch(path)
        group, version, namespace, resource, name = matched.groups() if matched else ("", "", "", "", "")
        kind = SIMULATED.get((f"{group}/{version}" if group else version, resource))
        if kind is None:
            return 404, _NO_PAGE
        if request.method == "POST":
            return self.create(path, json.loads(body))
        if name:
            missing = status_object(404, "NotFound", f'{resource} "{name}" not found')
            return 404, {**missing, "details": {"name": name}}
        items = [
            item
            for item in self.items(kind)
            if namespace in (None, item["metadata"].get("namespace"))
            and _matches_fields(item, request.query.get("fieldSelector", ""))
            and _matches_labels(item, request.query.get("labelSelector", ""))
        ]
        return 200, {"kind": f"{kind}List", "metadata": {"resourceVersion": "1"}, "items": items}

    def _discovery(self, *, is_core: bool) -> dict[str, Any]:
        groups: dict[str, Any] = {}
        for (api_version, plural), kind in SIMULATED.items():
            group, _, version = api_version.rpartition("/")
            if (not group) is not is_core or (self.unserved and f"/apis/{group}/".startswith(self.unserved)):
                continue
            made = groups.setdefault(group, {"metadata": {"name": group}, "versions": {}})
            resource = {
                "resource": plural, "singularResource": kind.lower(), "verbs": ["get", "list", "create"],
                "scope": "Cluster" if kind in CLUSTER_SCOPED else "Namespaced",
                "responseKind": {"group": group, "version": version, "kind": kind},
            }  # fmt: skip
            of_version = made["versions"].setdefault(version, {"version": version, "resources": []})
            of_version["resources"].append(resource)
        items = [{**each, "versions": list(each["versions"].values())} for each in groups.values()]
        return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items}


def _matches_fields(item: Mapping[str, Any], selector: str) -> bool:
    for term in filter(None, selector.split(",")):
        place, sign, expected = re.split(r"(!=|==?)", term, maxsplit=1)
        value: Any = item
        for part in place.split("."):
            value = (value or {}).get(part, "" if place.endswith(f".{part}") else {})
        if (value == expected) is (sign == "!="):
            return False
    return True


def _matches_labels(item: Mapping[str, Any], selector: str) -> bool:
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, re.split(r",(?![^(]*\))", selector)):
        if one_of := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", term):
            holds = (labels.get(one_of[1]) in one_of[3].split(",")) is (one_of[2] == "in")
        elif "=" in term:
            key, sign, expected = re.split(r"(!=|==?)", term, maxsplit=1)
            holds = (labels.get(key) == expected) is (sign != "!=")
        else:
            holds = (term.removeprefix("!") in labels) is not term.startswith("!")
        if not holds:
            return False
    return True


@asynccontextmanager
async def object_server(
    folder: Path, authority: Authority, trust: ssl.SSLContext, *items: dict[str, Any]
) -> AsyncIterator[ObjectServer]:
    """Run a server with objects in the running event loop."""
    ca = authority.pair.certificate_pem
    (folder / "ca.crt").write_bytes(ca)
    write_service_account(folder / "account", token="a-token", ca=ca)
    server = ObjectServer(folder)
    server.add(*items)
    app = web.Application(client_max_size=1 << 20)
    app.on_response_prepare.append(server.set_date)
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust).start()
        server.server = f"https://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
