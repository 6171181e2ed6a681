"""File descriptors: how many this process may open, and how many are left for connections."""

import resource
import sys
from pathlib import Path
from typing import Final

RESERVED: Final = 128
"""Descriptors kept back for the service: /proc, the driver's device files, the API server, certificates.
A port takes some of them for a moment while it accepts and closes connections
(`service.http.bounded_server.ACCEPTED_PER_TURN`)."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit, and return it.

    A connection takes a descriptor, and the usual soft limit is 1024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def descriptors_for_connections() -> int:
    """Raise the limit, and return how many descriptors connections may take.

    At least half of a low limit is reserved, so that the service works under `ulimit -n 64` too.

    Raises:
        OSError: /proc/self/fd cannot be read.
    """
    limit = raise_descriptor_limit()
    return max(0, limit - min(RESERVED, limit // 2) - len(list(Path("/proc/self/fd").iterdir())))
