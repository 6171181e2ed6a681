"""How many files and connections this process may have open."""

import resource
import sys


def allow_many_files() -> int:
    """Raise the soft limit to the hard one, since each connection is a file and 1024 are few; return it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return sys.maxsize if most == resource.RLIM_INFINITY else most
