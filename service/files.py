"""How many files and connections this process may have open."""

import resource


def allow_many_files() -> None:
    """Raise the soft limit to the hard one: each connection is a file, and 1024 are few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
