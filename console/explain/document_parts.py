"""Parts of a parsed document whose types nothing has checked. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from service.documents import DocumentError


def as_map(value: Any) -> dict[str, Any]:
    """Return a map as it is; empty for another value."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list as it is; empty for another value."""
    return value if isinstance(value, list) else []


def as_maps(value: Any) -> list[dict[str, Any]]:
    """Return the maps of a list; empty for another value."""
    return [item for item in as_list(value) if isinstance(item, dict)]


def texts(entries: Any) -> dict[str, str]:
    """Return the entries of a map whose values are texts; empty for another value."""
    return {key: value for key, value in as_map(entries).items() if isinstance(value, str)}


def annotations_of(document: Any) -> dict[str, Any]:
    """Return the annotations of an object; empty if there are none."""
    return as_map(as_map(as_map(document).get("metadata")).get("annotations"))


def with_containers(
    spec: Any,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    groups: Sequence[str] = ("containers", "initContainers"),
) -> Any:
    """Return a pod's spec with changed containers; what is no map or no list stays as it is.

    Args:
        spec: the spec, which is not changed.
        change: returns a container in place of another.
        groups: the lists of containers to change.
    """
    lists = {group: spec[group] for group in groups if isinstance(as_map(spec).get(group), list)}
    changed = {
        group: [change(container) if isinstance(container, dict) else container for container in containers]
        for group, containers in lists.items()
    }
    return spec | changed if changed else spec


def as_json(document: Any) -> bytes:
    """Encode a parsed document as JSON. YAML dates become text, as in kubectl.

    Raises:
        DocumentError: the document contains a value that JSON cannot represent.
    """
    try:
        return msgspec.json.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentError(f"a manifest cannot be represented in JSON: {error}") from None
