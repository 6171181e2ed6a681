"""Invariants that hold for every pod under every policy, unusual ones included."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.pod_documents import exact
from tests.support.pod_invariants import INVARIANTS, Outcome
from tests.support.pod_strategies import MANY, Case, cases, unknown_fields
from webhook.policy.patch import mutate
from webhook.policy.reasons import Action, Reason


@MANY
@given(cases())
def test_every_invariant_holds_for_every_pod(case: Case) -> None:
    """One test, so that every property meets every pod: the name of the one that fails is in the traceback."""
    outcome = Outcome(case)
    for invariant in INVARIANTS:
        invariant(outcome)


@MANY
@given(cases(), unknown_fields, st.booleans())
def test_unread_fields_change_no_decision(case: Case, unknown: dict[str, Any], reverse: bool) -> None:
    document = case.document | unknown
    document["spec"] = document["spec"] | unknown
    if reverse:
        document = {key: document[key] for key in reversed(document)}
    plain, other = (mutate(case.policy, exact(d).encode(), case.rules) for d in (case.document, document))
    assert (other.decision, other.planned) == (plain.decision, plain.planned)


REACHED = {
    Reason.WHOLE_GPU_CONVERTED, Reason.SHARE_INJECTED, Reason.OWN_SHARE, Reason.NO_GPU, Reason.SEVERAL_GPUS,
    Reason.UNCLEAR_QUANTITY, Reason.INIT_CONTAINER_GPU, Reason.NAME_UNSUPPORTED, Reason.CONTAINER_NOT_FIRST,
    Reason.WHOLE_GPU_KEPT, Reason.MIG, Reason.RESOURCE_CLAIMS, Reason.SHARES_OFF, Reason.NO_DEFAULT_SHARE,
    Reason.POLICY_INVALID, Reason.MODE_OFF, Reason.NAMESPACE_EXCLUDED, Reason.OTHER_SCHEDULER, Reason.OPTED_OUT,
    Reason.DAEMONSET, Reason.MIRROR_POD, Reason.NODE_NAME_SET, Reason.SIZE_UNKNOWN, Reason.SIZE_AMBIGUOUS,
    Reason.SIZE_WHOLE_GPU, Reason.DISTRIBUTED,
}  # fmt: skip


@pytest.mark.nightly
def test_the_generated_cases_reach_every_outcome() -> None:
    """Properties of pods that are all left alone would say nothing.

    Always the same pods here: this is about the strategies, and chance is not to fail it.
    """
    seen, actions = Counter[Reason](), Counter[Action]()

    @settings(MANY, max_examples=2000, phases=[Phase.generate], derandomize=True)
    @given(cases())
    def look(case: Case) -> None:
        decision = mutate(case.policy, case.body, case.rules).decision
        seen[decision.reason] += 1
        actions[decision.action] += 1

    look()
    assert set(seen) >= REACHED, REACHED - set(seen)
    assert actions[Action.INJECTED] > seen.total() / 2
    assert seen[Reason.WHOLE_GPU_CONVERTED] > seen.total() / 20
    assert seen[Reason.SHARE_INJECTED] > seen.total() / 100
