"""What follows from verdicts beyond metrics: Events. Only where pods come from the API server."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from gpuagent.judged import Judged
from gpuagent.report.events import COMPONENT, FlagEvents
from kube.client import KubeClient
from kube.events import EventWriter
from service.log import INFO, WARNING, JsonLog

_BEGIN_ANEW_SECONDS: Final = 30.0


class Consequences:
    """Tells people of flags. Metrics and verdicts go on whatever becomes of it."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `run` does it.

        Args:
            client: to the API server.
            node: name of this node.
            log: where trouble is said.
            clock: monotonic seconds.
        """
        self.events: Counter[tuple[str, str]] = Counter()
        """By reason and result."""
        self._log = log
        self._writer = EventWriter(
            client,
            component=COMPONENT,
            host=node,
            on_result=lambda reason, result: self.events.update([(reason, result)]),
            on_trouble=self._say_trouble,
            clock=clock,
        )
        self._flags = FlagEvents(self._writer, clock=clock)

    def take(self, judged: Judged) -> None:
        """Take the newest verdicts. Never waits."""
        self._flags.take(judged.snapshot, judged.transitions)

    async def run(self) -> None:
        """Do what there is to do until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_up(self._writer.run, "Events"))

    async def _keep_up(self, run: Callable[[], Awaitable[None]], what: str) -> None:
        """Run something that must not take the agent with it, whatever becomes of it."""
        while True:
            try:
                await run()
            except Exception as error:  # noqa: BLE001 - nobody foresaw it, and measuring goes on
                self._log.failure(f"{what} failed, and begin anew", error)
            await asyncio.sleep(_BEGIN_ANEW_SECONDS)

    def _say_trouble(self, problem: str) -> None:
        if problem:
            self._log("trouble with writing Events", WARNING, error=problem)
        else:
            self._log("Events are written again", INFO)
