"""Creates admission policies and their bindings in a cluster."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from console.render.policy_manifests import MUTATING, VALIDATING, objects_of
from kube.client import KubeClient
from tests.support.cluster_webhook import Canary, ensure_namespaces
from tests.support.kinds import list_path
from webhook.policy.decision_settings import DecisionSettings

__all__ = ["applied", "list_path", "policies_installed"]


@asynccontextmanager
async def policies_installed(client: KubeClient, *namespaces: Mapping[str, Any]) -> AsyncIterator[None]:
    """Install kaishare's admission policies; wait until pods of the first namespace are changed."""
    await ensure_namespaces(client, *namespaces)
    canary = Canary(client, namespaces[0]["metadata"]["name"])
    async with applied(
        client, [*objects_of(MUTATING, DecisionSettings()), *objects_of(VALIDATING, DecisionSettings())]
    ):
        await canary.until_mutated()
        yield
    await canary.until_unchanged()


@asynccontextmanager
async def applied(client: KubeClient, items: Sequence[Mapping[str, Any]]) -> AsyncIterator[None]:
    """Create policies and bindings, and delete them at the end.

    A change takes effect after about a second (Kubernetes 1.36.3).
    """
    made = []
    try:
        for item in items:
            path = list_path(item["kind"])
            await client.request("POST", path, body=json.dumps(item).encode())
            made.append(f"{path}/{item['metadata']['name']}")
        yield
    finally:
        for path in reversed(made):
            await client.request("DELETE", path)
