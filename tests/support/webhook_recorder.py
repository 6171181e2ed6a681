"""A webhook that admits everything and records its requests, and API clients of other users."""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

from certs.authority import Authority
from kube.access import Access, Route

Reply = Callable[[dict[str, Any]], list[dict[str, Any]]]
"""Returns the patch for a request."""


@dataclass(kw_only=True)
class Recorder:
    """The recorded requests, in order."""

    url: str
    ca_bundle: bytes
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Paths and requests."""

    def paths(self) -> list[str]:
        """Return the paths of calls since the last use."""
        paths = [path for path, _ in self.calls]
        self.calls.clear()
        return paths


@contextlib.asynccontextmanager
async def recording(folder: Path, reply: Reply = lambda _request: []) -> AsyncIterator[Recorder]:
    """Serve a recorder on loopback."""
    now = datetime.now(UTC)
    authority = Authority.create(now=now)
    pair = authority.issue(["127.0.0.1"], now=now, lifetime=timedelta(days=1))
    (folder / "recorder.crt").write_bytes(pair.certificate_pem)
    (folder / "recorder.key").write_bytes(pair.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "recorder.crt", folder / "recorder.key")
    recorder = Recorder(url="", ca_bundle=authority.pair.certificate_pem)

    async def answer(request: web.Request) -> web.Response:
        review = await request.json()
        recorder.calls.append((request.path, review["request"]))
        response: dict[str, Any] = {"uid": review["request"]["uid"], "allowed": True}
        patch = reply(review["request"])
        if patch:
            response |= {"patchType": "JSONPatch", "patch": _base64(patch)}
        return web.json_response({**review, "request": None, "response": response})

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        recorder.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        yield recorder
    finally:
        assert runner.server is not None
        for connection in runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()  # waiting for the TLS close would outlive the test
        await runner.cleanup()
        await asyncio.sleep(0)


def _base64(patch: list[dict[str, Any]]) -> str:
    return base64.b64encode(json.dumps(patch).encode()).decode()


class Impersonating:
    """The same access to the API server as another user with all rights."""

    def __init__(self, access: Access, user: str) -> None:
        self._access = access
        self._user = user

    @property
    def server(self) -> str:
        return self._access.server

    @property
    def namespace(self) -> str:
        return self._access.namespace

    @property
    def route(self) -> Route:
        return self._access.route

    def trust(self) -> ssl.SSLContext:
        return self._access.trust()

    async def headers(self, *, renewed: bool = False) -> Mapping[str, str]:
        own = await self._access.headers(renewed=renewed)
        return {**own, "Impersonate-User": self._user, "Impersonate-Group": "system:masters"}
