"""Which kaishare this is."""

from importlib import metadata


def version() -> str:
    """Return the installed version of kaishare, or `unknown` when run from a bare checkout."""
    try:
        return metadata.version("kaishare")
    except metadata.PackageNotFoundError:
        return "unknown"
