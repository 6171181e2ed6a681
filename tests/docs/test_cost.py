"""The figures of docs/cost.md and docs/scale.md: how the benchmarks count requests and bytes."""

import asyncio
import json
from pathlib import Path

from benchmarks.agent_cluster import audited, counted, counting_link

AGENT = "system:serviceaccount:kaishare-agent:kaishare-agent"


def entry(number: int, verb: str, uri: str, *, user: str = AGENT, stage: str = "ResponseComplete") -> bytes:
    """Return a line of an audit log."""
    resource = uri.partition("?")[0].rpartition("/v1/")[2].partition("/")[0]
    return (
        json.dumps(
            {
                "auditID": f"id-{number}",
                "stage": stage,
                "verb": verb,
                "requestURI": uri,
                "user": {"username": user},
                "objectRef": {"resource": resource},
            }
        ).encode()
        + b"\n"
    )


def test_each_request_of_an_agent_counts_once_and_reads_of_etcd_apart(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_bytes(
        entry(1, "watch", "/api/v1/pods?watch=1", stage="ResponseStarted")
        + entry(1, "watch", "/api/v1/pods?watch=1")
        + entry(2, "get", "/api/v1/namespaces/a")
        + entry(3, "get", "/api/v1/namespaces/b?resourceVersion=0")
        + entry(4, "get", "/api/v1/namespaces/c?resourceVersion=7")
        + entry(5, "get", "/api/v1/nodes/n", user="admin")
        + entry(6, "create", "/api/v1/events")
        + entry(7, "get", "/api/v1/nodes/n")[:-1]  # the API server is still writing this line
    )
    assert counted(audited(log)) == {
        "watch pods": 1,
        "get namespaces, etcd": 2,
        "get namespaces, cache": 1,
        "create events": 1,
    }


async def test_the_link_counts_the_bytes_of_both_directions() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(5)
        writer.write(b"x" * 300_000)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, counting_link(server.sockets[0].getsockname()[1]) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"hello")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 10) == b"x" * 300_000
        writer.close()
        assert (link.received, link.sent, link.connections) == (5, 300_000, 1)
