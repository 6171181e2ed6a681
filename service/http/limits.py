"""What the connections of one port may cost."""

from dataclasses import dataclass, replace

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one port. The defaults suit a TLS port; `plain_port_limits` suits a plain one."""

    max_connections: int
    max_handshakes: int = 512
    """TLS handshakes at once, besides `max_connections`. One more closes the oldest."""
    handshake_seconds: float = 10.0
    head_seconds: float = 10.0
    """Time for a request head, from its first byte to its last."""
    answer_seconds: float = 10.0
    """Time for reading an answer, from the moment at which it first fills the write buffer."""
    answer_bytes_per_second: int = 64 * _KIB
    """A large answer has one second more for each of these."""
    max_stalled_bytes: int = 64 * _MIB
    """Sum of the answers that fill their write buffers. One more closes the connection stalled longest."""
    idle_seconds: float = 180.0
    """Time without a request. An API server drops an idle connection after 90 s and has to do so first: a
    review sent into a closing connection is lost and never sent again (verified on Kubernetes 1.36.3)."""
    young_seconds: float = 1.0
    """On a connection opened or used more recently a request may be on its way."""
    recent_seconds: float = 2.0
    """A connection opened more recently counts for `has_recent_connections`."""
    lingering_seconds: float = 2.0
    """How long the rest of a request is read after an early answer, so that the client sees the answer."""
    sweep_seconds: float = 1.0
    """Interval between searches for connections that exceed a time limit."""
    read_bytes: int = 64 * _KIB
    """Bytes per read of a plain connection, and half of what is buffered of a body that is not read."""
    write_buffer_bytes: int = 64 * _KIB
    """Bytes of an answer that may wait in this process for the kernel."""
    socket_buffer_bytes: int | None = None
    """Size of the kernel's read buffer and of its write buffer of a connection, which the kernel doubles.
    None for its default."""

    @property
    def max_half_open(self) -> int:
        """Half-open connections above this number are closed before idle ones, however young they are."""
        return self.max_connections // 4

    def within(self, descriptors: int) -> "ConnectionLimits":
        """Return limits that need at most so many file descriptors, but at least one connection."""
        handshakes = min(self.max_handshakes, max(1, descriptors // 4))
        connections = max(1, min(self.max_connections, descriptors - handshakes))
        return replace(self, max_connections=connections, max_handshakes=handshakes)


def plain_port_limits(max_connections: int) -> ConnectionLimits:
    """Return the limits of a port without TLS, which serves pages and reads no bodies.

    Its buffers are small. 256 clients that do not read hold at most 8 MiB of buffers and 8 MiB of pages in
    this process, and 32 MiB in the kernel, which fits the 128 MiB of the agent's container.
    """
    return ConnectionLimits(
        max_connections=max_connections,
        max_handshakes=0,
        max_stalled_bytes=8 * _MIB,
        read_bytes=16 * _KIB,
        write_buffer_bytes=16 * _KIB,
        socket_buffer_bytes=32 * _KIB,
    )
