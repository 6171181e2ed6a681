"""KAI's kinds on a real API server, with the part of their definitions that storing objects needs."""

import asyncio
from typing import Any

from kube.answers import ApiError
from tests.support.administrator import Administrator
from tests.support.kinds import definition

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
