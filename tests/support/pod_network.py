"""Pod addresses that a real API server reaches through its egress selector.
The API server refuses to proxy to loopback. Its egress selector sends each made-up pod address to a CONNECT proxy
on a UNIX socket, which connects to a server on loopback. No network namespace and no right is needed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path

from service.http.limits import Address


@contextlib.asynccontextmanager
async def ending_at_once(
    server: asyncio.Server, writers: Collection[asyncio.StreamWriter]
) -> AsyncIterator[asyncio.Server]:
    """Close a server and its connections at the end.
    From Python 3.12.1 on, `async with server` waits for clients to close theirs."""
    try:
        yield server
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()


_EGRESS = """
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
  - name: cluster
    connection:
      proxyProtocol: HTTPConnect
      transport: {{uds: {{udsName: {socket}}}}}
"""


def egress_option(folder: Path, socket: Path) -> str:
    """Write the configuration; return the option of kube-apiserver that selects it."""
    configuration = folder / "egress.yaml"
    configuration.write_text(_EGRESS.format(socket=socket))
    return f"--egress-selector-config-file={configuration}"


@contextlib.asynccontextmanager
async def pod_network(
    socket: Path, servers: Mapping[str, Address], received: dict[str, bytearray] | None = None
) -> AsyncIterator[None]:
    writers: set[asyncio.StreamWriter] = set()

    async def copy(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray | None = None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if record is not None:
                    record += data
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        pod_address = head.split(b" ")[1].decode()
        server = servers.get(pod_address)
        try:
            if server is None:
                raise ConnectionRefusedError
            from_pod, to_pod = await asyncio.open_connection(server.host, server.port)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            writer.close()
            writers.discard(writer)
            return
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        record = None if received is None else received.setdefault(pod_address, bytearray())
        writers.add(to_pod)
        await asyncio.gather(copy(reader, to_pod, record), copy(from_pod, writer))
        writers.difference_update({writer, to_pod})

    async with ending_at_once(await asyncio.start_unix_server(connect, socket), writers):
        yield
    await asyncio.to_thread(socket.unlink, missing_ok=True)
