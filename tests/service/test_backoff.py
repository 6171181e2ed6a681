"""Token buckets and back-off."""

import pytest

from service.backoff import JITTER_AROUND, JITTER_DOWN, JITTER_UP, Backoff, Jitter, TokenBucket


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


def test_waits_double_up_to_the_longest_and_start_again_after_a_reset() -> None:
    backoff = Backoff(first=0.5, most=3.0)
    assert [backoff.step() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.step(at_least=7.0) == 7.0
    assert backoff.step() == 3.0, "a Retry-After does not lengthen later waits"
    backoff.reset()
    assert backoff.step() == 0.5


@pytest.mark.parametrize("jitter", [JITTER_DOWN, JITTER_AROUND, JITTER_UP])
def test_jitter_stays_in_its_range_and_does_not_add_up(jitter: Jitter) -> None:
    backoff = Backoff(first=1.0, most=64.0, jitter=jitter)
    for step in range(20):
        assert jitter[0] <= backoff.step() / min(2**step, 64) <= jitter[1]


def test_a_wait_ends_at_its_time_or_early() -> None:
    backoff = Backoff(first=10.0, most=40.0)
    assert backoff.is_due(0.0)
    backoff.back_off(100.0)
    assert (backoff.is_due(109.9), backoff.is_due(110.0)) == (False, True)
    backoff.back_off(110.0, at_least=30.0)
    assert backoff.due_at == 140.0
    backoff.end_wait()
    assert backoff.is_due(110.0)
    backoff.back_off(110.0)
    assert backoff.due_at == 150.0, "the end of a wait does not shorten the next one"
