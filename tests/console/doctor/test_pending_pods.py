"""`doctor`: the pods that wait for KAI, by cause."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

import pytest

from console.doctor.api_reader import ApiReader, ListOutcome, ListResult, ListSpec
from console.doctor.check_results import CheckResult, State
from console.doctor.pending_pods import pending_findings
from kube.kinds import Pod, decode_pod_with_document
from service.text import MALFORMED
from tests.support.cluster_facts import but
from tests.support.why_evidence import NOW, make_pod

_FULL = "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs."
_NO_QUEUE = "QueueDoesNotExist: Queue 'vision' does not exist."


class _Reader:
    """Lists given pods."""

    def __init__(self, pods: Sequence[Pod], outcome: ListOutcome, now: datetime | None) -> None:
        self.client = self
        self._pods, self._outcome, self._now = pods, outcome, now

    def server_time(self) -> datetime | None:
        return self._now

    async def list(self, spec: ListSpec, read: Callable[[bytes], Any]) -> ListResult[Any]:
        assert spec.params == {"fieldSelector": "status.phase=Pending"}
        items = [value for pod in self._pods if (value := read(pod.document)) is not None]
        return ListResult(tuple(items), self._outcome)


async def _findings(
    *pods: Pod, outcome: ListOutcome = ListOutcome.WHOLE, now: datetime | None = NOW
) -> list[CheckResult]:
    return list(await pending_findings(cast("ApiReader", _Reader(pods, outcome, now)), but()))


async def test_pods_are_counted_by_cause_and_only_those_that_need_a_person_are_warnings() -> None:
    waiting = [make_pod(name=f"full-{number}", unschedulable=_FULL) for number in range(7)]
    broken = make_pod(name="lost", unschedulable=_NO_QUEUE)
    full, lost = await _findings(*waiting, broken)
    assert (full.state, full.what[:45]) == (State.OK, "7 pods wait for KAI (no-gpu-fits): team/full-")
    assert full.what.endswith("and 2 more")
    assert (lost.state, lost.what) == (State.WARNING, "1 pod waits for KAI (queue-missing): team/lost")
    assert lost.advice == "kaishare why -n team lost"


@pytest.mark.parametrize(
    "pod",
    [
        make_pod(unschedulable=_FULL, age=30),
        make_pod(node="node-1"),
        make_pod(scheduler="default-scheduler", grouped=False, unschedulable=_FULL),
        make_pod(unschedulable=_FULL, metadata={"deletionTimestamp": "2026-05-01T11:59:00Z"}),
    ],
    ids=["young", "bound", "not KAI's", "being deleted"],
)
async def test_other_pods_are_left_out(pod: Pod) -> None:
    (finding,) = await _findings(pod)
    assert (finding.state, finding.what) == (State.OK, "no pod has waited for KAI for a minute")


async def test_nothing_is_said_without_the_list() -> None:
    assert await _findings(outcome=ListOutcome.UNREAD) == []


async def test_without_the_servers_time_or_the_whole_list_no_pod_is_ok() -> None:
    waiting = make_pod(unschedulable=_NO_QUEUE)
    (untimed,) = await _findings(waiting, now=None)
    assert (untimed.state, untimed.what) == (
        State.UNKNOWN,
        "not checked: the API server's time is not known",
    )
    (part,) = await _findings(outcome=ListOutcome.PART)
    assert part.state is State.UNKNOWN
    assert part.what.startswith("not all pending pods could be read")
    (seen,) = await _findings(waiting, outcome=ListOutcome.PART)
    assert (seen.state, seen.what) == (State.WARNING, "1 pod waits for KAI (queue-missing): team/train-0")


async def test_a_time_without_a_zone_makes_a_pod_unreadable_and_ends_nothing() -> None:
    broken = b'{"metadata": {"name": "a", "creationTimestamp": "2026-05-01T11:00:00"}, "spec": {}}'
    with pytest.raises(MALFORMED):
        decode_pod_with_document(broken)
