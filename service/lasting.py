"""Work that must not end a service by an error of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

AGAIN_SECONDS: Final = 5.0
"""How long after an error the work is begun anew."""


async def lasting(work: Callable[[], Awaitable[None]], *, on_error: Callable[[Exception], None]) -> None:
    """Do the work until cancelled, anew after each error.

    Args:
        work: what to do; it ends by an error or by being cancelled.
        on_error: told the error.
    """
    while True:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - an error nobody thought of; what goes on can go on
            on_error(error)
        await asyncio.sleep(AGAIN_SECONDS)
