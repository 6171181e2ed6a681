"""From verdicts to evictions: in which order, how often, and never without a fresh look."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.actions.consent import CONSENT_SECONDS
from gpuagent.actions.eviction_rules import (
    Budget,
    EvictionBudget,
    EvictionRefusal,
    NotEvicted,
    PastEviction,
    owner_key,
)
from gpuagent.evaluation.status import Evaluation
from gpuagent.pods.inventory import NodePod
from gpuagent.shares.pod_share import PodShare
from kube.answers import ApiError, Unreachable
from kube.eviction import Evicted, EvictionAnswer
from service.backoff import KeyedBackoff
from service.log import JsonLog
from tests.support.evaluations import SHARE, Node, of_pod
from tests.support.running_evictor import OVER, YES, Desk, desk
from tests.support.samples import GIB, pod_share
from tests.support.virtual_time import run_in_virtual_time
from tests.support.waiting import until

NO = Evicted(EvictionAnswer.DISRUPTION_BUDGET, "the budget forbids it")
LOST = [YES, Evicted(EvictionAnswer.FAILED, "timeout")]
WITHDRAWN = NotEvicted(EvictionRefusal.CONSENT_WITHDRAWN, "the label is gone")
EDITED = NotEvicted(EvictionRefusal.POD_CHANGED, "edited")
FORBIDDEN = ApiError(403, "Forbidden", "no right to list events", "GET")
NOT_RECORDED = [ApiError(403, "Forbidden", "no right to create events", "POST"), Unreachable("no answer")]
MANY = Budget(9, 1)


def train(**fields: Any) -> PodShare:
    return of_pod(pod_share("train", SHARE), **fields)


def several(count: int, **fields: Any) -> dict[str, Any]:
    """Pods that use twice their share."""
    pod_shares = [of_pod(pod_share(f"pod-{number}", SHARE // count), **fields) for number in range(count)]
    used_bytes = {each.pod.name: SHARE // count * 2 for each in pod_shares}
    return {"node": Node(*pod_shares), "used_bytes": used_bytes}


def past(*ages: float, owner: str = "") -> list[PastEviction]:
    return [PastEviction(seconds_ago=age, owner=owner) for age in ages]


BESIDE = of_pod(pod_share("system", GIB), namespace="kube-system")
TRAIN_OWNER = owner_key(pod_share("train", SHARE))
Fields = Callable[[], dict[str, Any]]
# the evictor and its node; and (number of samples, seconds between them, results of all evictions until then).
HISTORIES: dict[str, tuple[Fields, list[tuple[int, float, dict[str, int]]]]] = {
    "an evicted pod is not evicted again while it leaves": (lambda: {"budget": MANY}, [(50, 60, {"evicted": 1})]),
    "the server's Retry-After": (lambda: {"answers": [replace(NO, retry_after=250.0)]},
        [(1, 5, {"disruption-budget": 1}), (1, 240, {"disruption-budget": 1}), (1, 20, {"disruption-budget": 1, "evicted": 1})]),
    "without an answer the API server may have carried it out: a slow one would cost a pod in each sample": (
        lambda: {"answers": LOST * 4, **several(4)}, [(100, 5, {"failed": 1, "owner-backoff": 1, "budget": 3})]),
    "without an answer the owner's back-off starts": (
        lambda: {"answers": LOST[:], "budget": MANY, **several(2, controller_uid="rs-1")},
        [(1, 5, {"failed": 1}), (1, 590, {"failed": 1, "owner-backoff": 2})]),
    **{f"the answer {answer}": (lambda answer=answer: {"answers": [Evicted(answer, "why")]}, [(1, 5, {answer: 1})])
       for answer in (EvictionAnswer.FORBIDDEN, EvictionAnswer.FAILED)},
    "a refusal after the dry run costs no budget": (lambda: {"answers": [YES, NO]},
        [(1, 5, {"disruption-budget": 1}), (1, 40, {"disruption-budget": 1, "evicted": 1})]),
    "a pod that is gone is not asked for again": (lambda: {"answers": [Evicted(EvictionAnswer.GONE, "not found")]},
        [(10, 600, {"gone": 1})]),
    "after one pod of an owner the next waits": (lambda: {"budget": MANY, **several(2, controller_uid="rs-1")},
        [(1, 5, {"evicted": 1}), (1, 590, {"evicted": 1, "owner-backoff": 1}), (1, 140, {"evicted": 2, "owner-backoff": 1})]),
    "a dry run keeps to the budget": (lambda: {"is_dry_run": True, **several(2)}, [(20, 5, {"dry-run": 1, "budget": 1})]),
    "a dry run reads no records": (lambda: {"is_dry_run": True, "past_errors": [FORBIDDEN]}, [(1, 5, {"dry-run": 1})]),
    "a protected pod delays no eviction": (
        lambda: {"node": Node(train(), BESIDE), "used_bytes": {"system": 8 * GIB, "train": OVER}},
        [(5, 5, {"excluded-namespace": 1, "evicted": 1})]),
    "a terminating pod": (lambda: {"node": Node(train(is_terminating=True))}, [(5, 5, {"terminating": 1})]),
    "a pod that does not run": (lambda: {"node": Node(train(phase="Pending"))}, [(5, 5, {"not-running": 1})]),
    "without consent": (lambda: {"consents": [WITHDRAWN]},
        [(1, 5, {"consent-withdrawn": 1}), (1, 40, {"consent-withdrawn": 1, "evicted": 1})]),
    "consent that is nearly too old": (lambda: {"consents": [CONSENT_SECONDS - 0.1], "fresh": 100.0}, [(1, 5, {"evicted": 1})]),
    **{f"consent that is {seconds} s old costs no budget": (
        lambda seconds=seconds: {"consents": [seconds], "fresh": 100.0},
        [(1, 5, {"failed": 1}), (1, 40, {"failed": 1, "evicted": 1})],
    ) for seconds in (CONSENT_SECONDS, 60.0)},
    "consent that expires while the eviction is recorded": (lambda: {"record_seconds": CONSENT_SECONDS}, [(1, 5, {"failed": 1})]),
    "an eviction that cannot be recorded costs no budget": (
        lambda: {"record_errors": NOT_RECORDED[:]},
        [(1, 5, {"forbidden": 1}), (1, 40, {"forbidden": 1, "failed": 1}), (1, 100, {"forbidden": 1, "failed": 1, "evicted": 1})],
    ),
    "the budget survives a restart": (lambda: {"past": past(100.0, owner="other")},
        [(1, 5, {"budget": 1}), (1, 480, {"budget": 1}), (1, 20, {"budget": 1, "evicted": 1})]),
    "the back-off of an owner survives a restart, 20 minutes after the second eviction": (
        lambda: {"budget": MANY, "past": past(1000.0, 300.0, owner=TRAIN_OWNER)},
        [(1, 5, {"owner-backoff": 1}), (1, 850, {"owner-backoff": 1}), (1, 340, {"owner-backoff": 1, "evicted": 1})]),
    "without readable records the budget starts with one eviction": (
        lambda: {"past_errors": [FORBIDDEN], "budget": Budget(3, 600), **several(4)}, [(10, 5, {"evicted": 1, "budget": 3})]),
    "Events do not cover a long budget's period": (lambda: {"budget": Budget(1, 6 * 3600)}, [(1, 5, {"budget": 1})]),
}  # fmt: skip
LINES = {
    "a dry run keeps to the budget": {"message": "pod would be evicted"},
    "a terminating pod": {"message": "pod not evicted", "result": "terminating", "pod": "train"},
    "the answer forbidden": {"why": "why"},
    "without consent": {"why": "the label is gone"},
    "without readable records the budget starts with one eviction": {
        "message": "past evictions unavailable",
        "error": str(FORBIDDEN),
        "problem": "the eviction budget starts with one eviction, and owners without a back-off",
    },
    "Events do not cover a long budget's period": {"problem": "Events do not cover the budget's period"},
}
"""The first log line of a history."""


@pytest.mark.parametrize("name", HISTORIES)
async def test_results_of_evictions(name: str) -> None:
    fields, steps = HISTORIES[name]
    async with desk(**fields()) as run:
        for times, seconds, results in steps:
            for _ in range(times):
                await run.step(seconds)
            assert run.results == results
        done = Counter(action.split()[0] for action in run.done)
        assert done["evict"] == results.get("evicted", 0) + name.startswith(
            ("without an answer", "a refusal after the dry run")
        )
        assert done["evict"] <= done["tell"] <= done["record"] <= done["read"] <= done["try"]
        if name.startswith(("a dry run", "a terminating", "a pod that does not run")):
            assert done.keys() <= {"sample"}, "nothing is tried"
        lines = run.log_lines()
        assert LINES.get(name, {}).items() <= (lines[0].items() if lines else ())
        assert len(lines) <= sum(results.values()) + 1, "a refusal is logged once"


async def test_an_eviction_follows_a_fresh_sample_a_dry_run_fresh_consent_a_record_and_an_event() -> None:
    async with desk() as run:
        await run.step()
        assert run.done == ["sample", "try train", "read train", "record train", "tell train", "evict train"]
        assert run.results == {"evicted": 1}
        (line,) = run.log_lines()
    assert (line["message"], line["result"], line["pod"]) == ("pod evicted", "evicted", "train")
    assert (line["usedBytes"], line["allowedBytes"]) == (OVER, SHARE)


async def test_a_pod_that_recovered_stays_and_is_looked_at_later() -> None:
    async with desk(fresh_used_bytes={"train": SHARE}) as run:
        await run.step()
        assert run.done == ["sample"]
        assert run.results == {"recovered": 1}
        await run.step(1)
        assert run.done == ["sample"]
        run.fresh_used_bytes = None
        await run.step(40)
        assert run.results == {"recovered": 1, "evicted": 1}


async def test_without_a_fresh_sample_nothing_happens() -> None:
    async with desk(samples=False, fresh=0.05) as run:
        await run.step()
        await until(lambda: run.results == {"no-fresh-sample": 1})
        assert run.done == ["sample"]


async def test_a_sample_that_began_before_its_request_is_not_fresh() -> None:
    async with desk(samples=False, fresh=0.1) as run:
        await run.step()
        asked_at = run.now
        run.now -= 1
        run.sample()
        run.now = asked_at
        await until(lambda: run.results == {"no-fresh-sample": 1})


async def test_a_refusal_by_a_disruption_budget_is_retried_with_back_off() -> None:
    async with desk(answers=[NO] * 100) as run:
        trials = []
        for _ in range(900):
            before = len(run.done)
            await run.step(4)
            trials += [run.now] * run.done[before:].count("try train")
        assert "tell train" not in run.done, "no Event about an eviction that does not happen"
        assert "evict train" not in run.done
        waits = [after - before for before, after in itertools.pairwise(trials)]
        for wait, least in zip(waits, (30, 60, 120, 240, 480, 600), strict=False):
            assert least <= wait <= least * 1.2 + 4
        assert run.results == {"disruption-budget": len(trials)}
        run.answers.clear()
        await run.step(800)
        assert run.results["evicted"] == 1
        assert "the budget forbids it" in run.log_lines()[0]["why"]


async def test_the_budget_counts_for_all_pods_of_the_node() -> None:
    async with desk(**several(4)) as run:
        evicted = []
        for _ in range(600):
            before = run.results.get("evicted", 0)
            await run.step(5)
            evicted += [run.now] * (run.results.get("evicted", 0) - before)
        assert len(evicted) == 4
        assert all(later - sooner >= 600 for sooner, later in itertools.pairwise(evicted))
        assert run.results == {"evicted": 4, "budget": 3}, "each refusal is counted once, not in each sample"


def protected(count: int, namespace: str) -> dict[str, Any]:
    """The pod `train` of another namespace, beside protected pods with a larger excess."""
    shares = [of_pod(pod_share(f"pod-{number}", GIB), namespace=namespace) for number in range(count)]
    used_bytes = {each.pod.name: 3 * GIB for each in shares}

    async def ask(pod: NodePod, *, is_trial: bool) -> Evicted:
        return YES if pod.name == "train" else NO

    return {
        "node": Node(*shares, pod_share("train", GIB)),
        "used_bytes": {**used_bytes, "train": 2 * GIB},
        "asking": ask,
        "budget": Budget(9, 1),
    }


@pytest.mark.parametrize(("namespace", "tries"), [("team-b", 1), ("team-a", 4)])
@pytest.mark.parametrize(
    "seconds", [5, 900], ids=["the first tries", "the back-offs are over at each sample"]
)
async def test_pods_behind_a_disruption_budget_delay_another_namespace_by_one_try(
    namespace: str, tries: int, seconds: float
) -> None:
    async with desk(**protected(4, namespace)) as run:
        for _ in range(tries + 1):
            assert "evict train" not in run.done
            await run.step(seconds)
        tried = [action for action in run.done if action.startswith(("try pod", "evict"))]
        assert tried == [*(f"try pod-{number}" for number in range(tries)), "evict train"]


async def test_namespaces_take_turns_after_failed_evictions() -> None:
    async with desk(**protected(4, "team-b")) as run:
        run.asking = None
        run.answers = [NO] * 10
        for _ in range(4):
            await run.step(900)
        assert [action for action in run.done if action.startswith("try")] == [
            "try pod-0", "try train", "try pod-1", "try train",
        ]  # fmt: skip


def test_back_offs_grow_and_are_forgotten() -> None:
    holds = KeyedBackoff(first=10, most=40)
    for start, least in ((0, 10), (40, 20), (90, 40), (150, 40)):
        holds.fail("a", start)
        assert holds.is_backing_off("a", start + least - 0.1)
        assert not holds.is_backing_off("a", start + least * 1.2 + 0.1)
    assert not holds.is_backing_off("b", 0)
    holds.fail("a", 1000)
    assert holds.is_backing_off("a", 1009.9)
    assert not holds.is_backing_off("a", 1012.1)
    for number in range(100):
        holds.fail(f"key-{number}", 2000 + 100 * number)
    assert len(holds) <= 2


@pytest.mark.parametrize(
    ("fields", "is_dry_run", "results"),
    [({"namespace": "kube-system"}, False, {"excluded-namespace": 1}), ({}, True, {"dry-run": 1})],
    ids=["refused", "dry run"],
)
async def test_a_pod_over_its_share_at_every_second_sample_is_logged_once_while_its_flag_stands(
    fields: dict[str, Any], is_dry_run: bool, results: dict[str, int]
) -> None:
    async with desk(
        node=Node(of_pod(pod_share("train", SHARE), **fields)), is_dry_run=is_dry_run, budget=Budget(100, 1)
    ) as run:
        for number in range(200):
            run.used_bytes = {"train": OVER if number % 2 else SHARE}
            await run.step(900)
        assert run.results == results
        assert len(run.log_lines()) == 1


async def test_a_flag_that_is_raised_again_is_counted_again() -> None:
    async with desk(node=Node(of_pod(pod_share("train", SHARE), namespace="kube-system"))) as run:
        for used_bytes in (OVER, SHARE, SHARE, OVER, OVER, OVER):
            run.used_bytes = {"train": used_bytes}
            await run.step()
        assert run.results == {"excluded-namespace": 2}


async def test_an_evicted_pod_that_keeps_running_is_counted_as_terminating() -> None:
    """Its owner chose its terminationGracePeriodSeconds; nothing makes it leave sooner."""
    async with desk(budget=Budget(9, 1)) as run:
        await run.step()
        run.node.pod_shares = (of_pod(run.node.pod_shares[0], is_terminating=True),)
        for _ in range(9):
            await run.step(60)
        assert run.results == {"evicted": 1}
        for _ in range(9):
            await run.step(60)
        assert run.results == {"evicted": 1, "terminating": 1}
        assert run.done.count("evict train") == 1


async def test_edits_delay_an_eviction_three_times_and_no_more() -> None:
    async with desk(consents=[EDITED] * 3) as run:
        for _ in range(20):
            await run.step(60)
        assert run.accepted_edits == [False] * 3 + [True]
        assert run.results == {"pod-changed": 3, "evicted": 1}


def without_the_pod(run: Desk) -> Evaluation:
    run.node.pod_shares = (pod_share("other", GIB),)
    return run.node.judged(run.now, {"other": GIB})


def without_a_policy(run: Desk) -> Evaluation:
    return run.node.judged(run.now, {"train": OVER}, over_share_policies={})


def without_the_gpu(run: Desk) -> Evaluation:
    evaluation = run.node.judged(run.now, {"train": OVER})
    return replace(evaluation, verdicts=replace(evaluation.verdicts, by_key={}))


@pytest.mark.parametrize(
    ("sample", "result"),
    [
        (without_the_pod, "gone"),
        (without_a_policy, "consent-withdrawn"),
        (without_the_gpu, "no-fresh-sample"),
        (lambda run: run.node.judged(run.now, {"train": SHARE}), "recovered"),
    ],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["in the fresh sample", "during the dry run"])
async def test_a_pod_that_is_no_longer_a_candidate_has_the_reason_as_its_result(
    sample: Callable[[Desk], Evaluation], result: str, is_late: bool
) -> None:
    async with desk() as run:

        def take_sample() -> None:
            run.evictor.handle(sample(run))

        if is_late:
            run.on_trial = take_sample
        else:
            run.evictor.sample_now = lambda: asyncio.get_running_loop().call_soon(take_sample)
        await run.step()
        assert run.results == {result: 1}
        (line,) = run.log_lines()
        assert (line["result"], line["message"] == "pod not evicted: within its share again") == (
            result,
            result == "recovered",
        )
        assert "evict train" not in run.done


@pytest.mark.parametrize("oldest", [30.0, 6.5])
async def test_figures_that_grew_old_during_the_dry_run_evict_no_pod(oldest: float) -> None:
    async with desk() as run:

        def wait() -> None:
            run.now += oldest + 1

        run.on_trial, run.evictor.timing = wait, replace(run.evictor.timing, oldest=oldest)
        await run.step()
        assert run.results == {"no-fresh-sample": 1}
        assert "evict train" not in run.done


async def test_an_eviction_that_is_interrupted_is_charged() -> None:
    """An unexpected error restarts the evictor; the pod may be evicted all the same."""

    async def break_off(_pod: object, *, is_trial: bool) -> Evicted:
        if is_trial:
            return YES
        raise RuntimeError("unexpected")

    run = Desk(asking=break_off)
    evictor = asyncio.create_task(run.evictor.run())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="unexpected"):
        await asyncio.gather(evictor, run.step())
    run.asking = None
    again = asyncio.create_task(run.evictor.run())
    await asyncio.sleep(0)
    for _ in range(100):
        await run.step()
    assert run.done.count("evict train") == 1
    assert run.results == {"owner-backoff": 1}
    again.cancel()


UNAVAILABLE = ApiError(503, "Unavailable", "", "GET", retry_after=4.0)


@pytest.mark.parametrize(
    ("errors", "message", "seconds"),
    [
        ([Unreachable("no answer"), UNAVAILABLE], "past evictions read", (4.5, 5.0)),
        ([Unreachable("no answer")] * 100, "past evictions unavailable", (45.0, 60.0)),
    ],
)
def test_an_error_of_the_api_server_is_retried_before_the_records_count_as_unavailable(
    errors: list[Exception], message: str, seconds: tuple[float, float]
) -> None:
    async def recall() -> float:
        loop = asyncio.get_running_loop()
        run = Desk(past_errors=errors, past=past(1.0))
        began = loop.time()
        budget = EvictionBudget(run.budget, owner_backoff=(600.0, 21600.0), clock=loop.time)
        await budget.recall(run.past_evictions, seconds=60.0, log=JsonLog(run.stream))
        assert run.log_lines()[0]["message"] == message
        return loop.time() - began

    assert seconds[0] <= run_in_virtual_time(recall()) <= seconds[1] + 0.1
