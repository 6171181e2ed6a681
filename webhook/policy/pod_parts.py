"""Pods as documents: parts whose types nothing has checked, and what the API server fills in.

Sources: Kubernetes 1.36 pkg/apis/core/v1/defaults.go (SetDefaults_PodSpec, SetDefaults_Pod), apimachinery
pkg/api/resource/quantity.go (UnmarshalJSON), and plugin/pkg/admission/limitranger/admission.go
(mergePodResourceRequirements). The order is decoding, defaults, the plugins LimitRanger and Priority, then
webhooks (seen on Kubernetes 1.36.3). Pure.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kai import keys
from kube.kinds import LimitRange
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
    """Return a pod's spec with changed containers; what is no map or no list stays as it is."""
    changed = {
        group: [change(each) if isinstance(each, dict) else each for each in spec[group]]
        for group in groups
        if isinstance(as_map(spec).get(group), list)
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


def filled_in(pod: dict[str, Any], defaults: Sequence[LimitRange] = ()) -> dict[str, Any]:
    """Return the pod with the fields that decisions read and that the API server fills in.

    These are the scheduler's name, requests that equal their limits, and the defaults of LimitRanges. A value
    that the API server would refuse stays. The given pod is not changed.
    """
    spec = pod.get("spec")
    if isinstance(spec, dict):
        filled = with_containers(spec, lambda container: _with_amounts(container, defaults))
        scheduler = {} if spec.get("schedulerName") else {"schedulerName": keys.DEFAULT_SCHEDULER}
        pod = {**pod, "spec": filled | scheduler}
    return normalized(pod)


def _with_amounts(container: dict[str, Any], defaults: Sequence[LimitRange]) -> dict[str, Any]:
    """Return a container whose missing requests equal its limits, with the defaults of LimitRanges."""
    resources = container.get("resources") or {}
    if not isinstance(resources, dict):
        return container
    limits, requests = resources.get("limits"), resources.get("requests") or {}
    if limits and isinstance(limits, dict) and isinstance(requests, dict):
        resources = {**resources, "requests": {**limits, **requests}}
    for added in defaults:
        for part, amounts in zip(("limits", "requests"), added.container_defaults(), strict=True):
            given = resources.get(part)
            if amounts and (given is None or isinstance(given, dict)):
                resources = {**resources, part: {**amounts, **(given or {})}}
    return {**container, "resources": resources} if resources else container


def normalized(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as the API server writes it after decoding.

    Labels, annotations and amounts are in the order of their keys. A null amount is 0, a null name is empty,
    and white space around an amount is removed. The given pod is not changed.
    """
    written = dict(pod)
    metadata = pod.get("metadata")
    if isinstance(metadata, dict):
        written["metadata"] = metadata | _sorted_parts(metadata, ("labels", "annotations"))
    if "spec" in pod:
        written["spec"] = with_containers(pod["spec"], _normalized_container)
    return written


def _sorted_parts(parent: dict[str, Any], parts: Sequence[str]) -> dict[str, Any]:
    """Return maps in the order in which Go writes them: by the bytes of the keys, which is by code points."""
    maps = {part: parent[part] for part in parts if isinstance(parent.get(part), dict)}
    return {part: dict(sorted(each.items(), key=lambda entry: str(entry[0]))) for part, each in maps.items()}


def _normalized_container(container: dict[str, Any]) -> dict[str, Any]:
    written = container | ({"name": ""} if container.get("name", "") is None else {})
    resources = as_map(written.get("resources"))
    amounts = _sorted_parts(resources, ("limits", "requests"))
    for part in amounts.values():
        for name, amount in part.items():
            part[name] = "0" if amount is None else amount.strip() if isinstance(amount, str) else amount
    return {**written, "resources": resources | amounts} if amounts else written
