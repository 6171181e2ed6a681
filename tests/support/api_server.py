"""The simulated API server on loopback: `ApiServer` with programmable answers and faults, and `ObjectServer`.
`hostile_api_server.py` has the faults of a real one."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from certs.authority import Authority
from kube.access import InCluster
from tests.support.credentials import in_cluster_environment, write_kubeconfig, write_service_account
from tests.support.kinds import CLUSTER_SCOPED, SIMULATED, object_path, resource_path

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
PODS = "/api/v1/pods"
BIND_REQUESTS = "/apis/scheduling.run.ai/v1alpha2/bindrequests"
_JUNK = b"x" * 65536


def pod(name: str, version: int = 1, namespace: str = "team-a", **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "resourceVersion": str(version)}, **fields}


def event(kind: str, item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def status_object(code: int, reason: str, message: str = "told to") -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}


def says(body: bytes | str, *, status: int = 200, kind: str = "application/json", **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        text = body.encode() if isinstance(body, str) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=text, headers={"Content-Type": kind, **named})

    return answer


def refuses(code: int, reason: str, message: str = "told to", **headers: str) -> Answer:
    return says(json.dumps(status_object(code, reason, message)), status=code, **headers)


def floods(size: int, *, status: int = 200, head: bytes = b"") -> Answer:
    """Answer with a large body, made as fast as the client reads it; `head` are its first bytes."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(head)
        for _ in range(0, size, len(_JUNK)):
            await response.write(_JUNK)
        return response

    return answer


async def holds(request: web.Request) -> web.StreamResponse:
    await web.StreamResponse().prepare(request)
    return await hangs(request)


async def hangs(_request: web.Request) -> web.StreamResponse:
    """Give no answer until the client leaves or the server stops; both cancel the handler."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def lists(*pods: dict[str, Any], version: int = 1) -> Answer:
    metadata = {"resourceVersion": str(version)}
    return says(json.dumps({"kind": "PodList", "metadata": metadata, "items": list(pods)}))


def streams(*chunks: bytes, cut: bool = False) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if cut and request.transport is not None:
            request.transport.abort()
        return response

    return answer


async def aborts(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


HTML = "<!DOCTYPE html>\n<html><body><h1>Bad Gateway</h1></body></html>\n"
"""The page of a load balancer without a working API server."""

FAULTS: dict[str, Answer] = {
    "400": refuses(400, "BadRequest"),
    "401": refuses(401, "Unauthorized"),
    "401 in plain text": says("Unauthorized", status=401, kind="text/plain"),
    "403": refuses(403, "Forbidden"),
    "404": refuses(404, "NotFound"),
    "409": refuses(409, "Conflict"),
    "410": refuses(410, "Expired"),
    "429": refuses(429, "TooManyRequests", Retry_After="1"),
    "500": refuses(500, "InternalError"),
    "503 with an endless body": floods(96 << 20, status=503),
    "504": refuses(504, "Timeout", "Too large resource version: 900, current: 20"),
    "302 to a log-in page": says("", status=302, Location="/login"),
    **{f"{status} HTML": says(HTML, status=status, kind="text/html") for status in (200, 302, 401, 500, 502)},
    **{
        f"200 {body!r}": says(body)
        for body in (
            "ok", "", "[1", '"text"', "[1]", "{}", '{"items": []}',
            '{"kind": "PodList", "metadata": {}, "items": []}',
            '{"kind": "Status", "metadata": {"resourceVersion": "5"}}',
            '{"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": [{}]}',
            '{"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": ["\xff"]}',
            '{"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": [',
        )
    },
    "connection cut before the answer": aborts,
    "connection cut after the head": streams(cut=True),
    "connection cut within the body": streams(b'{"kind": "Pod', cut=True),
    "answer without a body": streams(),
    "silence instead of an answer": hangs,
    "silence after the head": holds,
}  # fmt: skip
"""What a client may get instead of the right answer of an API server."""


@dataclass(kw_only=True)
class ApiServer:
    """Answers with the next entry of `answers` for each request; behaves correctly after the last one."""

    trust: ssl.SSLContext
    answers: list[Answer] = field(default_factory=list)
    always: Answer | None = None
    """Answer to every request instead of correct behaviour."""
    token: str = ""
    """The only accepted token; empty accepts any."""
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    path: str = PODS
    further: "dict[str, ApiServer]" = field(default_factory=dict)
    """Further lists by path; these servers are not started, and only hold objects."""
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Objects by path that can be fetched individually."""
    refusals: dict[str, Answer] = field(default_factory=dict)
    """Answers to the requests whose path and query match a regular expression."""
    version: int = 1
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at first; while it is not, requests after `answers` wait."""
    second: float = 0.25
    """Duration of a second in the timeout of a watch."""
    forgotten: int = 0
    """Resource version up to which the history is lost."""
    requests: list[web.Request] = field(default_factory=list)
    port: int = 0
    _history: list[tuple[int, bytes]] = field(default_factory=list)
    _watchers: dict[asyncio.Queue[bytes], web.Request] = field(default_factory=dict)
    _runner: web.AppRunner | None = None

    def __post_init__(self) -> None:
        self.may_answer.set()

    def requested_paths(self, part: str) -> list[str]:
        return [request.path for request in self.requests if part in request.path]

    @property
    def bind_requests(self) -> "ApiServer":
        """The list of BindRequests, with its objects as `pods`."""
        return self.further.setdefault(BIND_REQUESTS, ApiServer(trust=self.trust, second=self.second))

    @property
    def list_requests(self) -> list[web.Request]:
        return [request for request in self.requests if "watch" not in request.query]

    @property
    def watch_requests(self) -> list[web.Request]:
        return [request for request in self.requests if "watch" in request.query]

    @property
    def urls(self) -> list[str]:
        return [str(request.rel_url) for request in self.requests]

    @property
    def environment(self) -> dict[str, str]:
        return in_cluster_environment(self.port)

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self.trust, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def change(self, kind: str, item: dict[str, Any]) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            self.pods.pop(item["metadata"]["name"], None)
        else:
            self.pods[item["metadata"]["name"]] = item
        self._history.append((self.version, event(kind, item)))
        self.tell(event(kind, item))

    def cut(self) -> None:
        for request in self._watchers.values():
            if request.transport is not None:
                request.transport.abort()

    def tell(self, line: bytes) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(line)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.answers:
            return await self.answers.pop(0)(request)
        await self.may_answer.wait()
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return await refuses(401, "Unauthorized", "Unauthorized")(request)
        if self.always is not None:
            return await self.always(request)
        for pattern, refusal in self.refusals.items():
            if re.search(pattern, str(request.rel_url)):
                return await refusal(request)
        return await self._answer_about_objects(request)

    async def _answer_about_objects(self, request: web.Request) -> web.StreamResponse:
        if request.path == BIND_REQUESTS != self.path:
            return await self.bind_requests._answer_about_pods(request)
        if request.path == self.path or "watch" in request.query:
            return await self._answer_about_pods(request)
        item = self.objects.get(request.path)
        answer = refuses(404, "NotFound", "not found") if item is None else says(json.dumps(item))
        return await answer(request)

    async def _answer_about_pods(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        return await lists(*self.pods.values(), version=self.version)(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        since = int(request.query["resourceVersion"])
        if since < self.forgotten:
            return await refuses(410, "Expired", f"too old resource version: {since} ({self.forgotten})")(
                request
            )
        for version, line in self._history:
            if version > since:
                lines.put_nowait(line)
        self._watchers[lines] = request
        try:
            response = web.StreamResponse()
            response.enable_chunked_encoding()
            await response.prepare(request)
            async with asyncio.timeout(self.second * float(request.query["timeoutSeconds"])):
                while True:
                    await response.write(await lines.get())
        except TimeoutError:
            return response
        finally:
            del self._watchers[lines]


_NO_PAGE = "404 page not found\n"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_PATH = re.compile(r"/(?:api|apis/([^/]+))/([^/]+)(?:/namespaces/([^/]+)(?=/))?/([^/]+)(?:/([^/]+))?")


@dataclass(kw_only=True)
class ObjectServer(ApiServer):
    """Holds objects of a cluster, for commands that only read.
    It serves objects by their paths and lists with field and label selectors, and tells missing objects, kinds that
    are not served and missing rights apart as a real one does (seen on Kubernetes 1.36.3)."""

    folder: Path
    forbidden: Callable[[str], bool] = lambda _path: False
    unserved: tuple[str, ...] = ()
    """Beginnings of paths that are not served."""
    create: Callable[[str, Any], tuple[int, Any]] = lambda _path, sent: (201, sent)
    """Answers a creation with status and body; nothing is stored."""
    date: datetime | None = None
    """The server's time in its answers; None for the real one."""

    def add(self, *items: dict[str, Any]) -> None:
        self.objects.update({object_path(item): item for item in items})

    def items(self, kind: str) -> Iterable[dict[str, Any]]:
        return [item for item in self.objects.values() if item["kind"] == kind]

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def access(self) -> InCluster:
        return InCluster(folder=self.folder / "account", environment=self.environment)

    @property
    def kubeconfig(self) -> Path:
        return write_kubeconfig(
            self.folder / "kubeconfig", server=self.server, ca_file=self.folder / "ca.crt", token="a-token"
        )

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        response = await super()._answer(request)
        if self.date is not None:
            response.headers["Date"] = format_datetime(self.date, usegmt=True)
        return response

    async def _answer_about_objects(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        # `create` may take a loop of its own.
        status, document = await asyncio.to_thread(self._respond, request, body)
        if isinstance(document, str):
            return await says(document, status=status, kind="text/plain")(request)
        return await says(json.dumps(document), status=status)(request)

    def _respond(self, request: web.Request, body: bytes) -> tuple[int, Any]:
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
    ca = authority.pair.certificate_pem
    (folder / "ca.crt").write_bytes(ca)
    write_service_account(folder / "account", token="a-token", ca=ca)
    server = ObjectServer(trust=trust, folder=folder)
    server.add(*items)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
