"""From verdicts to evictions: in which order, how often, and never without a fresh look."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.actions.consent import CONSENT_SECONDS, NoConsent
from gpuagent.actions.eviction_rules import Budget, EvictionBudget, EvictionRefusal, PastEviction, owner_key
from gpuagent.evaluation.status import Evaluation
from gpuagent.pods.inventory import NodePod
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


async def test_an_eviction_follows_a_fresh_sample_a_dry_run_fresh_consent_a_record_and_an_event() -> None:
    async with desk() as run:
        await run.step()
        assert run.done == [
            "sample",
            "try train",
            "read train",
            "record train",
            "tell train",
            "evict train",
        ]
        assert run.results == {"evicted": 1}
        (line,) = run.log_lines()
    assert (line["message"], line["result"], line["pod"]) == ("pod evicted", "evicted", "train")
    assert (line["usedBytes"], line["allowedBytes"]) == (OVER, SHARE)


async def test_a_pod_that_was_evicted_is_not_evicted_again_while_it_leaves() -> None:
    async with desk(budget=Budget(9, 1)) as run:
        for _ in range(50):
            await run.step(60)
        assert run.results == {"evicted": 1}


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


async def test_retry_after_of_the_server_is_respected() -> None:
    async with desk(answers=[replace(NO, retry_after=250.0)]) as run:
        await run.step()
        await run.step(240)
        assert run.done.count("try train") == 1
        await run.step(20)
        assert run.results == {"disruption-budget": 1, "evicted": 1}


async def test_a_refusal_after_the_dry_run_costs_no_budget() -> None:
    async with desk(answers=[YES, NO]) as run:
        await run.step()
        assert run.results == {"disruption-budget": 1}
        await run.step(40)
        assert run.results == {"disruption-budget": 1, "evicted": 1}


async def test_an_eviction_without_an_answer_counts_against_the_budget() -> None:
    """The API server may have carried it out: a slow one would otherwise cost a pod in each sample."""
    lost = [YES, Evicted(EvictionAnswer.FAILED, "timeout")] * 4
    async with desk(answers=lost, **several(4)) as run:
        for _ in range(100):
            await run.step(5)
        assert sum(action.startswith("evict ") for action in run.done) == 1
        assert run.results == {"failed": 1, "owner-backoff": 1, "budget": 3}


async def test_an_eviction_without_an_answer_starts_the_back_off_of_its_owner() -> None:
    lost = [YES, Evicted(EvictionAnswer.FAILED, "timeout")]
    async with desk(answers=lost, budget=Budget(9, 1), **several(2, controller_uid="rs-1")) as run:
        await run.step()
        await run.step(590)
        assert run.results == {"failed": 1, "owner-backoff": 2}


@pytest.mark.parametrize("answer", [EvictionAnswer.GONE, EvictionAnswer.FORBIDDEN, EvictionAnswer.FAILED])
async def test_every_answer_is_counted(answer: EvictionAnswer) -> None:
    async with desk(answers=[Evicted(answer, "why")]) as run:
        await run.step()
        assert run.results == {answer: 1}
        assert run.log_lines()[0]["why"] == "why"


async def test_a_pod_that_is_gone_is_not_asked_for_again() -> None:
    async with desk(answers=[Evicted(EvictionAnswer.GONE, "not found")]) as run:
        for _ in range(10):
            await run.step(600)
        assert run.results == {"gone": 1}


def several(count: int, **fields: Any) -> dict[str, Any]:
    pod_shares = [pod_share(f"pod-{number}", SHARE // count) for number in range(count)]
    pod_shares = [of_pod(each, **fields) for each in pod_shares]
    return {
        "node": Node(*pod_shares),
        "used_bytes": {each.pod.name: SHARE // count * 2 for each in pod_shares},
    }


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
            "try pod-0",
            "try train",
            "try pod-1",
            "try train",
        ]


async def test_after_one_pod_of_an_owner_the_next_waits() -> None:
    fields = several(2, controller_uid="rs-1")
    async with desk(budget=Budget(9, 1), **fields) as run:
        await run.step()
        assert run.results == {"evicted": 1}
        await run.step(590)
        assert run.results == {"evicted": 1, "owner-backoff": 1}
        await run.step(140)
        assert run.results == {"evicted": 2, "owner-backoff": 1}


async def test_a_dry_run_sends_no_eviction_and_no_event_and_keeps_to_the_budget() -> None:
    async with desk(is_dry_run=True, **several(2)) as run:
        for _ in range(20):
            await run.step(5)
        assert set(run.done) == {"sample"}
        assert run.results == {"dry-run": 1, "budget": 1}
        assert run.log_lines()[0]["message"] == "pod would be evicted"


async def test_a_protected_pod_is_logged_once_and_delays_no_eviction() -> None:
    system = of_pod(pod_share("system", GIB), namespace="kube-system")
    fields = {
        "node": Node(pod_share("train", SHARE), system),
        "used_bytes": {"system": 8 * GIB, "train": OVER},
    }
    async with desk(**fields) as run:
        for _ in range(5):
            await run.step()
        assert run.results == {"excluded-namespace": 1, "evicted": 1}
        assert run.done.count("evict train") == 1
        assert "evict system" not in run.done


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
    ("fields", "result"),
    [({"is_terminating": True}, "terminating"), ({"phase": "Pending"}, "not-running")],
)
async def test_a_refused_candidate_is_counted_and_logged_once(fields: dict[str, Any], result: str) -> None:
    async with desk(node=Node(of_pod(pod_share("train", SHARE), **fields))) as run:
        for _ in range(5):
            await run.step()
        assert run.done == []
        assert run.results == {result: 1}
        (line,) = run.log_lines()
        assert (line["message"], line["result"], line["pod"]) == ("pod not evicted", result, "train")
        assert line["why"]


async def test_a_pod_in_an_init_container_is_evicted() -> None:
    async with desk(node=Node(of_pod(pod_share("train", SHARE), phase="Pending", has_started=True))) as run:
        await run.step()
        assert run.results == {"evicted": 1}


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


WITHDRAWN = NoConsent(result=EvictionRefusal.CONSENT_WITHDRAWN, line="the label is gone")
EDITED = NoConsent(result=EvictionRefusal.POD_CHANGED, line="edited")


async def test_an_eviction_without_consent_is_neither_requested_nor_announced() -> None:
    async with desk(consents=[WITHDRAWN]) as run:
        await run.step()
        assert run.done == ["sample", "try train", "read train"]
        assert run.results == {"consent-withdrawn": 1}
        assert run.log_lines()[0]["why"] == "the label is gone"
        await run.step(40)
        assert run.results == {"consent-withdrawn": 1, "evicted": 1}


@pytest.mark.parametrize(
    ("read_seconds", "results"),
    [(CONSENT_SECONDS - 0.1, {"evicted": 1}), (CONSENT_SECONDS, {"failed": 1}), (60.0, {"failed": 1})],
)
async def test_consent_that_is_too_old_requests_no_eviction_and_costs_no_budget(
    read_seconds: float, results: dict[str, int]
) -> None:
    async with desk(consents=[read_seconds], fresh=100.0) as run:
        await run.step()
        assert run.results == results
        assert run.done.count("evict train") == results.get("evicted", 0)
        await run.step(40)
        assert run.results["evicted"] == 1


async def test_edits_delay_an_eviction_three_times_and_no_more() -> None:
    async with desk(consents=[EDITED] * 3) as run:
        for _ in range(20):
            await run.step(60)
        assert run.accepted_edits == [False] * 3 + [True]
        assert run.results == {"pod-changed": 3, "evicted": 1}


async def test_an_eviction_that_cannot_be_recorded_is_neither_announced_nor_requested() -> None:
    refused = [ApiError(403, "Forbidden", "no right to create events", "POST"), Unreachable("no answer")]
    async with desk(record_errors=refused) as run:
        await run.step()
        assert run.done == ["sample", "try train", "read train", "record train"]
        await run.step(40)
        assert run.results == {"forbidden": 1, "failed": 1}
        await run.step(100)
        assert run.results == {"forbidden": 1, "failed": 1, "evicted": 1}, "neither costs budget"


async def test_consent_that_expires_while_the_eviction_is_recorded_requests_no_eviction() -> None:
    async with desk(record_seconds=CONSENT_SECONDS) as run:
        await run.step()
        assert run.results == {"failed": 1}
        assert "evict train" not in run.done


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
            run.evictor._sample_now = lambda: asyncio.get_running_loop().call_soon(take_sample)
        await run.step()
        assert run.results == {result: 1}
        (line,) = run.log_lines()
        assert (line["result"], line["message"] == "pod not evicted: within its share again") == (
            result,
            result == "recovered",
        )
        assert "evict train" not in run.done


async def test_a_pod_that_recovers_during_the_dry_run_is_not_evicted() -> None:
    async with desk() as run:
        run.on_trial = lambda: run.sample({"train": SHARE})
        await run.step()
        assert run.results == {"recovered": 1}
        assert "evict train" not in run.done


@pytest.mark.parametrize("oldest", [30.0, 6.5])
async def test_figures_that_grew_old_during_the_dry_run_evict_no_pod(oldest: float) -> None:
    async with desk() as run:

        def wait() -> None:
            run.now += oldest + 1

        run.on_trial, run.evictor._timing = wait, replace(run.evictor._timing, oldest=oldest)
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


def past(*ages: float, owner: str = "") -> list[PastEviction]:
    return [PastEviction(seconds_ago=age, owner=owner) for age in ages]


async def test_the_budget_survives_a_restart() -> None:
    async with desk(past=past(100.0, owner="other")) as run:
        await run.step()
        assert run.results == {"budget": 1}
        await run.step(480)
        assert run.results == {"budget": 1}
        await run.step(20)
        assert run.results == {"budget": 1, "evicted": 1}


async def test_the_back_off_of_an_owner_survives_a_restart() -> None:
    node = Node()
    owner = owner_key(node.pod_shares[0])
    async with desk(node=node, budget=Budget(9, 1), past=past(1000.0, 300.0, owner=owner)) as run:
        await run.step()
        assert run.results == {"owner-backoff": 1}
        await run.step(850)
        assert run.results == {"owner-backoff": 1}, "the second wait is 20 minutes, from the second eviction"
        await run.step(340)
        assert run.results == {"owner-backoff": 1, "evicted": 1}


FORBIDDEN = ApiError(403, "Forbidden", "no right to list events", "GET")


@pytest.mark.parametrize(("budget", "evicted"), [(Budget(3, 600), 1), (Budget(1, 600), 1)])
async def test_without_readable_records_the_budget_starts_with_one_eviction(
    budget: Budget, evicted: int
) -> None:
    async with desk(past_errors=[FORBIDDEN], budget=budget, **several(4)) as run:
        for _ in range(10):
            await run.step()
        assert run.results["evicted"] == evicted
        first = run.log_lines()[0]
        assert first["message"] == "past evictions unavailable"
        assert "no right to list events" in first["error"]
        assert "one eviction" in first["problem"]


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


async def test_a_budget_beyond_the_age_of_events_is_reported() -> None:
    async with desk(budget=Budget(1, 6 * 3600)) as run:
        await run.step()
        assert run.results == {"budget": 1}
        assert run.log_lines()[0]["problem"] == "Events do not cover the budget's period"


async def test_a_dry_run_reads_no_records() -> None:
    async with desk(is_dry_run=True, past_errors=[FORBIDDEN]) as run:
        await run.step()
        assert run.results == {"dry-run": 1}
        assert len(run.past_errors) == 1
