"""Work that goes on after its errors."""

import asyncio

import pytest

from service.tasks import restart_on_error


async def test_work_restarts_after_an_error_and_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.tasks.AGAIN_SECONDS", 0.001)
    errors: list[str] = []
    begun = 0
    going_on = asyncio.Event()

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise ZeroDivisionError("first")
        if begun > 2:
            going_on.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(restart_on_error(work, on_error=lambda error: errors.append(str(error))))
    await asyncio.wait_for(going_on.wait(), 5)
    assert errors == ["first"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
