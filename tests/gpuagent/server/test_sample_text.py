"""What the server shows of one sample: rendered once for all readers, and right when no new sample comes."""

import asyncio
import gzip
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpuagent.server import agent_server
from gpuagent.server.exposition import Metrics
from service.http.limits import Address
from service.http.page_server import SharedText
from tests.gpuagent.evaluation.test_pipeline import Desk, node
from tests.support.page_server import ANY_PORT, Client
from tests.support.samples import GIB

PATHS = ("/metrics", "/api/v1/shares", "/api/v1/history")


@asynccontextmanager
async def serving(desk: Desk) -> AsyncIterator[Address]:
    address = await desk.port.start(ANY_PORT)
    try:
        yield address
    finally:
        await desk.port.stop()


async def read(address: Address, path: str, *, accepted: str = "gzip") -> str:
    client = Client(*await asyncio.open_connection(address.host, address.port))
    try:
        await client.send(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: {accepted}\r\n\r\n".encode()
        )
        status, headers, body = await client.answer()
    finally:
        client.writer.transport.abort()
    assert (status, headers["vary"]) == (200, "Accept-Encoding")
    assert ("content-encoding" in headers) is (accepted == "gzip")
    return (gzip.decompress(body) if accepted == "gzip" else body).decode()


@pytest.fixture
def renderings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the renderings of each format, and the compressions."""
    counts: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(Metrics, "sample_parts", counted("/metrics", Metrics.sample_parts))
    monkeypatch.setattr(agent_server, "shares_json", counted("/api/v1/shares", agent_server.shares_json))
    monkeypatch.setattr(agent_server, "history_json", counted("/api/v1/history", agent_server.history_json))
    monkeypatch.setattr(SharedText, "_blocks", counted("gzip", SharedText._blocks))
    return counts


async def test_a_format_is_rendered_and_compressed_once_a_sample(renderings: Counter[str]) -> None:
    desk = Desk()
    async with serving(desk) as address:
        for number in (1, 2):
            desk.take(node(2 * GIB, 5.0 * number))
            for _ in range(2):
                await asyncio.gather(
                    *(
                        read(address, path, accepted=accepted)
                        for path in PATHS
                        for accepted in ("gzip", "identity")
                        for _ in range(10)
                    )
                )
            assert renderings == {**dict.fromkeys(PATHS, number), "gzip": 3 * number}


async def test_without_a_new_sample_the_figures_become_old_and_then_stale() -> None:
    desk = Desk()
    async with serving(desk) as address:
        desk.take(node(2 * GIB, 0))
        fresh = {path: await read(address, path) for path in PATHS}
        assert "kaishare_pod_gpu_memory_used_bytes{" in fresh["/metrics"]
        desk.now = 14.0
        assert json.loads(await read(address, "/api/v1/shares")) == json.loads(fresh["/api/v1/shares"])
        desk.now = 26.0
        metrics = await read(address, "/metrics")
        assert "kaishare_pod_" not in metrics
        assert "kaishare_agent_attribution_ok 0" in metrics
        assert 'kaishare_agent_attribution_problem{reason="sample-stale",gpu_uuid=""} 1' in metrics
        for now in (26.0, 27.0):
            desk.now = now
            shares = json.loads(await read(address, "/api/v1/shares"))
            assert (shares["pods"], shares["sampleTimestamp"], shares["attributionOk"]) == ([], None, False)
            (problem,) = shares["problems"]
            assert problem["detail"] == f"the last successful sample is {now:.1f} s old"
            assert json.loads(await read(address, "/api/v1/history"))["pods"] == []


async def test_the_agents_own_metrics_are_those_of_the_request() -> None:
    desk = Desk()
    desk.take(node(2 * GIB, 0))
    async with serving(desk) as address:
        for count in (1, 2):
            desk.port._metrics.observe_sample(0.001)
            text = await read(address, "/metrics")
            assert re.search(r"^kaishare_agent_sample_duration_seconds_count (\d+)$", text, re.MULTILINE)[
                1
            ] == str(count)  # type: ignore[index]
