"""Listening sockets, and limits: of a port's connections in number, time and memory, and of the process."""

import asyncio
import contextlib
import ctypes
import errno
import resource
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from service.text import quoted

_KIB = 1024
_MIB = 1024 * _KIB

RESERVED_DESCRIPTORS: Final = 128
"""Descriptors reserved for the service: /proc, device files, the API server, certificates. A port briefly
uses some while it accepts and closes connections (`service.http.bounded_server.ACCEPTED_AT_ONCE`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one port. The defaults are for a port with TLS; see `plain_port_limits` for one without."""

    max_connections: int
    max_handshakes: int = 512
    """Concurrent TLS handshakes, in addition to `max_connections`. A further one closes the oldest."""
    head_seconds: float = 10.0
    """Longest time of a TLS handshake, and between the first and the last byte of a request head."""
    answer_seconds: float = 10.0
    """Longest time for which the write buffer of an answer is full because the client does not read; see
    `seconds_for_reading`."""
    min_answer_seconds: float = 1.0  # the same while many clients do not read
    max_page_bytes: int = 16 * _MIB
    """Total size of the pages that answers refer to or that are kept for the next reader. A page of several
    answers counts once."""
    idle_seconds: float = 180.0
    """Longest time without a request. An API server closes an idle connection after 90 s, and must be the
    first side to do so: a review sent into a closing connection is lost (verified on Kubernetes 1.36.3)."""
    stopping_seconds: float = 1.0
    """Replaces the times of heads, answers and idle connections when the server stops. A request may be in
    transit on a connection that was opened or used more recently."""
    recent_seconds: float = 2.0  # age of a connection that counts for `has_recent_connections`
    lingering_seconds: float = 2.0
    """Time for reading the rest of a request after an early answer; the client may miss it without."""
    sweep_seconds: float = 0.5  # interval of the search for connections that exceed a time limit
    read_bytes: int = 64 * _KIB  # half of the buffer for an unread body
    write_buffer_bytes: int = 64 * _KIB  # bytes of an answer that wait in this process for the kernel
    socket_buffer_bytes: int | None = None
    """Size of the kernel's read buffer and write buffer of a connection; the kernel doubles the value. None
    for the kernel's default."""

    @property
    def max_busy(self) -> int:
        """Number of connections whose requests may read pages. The others remain for health checks."""
        return max(1, self.max_connections * 3 // 4)

    def seconds_for_reading(self, stalled: int) -> float:
        """Return the time for reading an answer beside a number of stalled answers.

        It shrinks with the places that are left, so that clients that read nothing soon free theirs.
        """
        return max(self.answer_seconds * (1 - stalled / self.max_busy), self.min_answer_seconds)

    def stopping(self) -> "ConnectionLimits":
        """Return the limits while the server stops."""
        seconds = self.stopping_seconds
        return replace(self, head_seconds=seconds, answer_seconds=seconds, idle_seconds=seconds)

    def within(self, descriptors: int) -> "ConnectionLimits":
        """Return limits for a number of file descriptors; at least one connection is allowed."""
        handshakes = min(self.max_handshakes, max(1, descriptors // 4))
        connections = max(1, min(self.max_connections, descriptors - handshakes))
        return replace(self, max_connections=connections, max_handshakes=handshakes)

    def with_tls(self) -> "ConnectionLimits":
        """Return the limits of the same port with TLS, which also has connections in their handshake.

        256 connections of the agent's port use 22 MiB with TLS and 3 MiB without it (measured, OpenSSL 3).
        """
        return replace(self, max_handshakes=max(1, self.max_connections // 4))


def plain_port_limits(max_connections: int) -> ConnectionLimits:
    """Return the limits of a port without TLS, which serves pages and reads no bodies.

    Buffers are small: 256 clients that do not read use at most 8 MiB of buffers and 16 MiB of pages in this
    process, and 32 MiB in the kernel. That fits the 128 MiB of the agent's container.
    """
    return ConnectionLimits(
        max_connections=max_connections,
        max_handshakes=0,
        read_bytes=16 * _KIB,
        write_buffer_bytes=16 * _KIB,
        socket_buffer_bytes=32 * _KIB,
    )


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files, usually 1024, to the hard limit; return the new limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def descriptors_for_connections() -> int:
    """Raise the limit of open files; return the number of descriptors available for connections.

    A low limit is halved between service and connections, so that both work under `ulimit -n 64`.
    """
    limit = raise_descriptor_limit()
    return max(0, limit - min(RESERVED_DESCRIPTORS, limit // 2) - len(list(Path("/proc/self/fd").iterdir())))


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a listening socket."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `127.0.0.1:8443`, `[::1]:8443`, or `:8443` for all addresses; ValueError for another form."""
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
    skipped. OSError if the host is unknown, or listening on an address fails.
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


_M_TRIM_THRESHOLD: Final = -1  # parameters of glibc's mallopt(3)
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BYTES: Final = 128 * 1024


def return_freed_memory() -> None:
    """Make freed blocks of 128 KiB or more go back to the kernel, and let all threads share one arena.

    By default glibc raises that size to the largest freed block, up to 32 MiB. Rendered responses of 1 MiB
    then leave holes between small objects. Python's threads take turns, so that one arena is enough. Call the
    function before the first thread starts. A C library without mallopt keeps its own settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, value in (
        (_M_MMAP_THRESHOLD, _LARGE_BYTES),
        (_M_TRIM_THRESHOLD, _LARGE_BYTES),
        (_M_ARENA_MAX, 1),
    ):
        mallopt(parameter, value)
