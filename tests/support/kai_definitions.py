"""KAI's kinds on a real API server, with the part of their definitions that storing objects needs."""

import asyncio
from typing import Any

from kube.answers import ApiError
from tests.support.administrator import Administrator


def definition(api_version: str, kind: str, *, is_namespaced: bool = True) -> dict[str, Any]:
    """Return a CustomResourceDefinition without a schema; the resource is the kind in small letters and an s."""
    group, _, version = api_version.partition("/")
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced" if is_namespaced else "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [served],
        },
    }


DEFINITIONS = (
    definition("scheduling.run.ai/v2alpha2", "PodGroup"),
    definition("scheduling.run.ai/v1alpha2", "BindRequest"),
    definition("scheduling.run.ai/v2", "Queue", is_namespaced=False),
    definition("kai.scheduler/v1", "SchedulingShard", is_namespaced=False),
)


async def define(admin: Administrator, *definitions: dict[str, Any]) -> None:
    """Create definitions, and wait until the API server serves their kinds."""
    for each in definitions:
        await admin.ensure(each)
        spec = each["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        for _ in range(200):
            try:
                await admin.client.get(path)
                break
            except ApiError:  # a new definition is served after a short delay
                await asyncio.sleep(0.05)
        else:
            raise AssertionError(f"not served: {path}")
