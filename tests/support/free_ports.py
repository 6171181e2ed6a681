"""Free ports for programs that do not report a port that the kernel selects."""

import itertools
import os
import socket
from collections.abc import Iterator

_FIRST, _COUNT = 20_000, 12_000
"""Below the ephemeral ports (32768 to 60999 by default), so that no connection takes a port before its program listens."""


def _candidates() -> Iterator[int]:
    """Return all ports of the range again and again; each process starts elsewhere, since tests run in several."""
    start = os.getpid() * 97 % _COUNT
    return (_FIRST + (start + number) % _COUNT for number in itertools.count())


_ports = _candidates()


def _is_free(port: int) -> bool:
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return free ports of loopback; no port is returned twice by one process before all others were."""
    return list(itertools.islice(filter(_is_free, _ports), count))


def free_port() -> int:
    return free_ports(1)[0]
