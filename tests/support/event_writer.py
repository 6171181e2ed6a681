"""Runs a writer of Events in a test."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from kube.client import KubeClient
from kube.events import EventTiming, EventWriter
from tests.support.waiting import in_background, until

QUICK = EventTiming(per_second=1000.0, burst=100, first_pause=0.01, longest_pause=0.02)


@dataclass(kw_only=True)
class Run:
    writer: EventWriter
    results: Counter[tuple[str, str]]
    troubles: list[str]

    async def settled(self, **results: int) -> None:
        await until(lambda: {result: count for (_, result), count in self.results.items()} == results)


@contextlib.asynccontextmanager
async def writing(client: KubeClient, timing: EventTiming = QUICK, **options: Any) -> AsyncIterator[Run]:
    results: Counter[tuple[str, str]] = Counter()
    troubles: list[str] = []
    writer = EventWriter(
        client, component="kaishare-agent", host="node-1",
        on_result=lambda reason, result: results.update([(reason, result)]), on_trouble=troubles.append,
        timing=timing, **options,
    )  # fmt: skip
    async with in_background(writer.run()):
        yield Run(writer=writer, results=results, troubles=troubles)
