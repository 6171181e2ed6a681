"""The installed version of kaishare."""

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the installed version of kaishare, or `unknown` without an installed package.

    The package's METADATA file is read once, so that a scrape succeeds while no descriptor is free.
    """
    try:
        return metadata.version("kaishare")
    except metadata.PackageNotFoundError:
        return "unknown"
