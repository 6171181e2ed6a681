"""No eviction without consent that was true at a quorum read at most 5 s before, in generated histories."""

import itertools
from collections import Counter

import pytest

from gpuagent.actions.eviction_rules import Budget
from tests.support.eviction_histories import BUDGET, History, with_older_consent
from tests.support.markers import sampled

HISTORIES = 500


@pytest.mark.parametrize("part", sampled(range(20), 20))
def test_no_generated_history_has_an_eviction_without_fresh_consent(part: int) -> None:
    results: Counter[str] = Counter()
    sent = carried_out = 0
    for seed in range(part * HISTORIES, (part + 1) * HISTORIES):
        history = History(seed).run()
        assert not history.violations
        times = history.client.carried_out
        if not history.has_lost_records:
            pairs = itertools.pairwise(times)
            assert all(later - sooner >= BUDGET.seconds for sooner, later in pairs), f"seed {seed}: {times}"
        results += history.results
        sent += len(history.client.sent)
        carried_out += len(times)
    assert sent > HISTORIES / 10, "most histories must come close to an eviction"
    assert carried_out > HISTORIES / 20
    reasons = (
        "consent-withdrawn pod-changed gone terminating not-running forbidden failed disruption-budget budget"
    )
    for result in ("evicted", "owner-backoff", *reasons.split()):
        assert results[result] > HISTORIES / 1000, (result, results)


@pytest.mark.nightly
def test_the_check_finds_consent_that_is_too_old() -> None:
    with with_older_consent(60.0):
        assert any(History(seed, budget=Budget(9, 1)).run().violations for seed in range(500))
