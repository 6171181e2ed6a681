"""Runs a watch in a test."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kube.client import KubeClient
from kube.watch import Key, Resource, Watch, WatchTiming
from tests.support.api_server import PODS
from tests.support.waiting import in_background

QUICK = WatchTiming(watch=1, grace=0.2, first_pause=0.01, longest_pause=0.04, healthy_after=0.1)
"""Timing about 500 times as fast as in production."""


@dataclass
class Running:
    watch: Watch[Any]
    troubles: list[str] = field(default_factory=list)
    changes: list[set[str]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    @property
    def names(self) -> set[str]:
        return {name for _, name in self.watch.objects}


@contextlib.asynccontextmanager
async def running(
    client: KubeClient, *, timing: WatchTiming = QUICK, resource: Resource | None = None, **options: Any
) -> AsyncIterator[Running]:
    troubles: list[str] = []
    changes: list[set[str]] = []

    def changed(objects: Mapping[Key, Any]) -> None:
        changes.append({name for _, name in objects})

    watch: Watch[Any] = Watch(
        client, resource or Resource(name="pods", path=PODS), timing=timing, on_change=changed,
        on_trouble=troubles.append, **{"read": json.loads, **options},
    )  # fmt: skip
    async with in_background(watch.run()) as task:
        yield Running(watch, troubles, changes, task)
