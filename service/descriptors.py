"""Limit of open file descriptors, and the number available for connections."""

import resource
import sys
from pathlib import Path
from typing import Final

RESERVED: Final = 128
"""Descriptors reserved for the service: /proc, the driver's device files, the API server, certificates.
A port briefly uses some of them while it accepts and closes connections
(`service.http.bounded_server.ACCEPTED_PER_TURN`)."""


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
    return max(0, limit - min(RESERVED, limit // 2) - len(list(Path("/proc/self/fd").iterdir())))
