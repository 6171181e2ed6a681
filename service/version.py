"""Which kaishare this is."""

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the installed version of kaishare, or `unknown` when run from a bare checkout.

    The package's METADATA file is read once: a scrape must not fail while no descriptor is free.
    """
    try:
        return metadata.version("kaishare")
    except metadata.PackageNotFoundError:
        return "unknown"
