"""Rows of pods: one table of states and figures for text, screen, details and JSON; GPUs at risk, and first acts."""

import json
from typing import Any

import pytest

from console.top.details import details_of
from console.top.fleet import Arrangement, Fleet, arrange
from console.top.layout import layout
from console.top.pod_rows import PodRow, Tier, sign
from console.top.text import as_text, json_parts
from gpuagent.api_types import read_answer
from gpuagent.first_acts import FOR_FLAG, FOR_GPU_AT_RISK, FOR_PROBLEM
from gpuagent.problems import Cause, RiskName
from tests.support.top_agents import GIB, act_line, document, fleet_of, gpu, pod

MIB = 1 << 20
FULL: dict[str, Any] = {"usedBytes": 22 * GIB, "promisedBytes": 24 * GIB, "atRiskBytes": 3 * GIB}
OTHER = {"reason": "no-share", "gpuUuid": "GPU-n-0", "flagged": False, "usedBytes": MIB}
AWAY = {"shares": {}, "gpus": [], "verdicts": []}
NOWHERE = {"reason": "no-reservation", "gpuUuid": "", "lastedSeconds": 60, "balanceSeconds": 60}
MIG = "MIG-1aaaaaaa-0000"


def holding(**fields: Any) -> list[dict[str, Any]]:
    return [{"gpuUuid": "GPU-n-0", "gpu": 0, "usedBytes": GIB, "processes": 1, **fields}]


def share(amount: int, source: str = "bind-request", uuid: str = "GPU-n-0") -> dict[str, Any]:
    return {uuid: {"bytes": amount, "source": source}}


def row_of(used: int | None = GIB, **fields: Any) -> dict[str, Any]:
    return pod("p", "n", used, **fields)


ROWS: list[tuple[dict[str, Any], str]] = [
    (row_of(), "within share 0 1.0 GiB 2.0 GiB 50% - p team-a 1"),
    (row_of(2 * GIB + 1), "within slack 0 2.0 GiB 2.0 GiB 100% - p team-a 1"),
    (row_of(5 * GIB, lasted=20.0), "~ in grace: over-share 0 5.0 GiB 2.0 GiB 250% 20 s p team-a 1"),
    (row_of(3 * GIB, lasted=200.0, is_flagged=True, queue="vision", size="train"), "! flagged: over-share 0 3.0 GiB 2.0 GiB 150% 3 min p team-a train vision 1"),
    (row_of(**{**AWAY, "gpuUuids": [], "verdicts": [NOWHERE]}), "~ in grace: no-reservation unknown - unknown unknown 60 s p team-a -"),
    (row_of(None, gpus=holding(usedBytes=None, processes=None)), "not judged: memory unknown 0 unknown 2.0 GiB unknown - p team-a unknown"),
    (row_of(index=1, **AWAY), "not judged: its GPU does not respond unknown unknown 2.0 GiB unknown - p team-a unknown"),
    (
        row_of(gpus=holding(mig=True, gpuUuid=MIG, usedBytes=0), gpuUuids=[MIG], shares=share(GIB, uuid=MIG), verdicts=[]),
        "not judged: MIG 0 MIG-1aaa… 0 B 1.0 GiB 0% - p team-a 1",
    ),
    (row_of(shares={}, candidates=[], verdicts=[OTHER]), "in order 0 1.0 GiB - - - p team-a 1"),
    (
        row_of(verdicts=[], shares=share(24 * GIB, "whole-gpu"), gpus=holding(idleSeconds=7 * 86400.0)),
        "idle for 7 d: no kernel; not judged: whole GPU 0 1.0 GiB 24.0 GiB 4% - p team-a 1",
    ),
    (row_of(verdicts=[], phase="Succeeded"), "not judged: the pod has ended 0 1.0 GiB 2.0 GiB 50% - p team-a 1"),
    (row_of(verdicts=[], hasUnsizedGpus=True, shares={}), "not judged: share of unknown size 0 1.0 GiB unknown unknown - p team-a 1"),
    (row_of(gpus=holding(usedBytes=0, idleSeconds=3 * 3600.0)), "idle for 3 h: no memory 0 0 B 2.0 GiB 0% - p team-a 1"),
    (row_of(gpus=holding(idleSeconds=1e300)), "idle for 115741 d: no kernel 0 1.0 GiB 2.0 GiB 50% - p team-a 1"),
    (row_of(gpus=holding(idleSeconds=3599.9)), "within share 0 1.0 GiB 2.0 GiB 50% - p team-a 1"),
    (row_of(gpus=holding(idleSeconds=-5.0)), "within share 0 1.0 GiB 2.0 GiB 50% - p team-a 1"),
    (row_of(gpus=holding(utilizationRatio=0.07)), "within share 0 1.0 GiB 2.0 GiB 50% 7% - p team-a 1"),
    (row_of(gpus=holding(utilizationRatio=1.01)), "within share 0 1.0 GiB 2.0 GiB 50% - p team-a 1"),
    (row_of(gpus=holding(utilizationRatio=-0.5)), "within share 0 1.0 GiB 2.0 GiB 50% - p team-a 1"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "expected"), ROWS)
def test_text_screen_and_json_have_the_same_row(sent: dict[str, Any], expected: str) -> None:
    fleet = fleet_of({"n": document("n", sent)})
    agent = fleet.agents["agent-of-n"]
    assert agent.received is not None
    (row,) = agent.table.rows
    on_screen = layout(300, fleet.widths, without={"bar", "node"}).row(sign(row, is_old=False), row.cells)
    assert " ".join(on_screen.split()) == expected
    assert on_screen.rstrip() in as_text(fleet, Arrangement(), 0.0, columns=300).splitlines()
    assert details_of(row, fleet, 0.0)[0] == f"team-a/p: {row.cells['state']}"
    (listed,) = json.loads("".join(json_parts(fleet, Arrangement(), 0.0)))["agents"]
    assert read_answer(json.dumps(listed["shares"]).encode()) == agent.received.answer


def rows_of(fleet: Fleet) -> dict[str, PodRow]:
    return {row.cells["pod"]: row for agent in fleet.agents.values() for row in agent.table.rows}


def at_risk(*pods: dict[str, Any], **fields: Any) -> Fleet:
    return fleet_of({"n": document("n", *pods, gpus=[gpu("n", **{**FULL, **fields})])})


def full() -> Fleet:
    """One pod above its share, two that have not used theirs, and one that has."""
    return at_risk(
        pod("done", "n", 6 * GIB, share=6 * GIB),
        pod("small", "n", 3 * GIB, share=4 * GIB),
        pod("greedy", "n", 12 * GIB, share=8 * GIB, lasted=300.0, is_flagged=True),
        pod("waits", "n", GIB, share=6 * GIB, queue="vision"),
    )


@pytest.mark.parametrize(
    ("sent", "of_gpu", "state"),
    [
        (row_of(verdicts=[]), {"verdictsSuspended": True}, "not judged: verdicts are suspended"),
        (row_of(4 * GIB, lasted=10.0), {}, "in grace of 2 min: over-share"),
        (row_of(4 * GIB, lasted=10.0, overSharePolicy={"graceSeconds": 30.0}), {}, "in grace of 30 s: over-share"),
    ],
)  # fmt: skip
def test_states_by_the_gpu_and_the_grace(sent: dict[str, Any], of_gpu: dict[str, Any], state: str) -> None:
    fleet = fleet_of({"n": document("n", sent, gpus=[gpu("n", **of_gpu)], graceSeconds=120.0)})
    assert rows_of(fleet)["p"].cells["state"] == state


LOST = {"index": 1, "uuid": "GPU-n-1", "model": "NVIDIA A10"}
CAUSES = [{"cause": "host-processes", "bytes": 8 * GIB}, {"cause": "unattributed", "bytes": GIB}]
RISK = "AT RISK: 9.0 GiB promised and not free"


@pytest.mark.parametrize(
    ("fields", "notes"),
    [
        ({"lostGpus": [{**LOST, "lost": True}]}, "LOST"),
        ({"lostGpus": [LOST]}, "LOST"),  # of an older agent
        ({"lostGpus": [{**LOST, "lost": False}]}, "NO ANSWER"),  # such as a driver that is being replaced
        ({"gpus": [gpu("n", verdictsSuspended=True)]}, "verdicts suspended"),
        ({"gpus": [gpu("n", atRiskBytes=9 * GIB, riskCauses=CAUSES)]}, f"{RISK} (host processes hold 8.0 GiB)"),
        ({"gpus": [gpu("n", atRiskBytes=9 * GIB, riskCauses=[])]}, RISK),
        ({"gpus": [gpu("n", atRiskBytes=9 * GIB, riskCauses=[{"cause": "of a newer agent", "bytes": 1}])]}, RISK),
        # What the driver itself takes is no risk.
        ({"gpus": [gpu("n", atRiskBytes=256 * MIB)]}, ""),
        ({"gpus": [gpu("n", atRiskBytes=257 * MIB)]}, "AT RISK: 257.0 MiB promised and not free"),
        ({"gpus": [gpu("n", atRiskBytes=GIB, totalBytes=141 * GIB)]}, ""),
        ({"gpus": [gpu("n", endedPodsBytes=3 * GIB)]}, "ended pods hold 3.0 GiB"),
        ({"gpus": [gpu("n", endedPodsBytes=0)]}, ""),
        ({"gpus": [gpu("n", xid={"code": 79, "time": 0.0})]}, "XID 79"),
        ({"gpus": [gpu("n", xid={"code": -1, "time": 0.0})]}, ""),
        ({"lostGpus": [{**LOST, "xid": {"code": 79, "time": 0.0}}]}, "LOST, XID 79"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_gpu(fields: dict[str, Any], notes: str) -> None:
    assert fleet_of({"n": document("n", **fields)}).gpus[-1].cells[-1] == notes


def test_each_cause_of_a_risk_has_words() -> None:
    for name in RiskName:
        risky = gpu("n", atRiskBytes=9 * GIB, riskCauses=[{"cause": name, "bytes": GIB}])
        assert " 1.0 GiB)" in fleet_of({"n": document("n", gpus=[risky])}).gpus[0].risk_text


def test_causes_and_pods_at_risk_have_words_and_amounts_and_come_before_the_rest() -> None:
    rows = rows_of(full())
    assert {name: (row.tier, row.cells["state"]) for name, row in rows.items()} == {
        "greedy": (Tier.FLAGGED, "flagged: over-share; holds 4.0 GiB above its share"),
        "waits": (Tier.AT_RISK, "at risk: 5.0 GiB of its share unused, 2.0 GiB free"),
        "small": (Tier.AT_RISK, "at risk: 1.0 GiB of its share unused, 2.0 GiB free"),
        "done": (Tier.CALM, "within share"),
    }
    flagged, order = Arrangement(flagged_only=True), ["greedy", "waits", "small", "done"]
    for choice, expected in ((Arrangement(), order), (flagged, order[:3])):
        lines = arrange(full(), choice)
        assert [line.cells["pod"] for line in lines if isinstance(line, PodRow)] == expected
    (agent,) = json.loads("".join(json_parts(full(), flagged, 0.0)))["agents"]
    assert [each["name"] for each in agent["shares"]["pods"]] == ["small", "greedy", "waits"]
    assert "1 flagged, 0 in grace, 1 at risk," in as_text(full(), Arrangement(group="queue"), 0.0)


def test_a_cause_that_is_not_flagged_is_named_before_the_pods_at_risk() -> None:
    limited = pod("limited", "n", 12 * GIB, share=8 * GIB)
    suspended = {**pod("suspended", "n", 5 * GIB, share=3 * GIB), "verdicts": []}
    guest = {**pod("guest", "n", 300 * MIB), "shares": {}, "verdicts": []}
    fleet = at_risk(limited, suspended, guest, pod("waits", "n", GIB, share=6 * GIB))
    rows = [line for line in arrange(fleet, Arrangement()) if isinstance(line, PodRow)]
    assert [(row.cells["pod"], row.cells["state"]) for row in rows] == [
        ("limited", "holds 4.0 GiB above its share"),
        ("suspended", "holds 2.0 GiB above its share; not judged"),
        ("guest", "holds 300.0 MiB without a share here; not judged"),
        ("waits", "at risk: 5.0 GiB of its share unused, 2.0 GiB free"),
    ]
    text = as_text(fleet, Arrangement(), 0.0)
    assert [line[0] for line in text.splitlines() if line.endswith("team-a")] == ["+", "+", "+", "*"]


@pytest.mark.parametrize(
    ("pods", "fields", "causes"),
    [
        ({"most": (6 * GIB, 4 * GIB), "less": (GIB + 50 * MIB, GIB)}, {}, {"most"}),
        ({"most": (6 * GIB, 4 * GIB), "less": (2 * GIB, GIB)}, {}, {"most", "less"}),
        ({"most": (6 * GIB, 4 * GIB)}, {"atRiskBytes": 0}, set()),
        ({"most": (6 * GIB, 4 * GIB)}, {"atRiskBytes": None}, set()),
    ],
    ids=["a small one beside", "two", "no risk", "unknown, or an older agent"],
)  # fmt: skip
def test_the_causes_of_a_risk_are_256_mib_above_their_share(
    pods: dict[str, tuple[int, int]], fields: dict[str, Any], causes: set[str]
) -> None:
    fleet = at_risk(*(pod(name, "n", used, share=share) for name, (used, share) in pods.items()), **fields)
    assert {name for name, row in rows_of(fleet).items() if row.tier is Tier.CAUSE} == causes
    assert not any(row.risk.unused for row in rows_of(fleet).values())


def test_a_pod_of_unknown_use_is_the_cause_by_what_is_known_of_it() -> None:
    hog = pod("hog", "n", 30 * GIB, share=18 * GIB, lasted=300.0, is_flagged=True)
    hog["gpus"][0]["usedBytes"] = hog["verdicts"][0]["usedBytes"] = None
    hog["verdicts"][0]["usedAtLeastBytes"] = 30 * GIB
    hidden = {**pod("hidden", "n", share=6 * GIB), "verdicts": []}
    hidden["gpus"][0]["usedBytes"] = None
    rows = rows_of(at_risk(hog, hidden))
    assert {name: (row.tier, row.risk.text) for name, row in rows.items()} == {
        "hog": (Tier.FLAGGED, "holds at least 12.0 GiB above its share"),
        "hidden": (Tier.AT_RISK, "at risk: up to 6.0 GiB of its share unused, 2.0 GiB free"),
    }


def test_a_pod_that_may_use_its_share_on_any_gpu_or_has_gpus_of_unknown_size_is_no_cause() -> None:
    verdict = {"reason": "over-share", "gpuUuid": "GPU-n-0", "usedBytes": 4 * GIB, "allowedBytes": 5 * GIB}
    lost = {**pod("lost", "n", 4 * GIB), "shares": {}, "gpuUnresolved": True, "verdicts": [verdict]}
    claim = {**pod("claim", "n", 9 * GIB), "shares": {}, "verdicts": [], "hasUnsizedGpus": True}
    unresolved = {**pod("unresolved", "n", 9 * GIB), "shares": {}, "verdicts": [], "gpuUnresolved": True}
    rows = rows_of(at_risk(lost, claim, unresolved, pod("waits", "n", GIB, share=6 * GIB)))
    assert [name for name, row in rows.items() if row.risk.excess > 0] == []
    assert [name for name, row in rows.items() if row.risk.unused > 0] == ["waits"]


def test_details_of_a_pod_at_risk_name_the_cause_the_remedy_and_the_command() -> None:
    fleet = full()
    assert details_of(rows_of(fleet)["waits"], fleet, 0.0)[:5] == [
        "team-a/waits: at risk: 5.0 GiB of its share unused, 2.0 GiB free",
        "caused by team-a/greedy: holds 4.0 GiB above its share",
        f"do first: {act_line(FOR_GPU_AT_RISK)}",
        "kaishare why -n team-a waits",
        "",
    ]


def test_details_have_each_known_figure_by_the_name_of_its_field() -> None:
    sent = row_of(
        3 * GIB, lasted=300.0, is_flagged=True, queue="vision", vcluster={"name": "red", "namespace": "ml", "pod": "x-0"},
        limits={"GPU-n-0": {"bytes": 4 * GIB, "source": "kai-annotation", "counts": False}},
        driverLimits=[{"container": "main", "gpuUuid": "GPU-n-0", "promised": GIB, "hard": 2 * GIB, "inForce": False, "cause": "one-variable"}],
        overSharePolicy={"evict": True, "graceSeconds": 30.0}, notEvicted="eviction-off",
    )  # fmt: skip
    sent["verdicts"][0]["message"] = "uses 3.0 GiB\x1b[31m"
    act = FOR_PROBLEM[Cause.PID_NAMESPACE]
    problem = {
        "reason": "pid-namespace",
        "detail": "no process",
        "firstAct": act.text,
        "runbook": act.section,
    }
    sensors = {
        "xid": {"code": 79, "time": 1_763_953_920.0}, "utilizationRatio": 0.58, "powerWatts": 212.4,
        "temperatureCelsius": 10**16,
    }  # fmt: skip
    flags = {"over-share": {"raised": 2, "cleared": 0}}
    fleet = fleet_of(
        {"n": document("n", sent, gpus=[gpu("n", **sensors)], problems=[problem], flagTransitions=flags)}
    )
    lines = [" ".join(line.split()) for line in details_of(rows_of(fleet)["p"], fleet, 0.0)]
    for line in (
        f"do first: {act_line(FOR_FLAG['over-share'])}",
        "uid uid-n-p", "queue vision", "vcluster name red, namespace ml, pod x-0", "gpu groups group-1",
        "shares GPU-n-0 2.0 GiB, source bind-request", "limits GPU-n-0 4.0 GiB, source kai-annotation, counts no",
        "driver limits container main, gpu uuid GPU-n-0, promised 1.0 GiB, hard 2.0 GiB, in force no, cause one-variable",
        "candidates source annotation, text gpu-fraction 0.5, bytes per gpu GPU-n-0 4.0 GiB",
        "over share policy evict yes, grace 30 s", "not evicted eviction-off", "gpus gpu uuid GPU-n-0, gpu 0, used 3.0 GiB, processes 1",
        "flag transitions over-share raised 2, cleared 0",
        f"problems reason pid-namespace, detail no process, first act {act.text}, runbook kaishare help {act.section}",
    ):  # fmt: skip
        assert line in lines
    (verdict,) = (line for line in lines if line.startswith("verdicts "))
    assert (
        "flagged yes, lasted 5 min, used 3.0 GiB, allowed 2.0 GiB, message uses 3.0 GiB\ufffd[31m" in verdict
    )
    (of_gpu,) = (line for line in lines if line.startswith("gpus uuid "))
    assert of_gpu.endswith(
        "utilization 58%, temperature celsius unknown, power watts 212.4, xid code 79, time 2025-11-24 03:12:00 UTC"
    )
