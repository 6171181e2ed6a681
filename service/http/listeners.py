"""Opens listening sockets."""

import asyncio
import contextlib
import errno
import socket
from dataclasses import dataclass
from typing import Final

from service.text import quoted


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a listening socket."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `127.0.0.1:8443`, `[::1]:8443`, or `:8443` for all addresses.

        Raises:
            ValueError: the text has another form.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not (port.isascii() and port.isdigit() and len(port) <= 5) or int(port) > 65535:
            raise ValueError(f"{quoted(text)} is not HOST:PORT, such as 127.0.0.1:8443")
        if host.startswith("[") != host.endswith("]"):
            raise ValueError(f"{quoted(text)} is not HOST:PORT, such as [::1]:8443")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_BACKLOG: Final = 1024
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


async def open_listeners(address: Address, *, buffer_bytes: int | None = None) -> list[socket.socket]:
    """Listen on every address of a host; an empty host means all addresses, IPv4 and IPv6.

    Port 0 selects a free port, the same for all addresses. An address family that the machine lacks is
    skipped.

    Args:
        address: host and port.
        buffer_bytes: size of the kernel's buffers of each connection; None for the kernel's default.

    Raises:
        OSError: the host is unknown, or listening on an address fails.
    """
    resolved = await asyncio.get_running_loop().getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    with contextlib.ExitStack() as stack:
        for family, host in dict.fromkeys((family, str(place[0])) for family, *_, place in resolved):
            port = listeners[0].getsockname()[1] if listeners else address.port
            listener = stack.enter_context(contextlib.closing(socket.socket(family, socket.SOCK_STREAM)))
            try:
                _listen(listener, host, port, buffer_bytes)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
            else:
                listeners.append(listener)
        if missing is not None and not listeners:
            raise missing
        stack.pop_all()
    return listeners


def _listen(listener: socket.socket, host: str, port: int, buffer_bytes: int | None) -> None:
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if buffer_bytes is not None:  # accepted connections inherit the sizes
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    listener.bind((host, port))
    listener.listen(_BACKLOG)
