"""Requests about pods and owners to an API server with the guard, and what their answers must be."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.support.kube_user import Answer

KUBELET = "system:node:gpu-node-0"
GROUP = {"runai-gpu-group": "63ba70c6"}
"""The label that KAI's binder writes to a pod with a share."""
WHOLE_GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}


def changes(
    labels: Mapping[str, str | None] | None = None, annotations: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """Return a patch of labels and annotations; None removes one."""
    return {"metadata": {"labels": labels or {}, "annotations": annotations or {}}}


async def admitted(request: Any) -> Answer:
    """Await a request, which must be admitted; return its answer."""
    answer: Answer = await request
    assert answer.status in (200, 201), answer.message
    return answer


async def refused(request: Any, *words: str) -> None:
    answer: Answer = await request
    assert answer.status == 403, answer
    assert "ValidatingAdmissionPolicy 'kaishare-guard-" in answer.message
    for word in words:
        assert word in answer.message


async def until_answered(ask: Callable[[], Awaitable[Answer]], is_it: Callable[[Answer], bool]) -> Answer:
    """Repeat a request until its answer is the expected one; return the last answer after ten seconds."""
    ends = time.monotonic() + 10
    while True:
        answer = await ask()
        if is_it(answer) or time.monotonic() > ends:
            return answer
        await asyncio.sleep(0.02)
