"""Pods that are created at a steady rate while a test changes the installation."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.rollout import is_mutated
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from tests.support.cluster_webhook import bare_pod

RATE = 40.0
"""Creations per second, in all namespaces together."""


@dataclass(kw_only=True)
class Creations:
    """The results of pods that were created as dry runs, in turn in each namespace."""

    client: KubeClient
    namespaces: Sequence[str]
    rate: float = RATE
    made: int = 0
    changed: int = 0
    """Pods with queue and share."""
    pods: list[dict[str, Any]] = field(default_factory=list)
    """The admitted pods, as the API server would store them."""
    failed: list[str] = field(default_factory=list)
    bad_times: dict[str, list[float]] = field(default_factory=dict)
    """By namespace: when pods were refused or left unchanged, in seconds of `time.monotonic`."""
    is_over: bool = False

    async def run(self) -> None:
        for number in itertools.count():
            if self.is_over:
                return
            began = time.monotonic()
            namespace = self.namespaces[number % len(self.namespaces)]
            path, body = (
                f"/api/v1/namespaces/{namespace}/pods",
                json.dumps(bare_pod(f"pod-{number}")).encode(),
            )
            try:
                answer = await self.client.request("POST", path, params={"dryRun": "All"}, body=body)
                self.pods.append(json.loads(answer))
                is_changed = is_mutated(self.pods[-1])
            except (ApiError, Unreachable) as error:
                self.failed.append(f"{namespace}: {error}")
                is_changed = False
            self.made += 1
            self.changed += is_changed
            if not is_changed:
                self.bad_times.setdefault(namespace, []).append(began)
            await asyncio.sleep(max(0.0, 1 / self.rate - (time.monotonic() - began)))

    def gap(self, namespace: str) -> float:
        """Return the time in seconds between the first and the last pod that was refused or left unchanged."""
        times = self.bad_times.get(namespace, [0.0])
        return times[-1] - times[0]

    def assert_none_is_lost(self) -> None:
        """Assert that each of enough pods was admitted with queue and share."""
        assert self.failed == []
        assert self.changed == self.made, f"{self.made - self.changed} of {self.made} pods are unchanged"
        assert self.made > RATE


@contextlib.asynccontextmanager
async def created_throughout(
    client: KubeClient, *namespaces: str, rate: float = RATE
) -> AsyncIterator[Creations]:
    """Create pods from a second before the block until a second after it."""
    creations = Creations(client=client, namespaces=namespaces, rate=rate)
    creating = asyncio.create_task(creations.run())
    try:
        await asyncio.sleep(1)
        yield creations
        await asyncio.sleep(1)
    finally:
        creations.is_over = True
        await creating
