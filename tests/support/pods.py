"""Short forms for pods in tests."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from kai.pod import PodView, decode_pod

GPU = "nvidia.com/gpu"


def container(name: str = "main", **fields: Any) -> dict[str, Any]:
    """Return a container; `limits=` and `requests=` set its resources."""
    resources = {kind: fields.pop(kind) for kind in ("limits", "requests", "claims") if kind in fields}
    made = {"name": name, "image": "example.invalid/image", **fields}
    return {**made, "resources": resources} if resources else made


def gpu_container(name: str = "main", count: Any = "1", **fields: Any) -> dict[str, Any]:
    """Return a container with whole GPUs as the API server stores it: limit and request."""
    return container(name, limits={GPU: count}, requests={GPU: count}, **fields)


def pod(
    *containers: dict[str, Any],
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    init: list[dict[str, Any]] | None = None,
    metadata: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a pod as a webhook receives it: with defaults such as `default-scheduler`."""
    meta: dict[str, Any] = {"name": "case", "namespace": "team-a", **(metadata or {})}
    if annotations is not None:
        meta["annotations"] = annotations
    if labels is not None:
        meta["labels"] = labels
    body = {"schedulerName": "default-scheduler", "containers": list(containers) or [container()], **spec}
    if init is not None:
        body["initContainers"] = init
    return copy.deepcopy({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body})


def view(document: Any) -> PodView:
    return decode_pod(json.dumps(document).encode())


def folder_from(variable: str, what: str) -> Path:
    """Return the folder in an environment variable; skip the test with instructions without the variable."""
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} must name a folder with {what}")
    path = Path(value)
    if not path.is_dir():
        pytest.fail(f"{variable}={value} is not a folder")
    return path
