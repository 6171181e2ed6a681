"""Thousands of reviews, whole and damaged, one after another: none fails, no memory is kept."""

import gc
import io
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

from benchmarks.generated import POLICIES, Reviews, Sent
from tests.support.webhook_process import Connection, serving
from webhook.namespaces.file_policies import FilePolicies

REVIEWS = 500
BYTES_A_REVIEW = 40
"""Less than any object that each review would leave behind; a part of a run may still fill a cache."""


async def test_thousands_of_reviews(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES)
    reviews, answered = iter(Reviews(20)), Counter[tuple[str, int]]()
    async with serving(tmp_path, FilePolicies(tmp_path / "policies.yaml"), log_to=Nowhere()) as live:
        connection = await live.connect()
        for sent in islice(reviews, REVIEWS):
            reply = await connection.post(sent.body, sent.path)
            answered[sent.path, reply.status] += 1
        tracemalloc.start()
        try:
            await send(connection, reviews, 500)
            sizes = [traced()]
            for _ in range(3):
                await send(connection, reviews, 500)
                sizes.append(traced())
        finally:
            tracemalloc.stop()
    assert {status for _, status in answered} == {200, 400}
    assert min(answered.values()) > REVIEWS / 50
    assert min(after - before for before, after in pairwise(sizes)) < 500 * BYTES_A_REVIEW


async def send(connection: Connection, reviews: Iterator[Sent], count: int) -> None:
    for sent in islice(reviews, count):
        await connection.post(sent.body, sent.path)


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


class Nowhere(io.BytesIO):
    """A stream that discards its input."""

    def write(self, data: object) -> int:
        return len(bytes(data))  # type: ignore[call-overload]
