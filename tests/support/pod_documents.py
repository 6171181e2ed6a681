"""Reads pods as JSON: containers, whole GPUs, labels and annotations."""

import json
from collections.abc import Iterator
from typing import Any

from kai import keys
from kai.pod import PodView
from tests.support.pods import GPU, view

SHARES = (keys.GPU_FRACTION, keys.GPU_MEMORY)


def entries(document: Any, part: str) -> dict[str, Any]:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return (metadata or {}).get(part) or {}


def groups(document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for group in ("containers", "initContainers"):
        for container in document["spec"].get(group) or ():
            yield group, container


def containers_of(document: Any) -> list[dict[str, Any]]:
    return [container for _, container in groups(document)]


def named_gpus(container: dict[str, Any]) -> dict[str, Any]:
    """nvidia.com/gpu in the requests and limits of a container."""
    resources = container.get("resources") or {}
    amounts_by_kind = {kind: resources.get(kind) or {} for kind in ("requests", "limits")}
    return {kind: amounts[GPU] for kind, amounts in amounts_by_kind.items() if GPU in amounts}


def exact(document: Any) -> str:
    """A document as text: 1 is not 1.0, and the order of keys counts."""
    return json.dumps(document)


def counted(container: dict[str, Any]) -> float:
    """Whole GPUs a container asks for, by its limit, else its request; -1 for any other value."""
    gpus = named_gpus(container)
    text = str(gpus.get("limits", gpus.get("requests", 0)))
    try:
        number = float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
    except ValueError:
        return -1
    return number if number >= 0 and number.is_integer() else -1


def as_kais(document: Any) -> PodView:
    return view(document | {"spec": document["spec"] | {"schedulerName": keys.SCHEDULER_NAME}})
