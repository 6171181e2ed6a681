"""GPUs at risk, idle shares, sensors, and what to do first, in the table and in the details."""

import json
from pathlib import Path
from typing import Any

import pytest

from console.top.arrange import Arrangement, GroupBy, GroupLine, arrange
from console.top.details import details_of
from console.top.fleet import Fleet
from console.top.text import as_text, head, json_parts
from gpuagent.first_acts import FOR_FLAG, FOR_GPU_AT_RISK, FOR_OVERPROMISED_GPU, FOR_PROBLEM
from gpuagent.problems import Cause
from gpuagent.table.pod_rows import PodRow, PodState
from gpuagent.verdicts.flag_reasons import FlagReason
from tests.support.top_agents import GIB, document, fleet_of, gpu, pod

RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks.md"
MIB = 1 << 20
FULL: dict[str, Any] = {"usedBytes": 22 * GIB, "promisedBytes": 24 * GIB, "atRiskBytes": 3 * GIB}


def rows_of(fleet: Fleet) -> dict[str, PodRow]:
    return {row.pod: row for agent in fleet.agents.values() for row in agent.table.rows}


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


def test_causes_and_pods_at_risk_have_words_and_amounts_and_come_before_the_rest() -> None:
    rows = rows_of(full())
    assert {name: (row.state, row.state_text) for name, row in rows.items()} == {
        "greedy": (PodState.FLAGGED, "flagged: over-share; holds 4.0 GiB above its share"),
        "waits": (PodState.WITHIN, "at risk: 5.0 GiB of its share unused, 2.0 GiB free"),
        "small": (PodState.WITHIN, "at risk: 1.0 GiB of its share unused, 2.0 GiB free"),
        "done": (PodState.WITHIN, "within share"),
    }
    names = [line.pod for line in arrange(full(), Arrangement()) if isinstance(line, PodRow)]
    assert names == ["greedy", "waits", "small", "done"]
    chosen = arrange(full(), Arrangement(flagged_only=True))
    assert [line.pod for line in chosen if isinstance(line, PodRow)] == ["greedy", "waits", "small"]
    document = json.loads("".join(json_parts(full(), Arrangement(flagged_only=True), 0.0)))["agents"][0][
        "shares"
    ]
    assert [each["name"] for each in document["pods"]] == ["small", "greedy", "waits"]


def test_a_cause_that_is_not_flagged_is_named_before_the_pods_at_risk() -> None:
    limited = pod("limited", "n", 12 * GIB, share=8 * GIB)
    suspended = {**pod("suspended", "n", 5 * GIB, share=3 * GIB), "verdicts": []}
    guest = {**pod("guest", "n", 300 * MIB), "shares": {}, "verdicts": []}
    lines = arrange(at_risk(limited, suspended, guest, pod("waits", "n", GIB, share=6 * GIB)), Arrangement())
    rows = [line for line in lines if isinstance(line, PodRow)]
    assert [(row.pod, row.state_text) for row in rows] == [
        ("limited", "holds 4.0 GiB above its share"),
        ("suspended", "holds 2.0 GiB above its share; not judged"),
        ("guest", "holds 300.0 MiB without a share here; not judged"),
        ("waits", "at risk: 5.0 GiB of its share unused, 2.0 GiB free"),
    ]
    text = as_text(at_risk(limited, pod("waits", "n", GIB, share=6 * GIB)), Arrangement(), 0.0)
    assert [line[0] for line in text.splitlines() if line.endswith("team-a")] == ["+", "*"]


@pytest.mark.parametrize(
    ("pods", "fields", "causes"),
    [
        ({"most": (4 * GIB + 100 * MIB, 4 * GIB), "less": (GIB + 50 * MIB, GIB)}, {}, {"most"}),
        ({"most": (6 * GIB, 4 * GIB), "less": (GIB + 50 * MIB, GIB)}, {}, {"most"}),
        ({"most": (6 * GIB, 4 * GIB), "less": (2 * GIB, GIB)}, {}, {"most", "less"}),
        ({"most": (4 * GIB + 100 * MIB, 4 * GIB)}, {"promisedBytes": 30 * GIB}, set()),
        ({"most": (6 * GIB, 4 * GIB)}, {"atRiskBytes": 0}, set()),
        ({"most": (6 * GIB, 4 * GIB)}, {"atRiskBytes": None}, set()),
    ],
    ids=[
        "small slack",
        "a small one beside",
        "two",
        "overpromised alone",
        "no risk",
        "unknown, or an older agent",
    ],
)
def test_the_causes_of_a_risk_are_the_largest_and_all_above_256_mib(
    pods: dict[str, tuple[int, int]], fields: dict[str, Any], causes: set[str]
) -> None:
    fleet = at_risk(*(pod(name, "n", used, share=share) for name, (used, share) in pods.items()), **fields)
    assert {name for name, row in rows_of(fleet).items() if row.is_cause} == causes
    assert not any(row.is_at_risk for row in rows_of(fleet).values())


def test_a_pod_of_unknown_use_is_the_cause_by_what_is_known_of_it_and_no_innocent_takes_its_place() -> None:
    hog = pod("hog", "n", 30 * GIB, share=18 * GIB, lasted=300.0, is_flagged=True)
    hog["gpus"][0]["usedBytes"] = hog["verdicts"][0]["usedBytes"] = None
    hog["verdicts"][0]["usedAtLeastBytes"] = 30 * GIB
    innocent = pod("innocent", "n", 4 * GIB + 16 * MIB, share=4 * GIB)
    hidden = {**pod("hidden", "n", share=6 * GIB), "verdicts": []}
    hidden["gpus"][0]["usedBytes"] = None
    rows = rows_of(at_risk(hog, innocent, hidden))
    assert {name: (row.is_cause, row.is_at_risk, row.risk.text) for name, row in rows.items()} == {
        "hog": (True, False, "holds at least 12.0 GiB above its share"),
        "innocent": (False, False, ""),
        "hidden": (False, True, "at risk: up to 6.0 GiB of its share unused, 2.0 GiB free"),
    }
    unknown = {**pod("unknown", "n"), "shares": {}, "verdicts": []}
    unknown["gpus"][0]["usedBytes"] = None
    assert not rows_of(at_risk(innocent, unknown))["innocent"].is_cause


def test_a_pod_that_may_use_its_share_on_any_gpu_or_has_gpus_of_unknown_size_is_no_cause() -> None:
    lost = {**pod("lost", "n", 4 * GIB), "shares": {}, "gpuUnresolved": True}
    lost["verdicts"] = [
        {
            "reason": "over-share",
            "gpuUuid": lost["gpus"][0]["gpuUuid"],
            "usedBytes": 4 * GIB,
            "allowedBytes": 5 * GIB,
        }
    ]
    claim = {**pod("claim", "n", 9 * GIB), "shares": {}, "verdicts": [], "hasUnsizedGpus": True}
    unresolved = {**pod("unresolved", "n", 9 * GIB), "shares": {}, "verdicts": [], "gpuUnresolved": True}
    rows = rows_of(at_risk(lost, claim, unresolved, pod("waits", "n", GIB, share=6 * GIB)))
    assert [name for name, row in rows.items() if row.is_cause] == []
    assert [name for name, row in rows.items() if row.is_at_risk] == ["waits"]


def test_the_head_names_gpus_at_risk_first_and_each_gpu_has_its_free_memory() -> None:
    second = document("m", gpus=[gpu("m", promisedBytes=30 * GIB)])
    fleet = fleet_of({"n": document("n", gpus=[gpu("n", 1, **FULL)]), "m": second})
    line = head(fleet, 0.0)[1]
    assert line.is_alarm
    assert line.text == (
        "2 GPUs: 1 AT RISK; 1 OVERPROMISED (at risk: n GPU 1: 3.0 GiB promised and not free;"
        " overpromised: m GPU 0: 30.0 GiB of 24.0 GiB)"
    )
    alone = fleet_of({"n": document("n", gpus=[gpu("n", 1, **FULL)])})
    assert head(alone, 0.0)[1].text == "1 GPU: 1 AT RISK (n GPU 1: 3.0 GiB promised and not free)"
    wide = as_text(alone, Arrangement(), 0.0, columns=140)
    assert "GPU 1  NVIDIA A10  22.0 GiB  24.0 GiB  2.0 GiB  24.0 GiB" in wide
    assert wide.splitlines()[6].endswith("AT RISK: 3.0 GiB promised and not free")
    assert "free 2.0 GiB" in as_text(alone, Arrangement(), 0.0, columns=80)


def test_groups_count_the_pods_at_risk() -> None:
    lines = arrange(full(), Arrangement(group=GroupBy.QUEUE))
    headings = {line.name: line.at_risk for line in lines if isinstance(line, GroupLine)}
    assert headings == {"(no queue)": 1, "vision": 1}
    assert "1 flagged, 0 in grace, 1 at risk," in as_text(full(), Arrangement(group=GroupBy.QUEUE), 0.0)


def test_details_of_a_pod_at_risk_name_the_cause_the_remedy_and_the_commands() -> None:
    fleet = full()
    lines = details_of(rows_of(fleet)["waits"], fleet, 0.0)
    assert lines[:8] == [
        "pod         team-a/waits",
        "command     kaishare why -n team-a waits",
        "",
        "GPU at risk GPU 0: 3.0 GiB promised and not free; the pod: at risk: 5.0 GiB of its share unused, 2.0 GiB free",
        "caused by   team-a/greedy: holds 4.0 GiB above its share; kaishare why -n team-a greedy",
        f"do first    {FOR_GPU_AT_RISK.text}",
        "runbook     docs/runbooks.md, KaishareGPUMemoryAtRisk",
        "uid         uid-n-waits",
    ]


def test_details_of_a_flag_have_its_message_and_what_to_do() -> None:
    greedy = pod("greedy", "n", 3 * GIB, lasted=300.0, is_flagged=True)
    greedy["verdicts"][0]["message"] = (
        "uses 3.0 GiB on GPU 0; vLLM: set --gpu-memory-utilization=0.08\x1b[31m"
    )
    fleet = fleet_of({"n": document("n", greedy)})
    lines = details_of(rows_of(fleet)["greedy"], fleet, 0.0)
    assert lines[3:6] == [
        "flagged     over-share: uses 3.0 GiB on GPU 0; vLLM: set --gpu-memory-utilization=0.08\N{REPLACEMENT CHARACTER}[31m",
        f"do first    {FOR_FLAG['over-share'].text}",
        "runbook     docs/runbooks.md, KaisharePodOverShare",
    ]
    old = fleet_of({"n": document("n", pod("greedy", "n", 3 * GIB, lasted=300.0, is_flagged=True))})
    assert "flagged     over-share: 3.0 GiB of 2.0 GiB" in details_of(rows_of(old)["greedy"], old, 0.0)


def test_a_reason_of_a_newer_agent_has_no_remedy_and_breaks_nothing() -> None:
    strange = pod("strange", "n", 3 * GIB, lasted=300.0, is_flagged=True)
    strange["verdicts"][0]["reason"] = "too-green"
    problem = {"reason": "too-blue", "gpuUuid": "", "detail": "blue"}
    fleet = fleet_of({"n": document("n", strange, problems=[problem])})
    lines = details_of(rows_of(fleet)["strange"], fleet, 0.0)
    assert "flagged     too-green: 3.0 GiB of 2.0 GiB" in lines
    assert "problem: too-blue (the node): blue" in lines
    assert not [line for line in lines if line.startswith(("do first", "runbook"))]


def test_problems_and_gpus_in_trouble_have_a_remedy_in_the_details() -> None:
    problem = {"reason": "pid-namespace", "gpuUuid": "", "detail": "no process is visible"}
    body = document("n", pod("a", "n"), gpus=[gpu("n", promisedBytes=30 * GIB)], problems=[problem])
    fleet = fleet_of({"n": body})
    lines = details_of(rows_of(fleet)["a"], fleet, 0.0)
    assert lines[lines.index("problem: pid-namespace (the node): no process is visible") + 1] == (
        f"do first    {FOR_PROBLEM[Cause.PID_NAMESPACE].text}"
    )
    assert lines[-2:] == [
        f"do first    {FOR_OVERPROMISED_GPU.text}",
        "runbook     docs/runbooks.md, KaishareGPUOverpromised",
    ]


def test_every_flag_and_problem_has_a_remedy_and_a_section_of_the_runbooks() -> None:
    assert FOR_FLAG.keys() == set(FlagReason)
    assert FOR_PROBLEM.keys() == set(Cause)
    sections = RUNBOOKS.read_text(encoding="utf-8")
    for step in (*FOR_FLAG.values(), *FOR_PROBLEM.values(), FOR_OVERPROMISED_GPU):
        assert step.text.endswith(".")
        assert f"\n## {step.section}\n" in sections


@pytest.mark.parametrize(
    ("used", "seconds", "expected"),
    [
        (0, 3 * 3600.0, "idle for 3 h: no memory"),
        (GIB, 3600.0, "idle for 60 min: no kernel"),
        (GIB, 3599.9, "within share"),
        (GIB, None, "within share"),
        (2 * GIB + 1, 1e300, "within slack"),
        (GIB, 1e300, "idle for 115741 d: no kernel"),
        (GIB, -5.0, "within share"),
    ],
)
def test_a_share_that_is_idle_for_an_hour_is_shown_so(
    used: int, seconds: float | None, expected: str
) -> None:
    idle = pod("idle", "n", used)
    idle["gpus"][0]["idleSeconds"] = seconds
    row = rows_of(fleet_of({"n": document("n", idle)}))["idle"]
    assert (row.state, row.state_text, row.is_urgent) == (PodState.WITHIN, expected, False)


def test_a_whole_gpu_that_is_idle_says_so() -> None:
    idle = {**pod("idle", "n", GIB), "verdicts": []}
    idle["gpus"][0]["idleSeconds"] = 7 * 86400.0
    for share in idle["shares"].values():
        share["source"] = "whole-gpu"
    row = rows_of(fleet_of({"n": document("n", idle)}))["idle"]
    assert row.state_text == "idle for 7 d: no kernel; not judged: whole GPU"


def test_sensors_and_the_newest_xid_are_in_the_details_and_the_xid_is_a_note() -> None:
    xid = {"code": 79, "time": 1_763_953_920.0}
    sensors = {
        "utilizationRatio": 0.58,
        "temperatureCelsius": 71,
        "powerWatts": 212.4,
        "powerLimitWatts": 300.0,
    }
    fleet = fleet_of({"n": document("n", pod("a", "n"), gpus=[gpu("n", xid=xid, **sensors)])})
    (state,) = fleet.agents["agent-of-n"].table.gpus
    assert state.notes == "XID 79 at Nov 24 03:12 UTC"
    assert state.text.endswith("UTC, utilisation 58%, temperature 71 °C, power 212 W of 300 W")
    assert state.text in details_of(rows_of(fleet)["a"], fleet, 0.0)


def test_a_lost_gpu_has_the_error_with_which_it_was_lost() -> None:
    lost = {"uuid": "GPU-gone", "index": 1, "xid": {"code": 79, "time": 1_763_953_920.0}}
    fleet = fleet_of({"n": document("n", pod("a", "n"), lostGpus=[lost])})
    state = fleet.agents["agent-of-n"].table.gpus[-1]
    assert state.notes == "LOST, XID 79 at Nov 24 03:12 UTC"


@pytest.mark.parametrize(
    "fields",
    [
        {"xid": {"code": -1, "time": 0.0}},
        {"utilizationRatio": 1e9, "temperatureCelsius": 10**15, "powerWatts": -1.0},
        {"utilizationRatio": None, "powerWatts": None, "powerLimitWatts": 300.0},
    ],
)
def test_implausible_sensors_are_left_out(fields: dict[str, Any]) -> None:
    fleet = fleet_of({"n": document("n", gpus=[gpu("n", **fields)])})
    (state,) = fleet.agents["agent-of-n"].table.gpus
    assert (state.notes, state.sensors) == ("", ())
