"""Token buckets."""

import pytest

from service.backoff import TokenBucket


def test_a_token_bucket_allows_its_burst_and_then_its_rate() -> None:
    now = [100.0]
    bucket = TokenBucket(per_second=0.5, burst=2, clock=lambda: now[0])
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    assert bucket.seconds_until_next() == pytest.approx(2.0)
    now[0] += 1.9
    assert not bucket.take()
    now[0] += 0.1
    assert [bucket.take(), bucket.take()] == [True, False]
    now[0] += 3600
    assert [bucket.take() for _ in range(3)] == [True, True, False], "never more than the burst"
    now[0] -= 3600
    assert not bucket.take(), "a clock that goes back brings nothing"
