"""A simulated API server on loopback with programmable answers and faults."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
PODS = "/api/v1/pods"
BIND_REQUESTS = "/apis/scheduling.run.ai/v1alpha2/bindrequests"


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


def lists(*pods: dict[str, Any], version: int = 1, more: str = "") -> Answer:
    metadata = {"resourceVersion": str(version), **({"continue": more} if more else {})}
    return says(json.dumps({"kind": "PodList", "metadata": metadata, "items": list(pods)}))


def initial_events(*pods: dict[str, Any], version: int = 1) -> bytes:
    """Return the lines of a complete state in a watch, with the final bookmark."""
    end = {
        "metadata": {"resourceVersion": str(version), "annotations": {"k8s.io/initial-events-end": "true"}}
    }
    return b"".join([*(event("ADDED", item) for item in pods), event("BOOKMARK", end)])


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
    watch_list: Literal["served", "refused", "ignored"] = "served"
    """Answer to a watch with initial events. A refusal precedes `answers`."""
    path: str = PODS
    further: "dict[str, ApiServer]" = field(default_factory=dict)
    """Further lists by path; these servers are not started, and only hold objects."""
    named: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Objects by path that can be fetched individually."""
    refusals: dict[str, Answer] = field(default_factory=dict)
    """Answers to all requests whose path contains a text."""
    version: int = 1
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at first; while it is not, requests after `answers` wait."""
    second: float = 0.25
    """Duration of a second in the timeout of a watch."""
    forgotten: int = 0
    """Resource version up to which the history is lost."""
    requests: list[web.Request] = field(default_factory=list)
    """Answered requests, without refused watch-list requests."""
    watch_lists_refused: int = 0
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
    def environment(self) -> dict[str, str]:
        """Environment variables with the address of the API server, as in a pod."""
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}

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
        """Add, change or remove a pod, and notify the watches."""
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
        if self.watch_list == "refused" and "sendInitialEvents" in request.query:
            self.watch_lists_refused += 1
            return await refuses(422, "Invalid", "sendInitialEvents: Forbidden")(request)
        self.requests.append(request)
        if self.answers:
            return await self.answers.pop(0)(request)
        await self.may_answer.wait()
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return await refuses(401, "Unauthorized", "Unauthorized")(request)
        if self.always is not None:
            return await self.always(request)
        for part, refusal in self.refusals.items():
            if part in request.path:
                return await refusal(request)
        if request.path == BIND_REQUESTS != self.path:
            return await self.bind_requests._answer_about_pods(request)
        if request.path == self.path or "watch" in request.query:
            return await self._answer_about_pods(request)
        item = self.named.get(request.path)
        answer = refuses(404, "NotFound", "not found") if item is None else says(json.dumps(item))
        return await answer(request)

    async def _answer_about_pods(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        return await lists(*self.pods.values(), version=self.version)(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        if "resourceVersion" in request.query:
            since = int(request.query["resourceVersion"])
        else:
            since = self.version
            if self.watch_list == "served":
                lines.put_nowait(initial_events(*self.pods.values(), version=self.version))
            else:
                for item in self.pods.values():
                    lines.put_nowait(event("ADDED", item))
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
