"""Simulated mutating webhooks of other components: KAI's, and a sidecar injector."""

import base64
from collections.abc import Callable
from typing import Any

import jsonpatch

from kai import keys
from tests.support.kai_standin import mutated_by_kai
from tests.support.kinds import made
from tests.support.webhook_recorder import Recorder, Reply

KAI_NAME = "mutating-kai-admission"


def others_configuration(name: str, other: Recorder, *, condition: str = "") -> dict[str, Any]:
    """Return a mutating webhook of another component for all pods of managed namespaces."""
    webhook = {
        "name": f"{name}.example.invalid",
        "clientConfig": {"url": other.url, "caBundle": base64.b64encode(other.ca_bundle).decode()},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        ],
        "namespaceSelector": {"matchExpressions": [{"key": keys.QUEUE_LABEL, "operator": "Exists"}]},
        "matchConditions": [{"name": "condition", "expression": condition}] if condition else [],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    return made("MutatingWebhookConfiguration", name, webhooks=[webhook])


def kai_configuration(kai: Recorder) -> dict[str, Any]:
    """Return KAI's configuration since 0.13, for pods with its scheduler (resources.go of KAI v0.13.0)."""
    condition = f"object.spec.schedulerName == '{keys.SCHEDULER_NAME}'"
    return others_configuration(KAI_NAME, kai, condition=condition)


def patching(mutate: Callable[[dict[str, Any]], dict[str, Any]]) -> Reply:
    """Return the answers of a webhook that changes a pod with a function."""

    def reply(request: dict[str, Any]) -> list[dict[str, Any]]:
        pod = request["object"]
        patch: list[dict[str, Any]] = jsonpatch.make_patch(pod, mutate(pod)).patch
        return patch

    return reply


def as_kai(pod: dict[str, Any]) -> dict[str, Any]:
    """Change a pod as KAI (0.9.12 or newer) does: connect the container of the share."""
    annotations = pod["metadata"].get("annotations", {})
    if not annotations.keys() & {keys.GPU_FRACTION, keys.GPU_MEMORY}:
        return pod
    names = [container["name"] for container in pod["spec"]["containers"]]
    named = annotations.get(keys.CONTAINER_NAME, names[0])
    return mutated_by_kai(pod, container=names.index(named))


def with_sidecar_in_front(pod: dict[str, Any]) -> dict[str, Any]:
    containers = pod["spec"]["containers"]
    if any(container["name"] == "sidecar" for container in containers):
        return pod
    sidecar = {"name": "sidecar", "image": "example.invalid/sidecar", "resources": {}}
    return {**pod, "spec": {**pod["spec"], "containers": [sidecar, *containers]}}
