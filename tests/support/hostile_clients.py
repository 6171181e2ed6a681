"""Blocking clients on loopback that occupy connections without using them."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from service.http.limits import Address

_HEAD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"


@contextmanager
def half_open(address: Address, count: int, sent: bytes = _HEAD) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        clients = [_connect(stack, address) for _ in range(count)]
        for client in clients:
            _send(client, sent)
        yield clients


@contextmanager
def not_reading(
    address: Address, count: int, path: str = "/metrics", requests: int = 100
) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        clients = [_connect(stack, address) for _ in range(count)]
        for client in clients:
            _send(client, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * requests)
        yield clients


def _connect(stack: ExitStack, address: Address) -> socket.socket:
    client = stack.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(10)
    client.connect((address.host, address.port))
    return client


def _send(client: socket.socket, data: bytes) -> None:
    client.setblocking(False)
    try:
        client.send(data)
    except (BlockingIOError, ConnectionError):
        return  # a limit made the server stop reading, or close the connection
