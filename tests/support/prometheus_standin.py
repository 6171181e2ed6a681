"""Starts a stand-in for a Prometheus that gives prepared answers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Standin:
    url: str
    forms: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def prometheus_standin(respond: Respond | web.Response | str) -> AsyncIterator[Standin]:
    """Serve every path with a function's answer, one prepared answer, or a JSON text."""
    standin = Standin("")

    async def handle(request: web.Request) -> web.StreamResponse:
        standin.paths.append(request.path)
        standin.forms.append({key: str(value) for key, value in (await request.post()).items()})
        standin.headers.append(dict(request.headers))
        if isinstance(respond, str):
            return web.Response(text=respond, content_type="application/json")
        if isinstance(respond, web.Response):
            return respond
        return await respond(request)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        standin.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield standin
    finally:
        await runner.cleanup()
