"""What `kaishare top` says of GPUs that do not respond, of memory at risk, of ended pods and of a grace."""

import json
from typing import Any

import pytest

from console.top.gpu_rows import gpus_of
from console.top.pod_rows import node_table
from gpuagent.api_types import AgentResponse, read_answer
from tests.support.top_agents import GIB, gpu, pod

LOST = {"index": 1, "uuid": "GPU-n-1", "model": "NVIDIA A10"}


def response(**fields: Any) -> AgentResponse:
    return read_answer(
        json.dumps(
            {"node": "n", "simulated": False, "driverVersion": "570.00", "sampleTimestamp": 1.0,
             "lastGoodSampleTimestamp": 1.0, "attributionOk": True, "gpus": [], "pods": [], **fields}
        ).encode()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"lost": True}, "LOST"), ({}, "LOST"), ({"lost": False}, "NO ANSWER")],
    ids=["lost", "of an older agent", "a driver that is being replaced"],
)
def test_lost_means_that_the_gpu_itself_is_lost(fields: dict[str, Any], word: str) -> None:
    (state,) = gpus_of("n", response(lostGpus=[{**LOST, **fields}]))
    assert state.notes == word


def test_memory_at_risk_names_its_largest_cause() -> None:
    causes = [{"cause": "host-processes", "bytes": 8 * GIB}, {"cause": "unattributed", "bytes": GIB}]
    for given, words in (
        (causes, "9.0 GiB promised and not free (host processes hold 8.0 GiB)"),
        ([], "9.0 GiB promised and not free"),
        ([{"cause": "of a newer agent", "bytes": 1}], "9.0 GiB promised and not free"),
    ):
        (state,) = gpus_of("n", response(gpus=[gpu("n", atRiskBytes=9 * GIB, riskCauses=given)]))
        assert state.risk_text == words


def test_ended_pods_are_named_where_their_memory_is() -> None:
    ended = [
        {"namespace": "team-a", "name": f"greedy-{number}\x1b[2J", "uid": "u", "owner": "", "gpuUuid": "GPU-n-0", "usedBytes": GIB}
        for number in range(3)
    ]  # fmt: skip
    (state,) = gpus_of("n", response(gpus=[gpu("n", endedPodsBytes=3 * GIB)], endedPods=ended))
    assert state.notes.startswith("ended pods hold 3.0 GiB: team-a/greedy-0")
    assert state.notes.endswith(" and 1 more")
    assert "\x1b" not in state.notes
    (calm,) = gpus_of("n", response(gpus=[gpu("n", endedPodsBytes=0)]))
    assert calm.notes == ""


@pytest.mark.parametrize(
    ("of_agent", "of_namespace", "text"),
    [(120.0, None, "in grace of 2 min: over-share"), (120.0, 30.0, "in grace of 30 s: over-share"), (None, None, "in grace: over-share")],
)  # fmt: skip
def test_a_grace_has_its_length(of_agent: float | None, of_namespace: float | None, text: str) -> None:
    policy = {"evict": False, "graceSeconds": of_namespace} if of_namespace else None
    over = pod("a", "n", 4 * GIB, lasted=10.0, overSharePolicy=policy)
    answer = response(gpus=[gpu("n")], pods=[over], graceSeconds=of_agent)
    (row,) = node_table("agent", "n", answer).rows
    assert row.state_text == text


@pytest.mark.parametrize(
    ("at_risk", "is_shown"), [(256 << 20, False), (257 << 20, True), (None, False), (0, False)]
)
def test_what_the_driver_itself_takes_is_no_risk(at_risk: int | None, is_shown: bool) -> None:
    (state,) = gpus_of("n", response(gpus=[gpu("n", atRiskBytes=at_risk)]))
    assert ("AT RISK" in state.notes) is is_shown
    (large,) = gpus_of("n", response(gpus=[gpu("n", atRiskBytes=GIB, totalBytes=141 * GIB)]))
    assert large.notes == ""
