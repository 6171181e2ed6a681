"""A LimitRange's default for nvidia.com/gpu, which the API server adds after the first round of webhooks."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.administrator import Administrator
from tests.support.cluster_webhook import Serving, bare_pod, installed, managed_namespace
from tests.support.control_plane import ControlPlane
from tests.support.waiting import until

GPU = "nvidia.com/gpu"
NAMESPACE = managed_namespace("limited", gpu_fraction="0.5", priority="train")


def reasons(webhook: Serving, pod: dict[str, Any]) -> list[str]:
    """The reasons of the webhook's decisions about a pod, round by round."""
    name = pod["metadata"]["name"]
    return [line["reason"] for line in webhook.logged("decision") if line["name"] == name]


@pytest.mark.parametrize("amount", ["0", "1"])
async def test_a_gpu_from_a_limit_range_is_removed_again(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, amount: str
) -> None:
    async with installed(plane, admin.client, tmp_path, NAMESPACE) as webhook:
        limits = {"limits": [{"type": "Container", "default": {GPU: amount}}]}
        metadata = {"name": f"gives-{amount}", "namespace": "limited"}
        await admin.create({"kind": "LimitRange", "metadata": metadata, "spec": limits})
        numbers = count()

        async def decided_twice() -> dict[str, Any] | None:
            """Create a pod; the API server applies the LimitRange only after a moment."""
            wanted = bare_pod(f"put-back-{amount}-{next(numbers)}", namespace="limited")
            pod = await admin.create(wanted)
            await until(lambda: reasons(webhook, wanted), "the pod is decided about")
            twice = reasons(webhook, wanted) == ["whole-gpu-converted", "gpu-removed-again"]
            return pod if twice else None

        pod = await until(decided_twice, "a pod is decided about twice")
        assert pod["metadata"]["annotations"]["gpu-fraction"] == "0.5"
        for container in pod["spec"]["containers"]:
            for kind in ("limits", "requests"):
                assert GPU not in container.get("resources", {}).get(kind, {})
