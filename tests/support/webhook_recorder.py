"""A webhook that records its requests."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from certs.authority import Authority
from tests.support.certificates import serving_context

Reply = Callable[[dict[str, Any]], list[dict[str, Any]]]
"""Returns the patch for a request."""


@dataclass(kw_only=True)
class Recorder:
    url: str
    ca_bundle: bytes
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Paths and requests."""

    def paths(self) -> list[str]:
        paths = [path for path, _ in self.calls]
        self.calls.clear()
        return paths


@contextlib.asynccontextmanager
async def recording(folder: Path, reply: Reply = lambda _request: []) -> AsyncIterator[Recorder]:
    recorder = Recorder(url="", ca_bundle=b"")

    async def answer(request: web.Request) -> web.Response:
        review = await request.json()
        recorder.calls.append((request.path, review["request"]))
        response: dict[str, Any] = {"uid": review["request"]["uid"], "allowed": True}
        patch = reply(review["request"])
        if patch:
            response |= {"patchType": "JSONPatch", "patch": _base64(patch)}
        return web.json_response({**review, "request": None, "response": response})

    async with _served(folder, answer) as (recorder.url, recorder.ca_bundle):
        yield recorder


@contextlib.asynccontextmanager
async def _served(
    folder: Path, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> AsyncIterator[tuple[str, bytes]]:
    """Serve every POST with TLS on loopback; yield the URL and the CA in PEM."""
    authority = Authority.create(now=datetime.now(UTC))
    context = serving_context(authority, folder)
    app = web.Application(client_max_size=_LARGEST)
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        yield f"https://127.0.0.1:{runner.addresses[0][1]}", authority.pair.certificate_pem
    finally:
        assert runner.server is not None
        for connection in runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()  # waiting for the TLS close would outlive the test
        await runner.cleanup()
        await asyncio.sleep(0)


_LARGEST = 8 << 20
"""Maximum size of a review in bytes, above the largest that an API server sends."""


def _base64(patch: list[dict[str, Any]]) -> str:
    return base64.b64encode(json.dumps(patch).encode()).decode()
