"""Limits of one port's connections in number, time and memory, and the file descriptors for them."""

import resource
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

_KIB = 1024
_MIB = 1024 * _KIB

RESERVED_DESCRIPTORS: Final = 128
"""Descriptors reserved for the service: /proc, the driver's device files, the API server, certificates.
A port briefly uses some of them while it accepts and closes connections
(`service.http.bounded_server.ACCEPTED_AT_ONCE`)."""


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
    min_answer_seconds: float = 1.0
    """The same while many clients do not read."""
    max_page_bytes: int = 16 * _MIB
    """Total size of the pages that answers refer to or that are kept for the next reader. A page of several
    answers counts once."""
    idle_seconds: float = 180.0
    """Longest time without a request. An API server closes an idle connection after 90 s, and must be the
    first side to do so: a review sent into a closing connection is lost (verified on Kubernetes 1.36.3)."""
    stopping_seconds: float = 1.0
    """Replaces the times of heads, answers and idle connections when the server stops. A request may be in
    transit on a connection that was opened or used more recently."""
    recent_seconds: float = 2.0
    """Age of a connection that counts for `has_recent_connections`."""
    lingering_seconds: float = 2.0
    """Time for reading the rest of a request after an early answer; the client may miss it without."""
    sweep_seconds: float = 0.5
    """Interval of the search for connections that exceed a time limit."""
    read_bytes: int = 64 * _KIB
    """Half of the buffer for an unread body."""
    write_buffer_bytes: int = 64 * _KIB
    """Bytes of an answer that wait in this process for the kernel."""
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
    """Raise the soft limit of open files to the hard limit; return the new limit.

    Each connection needs a descriptor, and the usual soft limit is 1024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def descriptors_for_connections() -> int:
    """Raise the limit of open files; return the number of descriptors available for connections.

    A low limit is halved between service and connections, so that both work under `ulimit -n 64`.

    Raises:
        OSError: /proc/self/fd cannot be read.
    """
    limit = raise_descriptor_limit()
    return max(0, limit - min(RESERVED_DESCRIPTORS, limit // 2) - len(list(Path("/proc/self/fd").iterdir())))
