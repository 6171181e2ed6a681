"""No eviction without consent that was true at a quorum read at most 5 s before, in generated histories."""

import itertools
from collections import Counter

import pytest

from gpuagent.actions.consent import Consent, ConsentReader, NoConsent
from gpuagent.actions.eviction_rules import Budget
from gpuagent.verdicts.over_share import OverSharePolicy
from gpuagent.verdicts.verdict import Verdict
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
    for result in (
        "evicted",
        "consent-withdrawn",
        "pod-changed",
        "gone",
        "terminating",
        "not-running",
        "forbidden",
        "failed",
        "disruption-budget",
        "budget",
        "owner-backoff",
    ):
        assert results[result] > HISTORIES / 1000, (result, results)


def violations(histories: int) -> int:
    return sum(bool(History(seed, budget=Budget(9, 1)).run().violations) for seed in range(histories))


@pytest.mark.nightly
def test_the_check_finds_consent_that_is_too_old() -> None:
    with with_older_consent(60.0):
        assert violations(500) > 0


@pytest.mark.nightly
def test_the_check_finds_consent_that_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ConsentReader.read
    remembered: dict[int, Consent | NoConsent] = {}

    async def once(
        reader: ConsentReader, verdict: Verdict, policy: OverSharePolicy, *, accepts_edits: bool = False
    ) -> Consent | NoConsent:
        if id(reader) not in remembered or isinstance(remembered[id(reader)], NoConsent):
            remembered[id(reader)] = await read(reader, verdict, policy, accepts_edits=accepts_edits)
        answer = remembered[id(reader)]
        return Consent(read_at=reader._clock()) if isinstance(answer, Consent) else answer

    monkeypatch.setattr(ConsentReader, "read", once)
    assert violations(500) > 0
