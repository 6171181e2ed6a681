"""Requests with `dryRun=All`: all webhooks and admission policies run, and nothing is stored."""

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kai import keys
from kube.client import KubeClient
from kube.errors import ApiError

_NO_RIGHT = re.compile(r'cannot (create|delete) resource "(pods|configmaps|podgroups)"')


_DRY: Final = {"dryRun": "All"}


async def dry_run(
    client: KubeClient,
    method: str,
    path: str,
    body: Mapping[str, Any],
) -> bytes:
    """Send an object by dry run; return the object as it would be stored.

    Raises:
        ApiError, Unreachable, kube.access.AccessError: as `KubeClient.request`.
    """
    return await client.request(method, path, params=_DRY, body=msgspec.json.encode(body))


async def dry_run_deletion(client: KubeClient, path: str) -> None:
    """Delete an object by dry run.

    The API server ignores the parameters of a deletion that has a body (k8s.io/apiserver delete.go), so that
    both say it.

    Raises:
        ApiError, Unreachable, kube.access.AccessError: as `KubeClient.request`.
    """
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]}
    await client.request("DELETE", path, params=_DRY, body=msgspec.json.encode(options))


def missing_right(error: ApiError) -> str:
    """Return the right that RBAC denied, such as `create pods`; empty if the request failed otherwise."""
    match = _NO_RIGHT.search(error.message) if error.is_forbidden else None
    return f"{match[1]} {match[2]}" if match else ""


def unlikely_name() -> str:
    """Return a name that no object has."""
    return f"kaishare-doctor-{secrets.token_hex(4)}"


def minimal_pod(**metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return a pod that the strictest pod security level and most quotas admit."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": unlikely_name(), **metadata},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.k8s.io/pause:3.10",
                    "resources": {
                        "requests": {"cpu": "1m", "memory": "1Mi"},
                        "limits": {"cpu": "10m", "memory": "16Mi"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "runAsNonRoot": True,
                        "runAsUser": 65535,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }
            ],
        },
    }


def with_gpu(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod with a request for one whole GPU."""
    (container,) = pod["spec"]["containers"]
    container["resources"]["limits"][keys.GPU_RESOURCE] = "1"
    return pod
