"""The table without a terminal: order, filter, groups, columns, head, text, JSON, hostile responses."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.top.details import details_of
from console.top.fleet import Arrangement, Fleet, GroupLine, Line, arrange
from console.top.gpu_rows import bar, percent, plain
from console.top.layout import COLUMNS, layout
from console.top.pod_rows import MAX_ROWS, PodRow, sign
from console.top.text import as_text, head, json_parts
from gpuagent.first_acts import FOR_GPU_AT_RISK
from service.text import width
from tests.support.top_agents import GIB, agent_pod, document, fleet_of, gpu, pod, received

CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
SILENT = "no answer within 5 s"
ALL = Arrangement()


def busy() -> Fleet:
    """Two nodes with pods of every kind, and one that does not answer."""
    on_b = (
        pod("flagged-short", "node-b", 3 * GIB, lasted=200.0, is_flagged=True, queue="vision"),
        pod("little", "node-b", GIB // 2, namespace="team-b"),
        pod("in-grace", "node-b", 5 * GIB, lasted=20.0),
    )
    flagged = pod("flagged-long", "node-a", GIB, lasted=900.0, is_flagged=True)
    on_a = (pod("much", "node-a", 2 * GIB), pod("unknown", "node-a", None), flagged)
    return fleet_of(
        {"node-b": document("node-b", *on_b), "node-a": document("node-a", *on_a), "node-c": SILENT}
    )


def line_text(fleet: Fleet, columns: int, line: Line) -> str:
    chosen = layout(columns, fleet.widths)
    if isinstance(line, PodRow):
        return chosen.row(sign(line, is_old=False), line.cells)
    return chosen.fit(line.text(5.0))


def names(lines: list[Line]) -> list[str]:
    return [line.cells["pod"] if isinstance(line, PodRow) else line.key[1] for line in lines]


@pytest.mark.parametrize(
    ("arrangement", "expected"),
    [
        (ALL, ["flagged-long", "flagged-short", "in-grace", "agent-of-node-c", "much", "little", "unknown"]),
        (Arrangement(sort="used"), ["agent-of-node-c", "in-grace", "flagged-short", "much"]),
        (Arrangement(sort="pod"), ["agent-of-node-c", "flagged-long", "flagged-short", "in-grace"]),
        (Arrangement(sort="node"), ["agent-of-node-c", "flagged-long", "much", "unknown"]),
        (Arrangement(flagged_only=True), ["flagged-long", "flagged-short"]),
        (Arrangement(words=("vision",)), ["flagged-short"]),
        (Arrangement(words=("node-b", "team-b/")), ["little"]),
        (Arrangement(words=("over-share", "flagged")), ["flagged-long", "flagged-short"]),
        (Arrangement(words=("node-c",)), ["agent-of-node-c"]),
        (Arrangement(namespace="team-b"), ["agent-of-node-c", "little"]),
    ],
)
def test_order_and_filters(arrangement: Arrangement, expected: list[str]) -> None:
    lines = names(arrange(busy(), arrangement))
    assert lines[: len(expected)] == expected
    assert len(lines) == (7 if arrangement.sort != "flags" else len(expected))


def test_groups_have_sums_and_the_flagged_ones_come_first() -> None:
    lines = arrange(busy(), Arrangement(group="namespace"))
    assert [line for line in lines if isinstance(line, GroupLine)] == [
        GroupLine("team-a", "5 rows, 2 flagged, 1 in grace, used ≥11.0 GiB of shares ≥10.0 GiB"),
        GroupLine("team-b", "1 row, 0 flagged, 0 in grace, used 512.0 MiB of shares 2.0 GiB"),
    ]
    by_queue = arrange(busy(), Arrangement(group="queue"))
    assert {line.name for line in by_queue if isinstance(line, GroupLine)} == {"vision", "(no queue)"}


def test_an_agent_that_stops_answering_keeps_its_rows_with_age_and_reason() -> None:
    fleet = busy()
    fleet.set_failure("agent-of-node-b", "Connection refused")
    text = as_text(fleet, ALL, 65.0, columns=200)
    assert " ? node-b: no answer for 65 s: Connection refused" in text
    assert re.search(r"(?m)^!\? flagged: over-share .*flagged-short", text)
    assert "2 NOT ANSWERING" in text
    fleet.set_response("agent-of-node-b", received(document("node-b"), 66.0))
    assert "node-b" not in as_text(fleet, ALL, 67.0)


def test_the_head_names_what_is_wrong_with_gpus_and_agents_and_counts_come_before_names() -> None:
    problem = {"reason": "nvml", "gpuUuid": "GPU-gone", "detail": "the GPU fell off the bus"}
    partly = {"reason": "nvml", "gpuUuid": "GPU-node-a-0", "detail": "some MIG devices could not be read"}
    away = pod("away", "node-a", index=1, shares={}, gpus=[], verdicts=[])
    lost = [{"uuid": "GPU-gone", "index": 1}]
    risky = gpu("node-b", 4, promisedBytes=24 * GIB, usedBytes=22 * GIB, atRiskBytes=3 * GIB)
    over = gpu("node-b", 3, promisedBytes=30 * GIB)
    fleet = fleet_of(
        {"node-a": document("node-a", away, problems=[problem, partly], lostGpus=lost),
            "node-b": document("node-b", gpus=[over, risky]), "node-c": SILENT,
            "node-d": document("node-d", attributionOk=False)}
    )  # fmt: skip
    (memory, _), gpus, (agents, _) = head(fleet, 30.0)
    assert "used ≥52.0 GiB, promised ≥94.0 GiB of ≥96.0 GiB" in memory
    assert gpus == (
        (
            "5 GPUs: 1 AT RISK; 1 LOST; 1 OVERPROMISED (at risk: node-b GPU 4: 3.0 GiB promised and not free;"
            " lost: node-a GPU 1; overpromised: node-b GPU 3: 30.0 GiB of 24.0 GiB)"
        ),
        True,
    )
    silent = f"not answering: node-c for 30 s: {SILENT}; suspended: node-d"
    assert agents == f"4 nodes: 1 NOT ANSWERING; 1 WITH VERDICTS SUSPENDED; 2 problems ({silent})"
    text = " ".join(as_text(fleet, ALL, 30.0).split())
    assert "? node-a: nvml (GPU 1): the GPU fell off the bus; nvml (GPU 0): some MIG" in text


def test_the_text_of_one_agent_has_its_gpus_and_what_to_do() -> None:
    risky = gpu("n", 1, promisedBytes=24 * GIB, usedBytes=22 * GIB, atRiskBytes=3 * GIB)
    fleet = fleet_of({"n": document("n", gpus=[risky], lostGpus=[{"uuid": "GPU-gone", "index": 2}])})
    _, _, _, _, heading, first, second, act, *_ = as_text(fleet, ALL, 0.0, columns=140).splitlines()
    assert heading.split() == ["GPU", "MODEL", "USED", "PROMISED", "FREE", "UTIL"]
    assert first.startswith("n GPU 1  NVIDIA A10  22.0 GiB  24.0 GiB  2.0 GiB")
    assert first.endswith("AT RISK: 3.0 GiB promised and not free")
    assert second.endswith("LOST")
    assert act.startswith(f"GPU 1: {FOR_GPU_AT_RISK.text} See ")


def test_an_empty_table_says_why_and_nothing_is_called_well_before_it_is_known() -> None:
    fleet = Fleet(place=' on node "b"')
    assert "0 GPUs: none known to be lost\n0 nodes: listing the agents\n" in as_text(fleet, ALL, 0.0)
    fleet.set_agents([], 0.0)
    assert '0 nodes: no agent found on node "b"\nNo agents on node "b".\n' in as_text(fleet, ALL, 0.0)
    fleet.set_agents([agent_pod("n")], 10.0)
    text = as_text(fleet, ALL, 13.0)
    assert "none known to be lost" in text
    assert " ? n: asked 3 s ago, no answer yet" in text
    fleet.set_response("agent-of-n", received(document("n")))
    assert "1 GPU: none lost\n1 node: all answer\n" in as_text(fleet, ALL, 0.0)
    assert as_text(fleet, ALL, 0.0).endswith("No pod has a GPU share or uses GPU memory.\n")
    for narrow in (Arrangement(namespace="a"), Arrangement(flagged_only=True), Arrangement(words=("x",))):
        assert as_text(fleet, narrow, 0.0).endswith("No pod matches the options.\n")
    stale = json.dumps({"node": "a", "attributionOk": False, "gpus": [], "pods": []}).encode()
    (memory, _), (gpus, _), _ = head(fleet_of({"a": stale}), 0.0)
    assert memory.endswith("used ≥0 B, promised ≥0 B of ≥0 B")
    assert gpus == "0 GPUs: none known to be lost"


def test_a_list_that_fails_keeps_the_agents_and_says_so_and_agents_that_are_gone_leave() -> None:
    fleet = busy()
    fleet.set_list_failure("Connection refused")
    text = as_text(fleet, ALL, 1.0)
    assert "nodes: LIST OF AGENTS FAILED; " in text
    assert "(list: Connection refused; " in text
    assert "flagged-long" in text
    fleet.set_agents([agent_pod("node-a")], 1.0)
    assert "node-b" not in as_text(fleet, ALL, 1.0)
    fleet.set_response("agent-of-node-b", received(document("node-b")))
    fleet.set_failure("agent-of-node-c", "late")
    assert list(fleet.agents) == ["agent-of-node-a"]
    for node in ("", "node-x"):  # the pod is not bound at first
        fleet.set_agents([agent_pod(node, "new")], 1.0)
    assert [(agent.pod.spec.node_name, agent.node) for agent in fleet.agents.values()] == [
        ("node-x", "node-x")
    ]


@pytest.mark.parametrize("second", [True, False])
def test_a_pod_that_is_flagged_on_two_gpus_counts_once(second: bool) -> None:
    holdings = [{"gpuUuid": f"GPU-n-{index}", "gpu": index, "usedBytes": 3 * GIB} for index in (0, 1)]
    verdict = {"reason": "over-share", "gpuUuid": "GPU-n-0", "flagged": True, "lastedSeconds": 200.0}
    verdicts = [verdict, {**verdict, "gpuUuid": "GPU-n-1", "flagged": second}]
    fleet = fleet_of({"n": document("n", pod("two", "n", gpus=holdings, verdicts=verdicts))})
    assert head(fleet, 0.0)[0][0].startswith("1 flagged, 0 in grace, 1 pod;")


@pytest.mark.parametrize(
    ("name", "commands"),
    [("train-0", ["kaishare why -n team-a train-0"]), ("x; reboot", []), ("$(id)", [])],
)
def test_details_name_a_command_for_names_safe_in_a_shell(name: str, commands: list[str]) -> None:
    fleet = fleet_of({"n": document("n", pod(name, "n", namespace="team-a"))})
    (row,) = fleet.agents["agent-of-n"].table.rows
    assert [line for line in details_of(row, fleet, 0.0) if "kaishare why" in line] == commands


def test_columns_appear_with_the_width_and_the_documentation_shows_those_of_the_printed_table() -> None:
    narrow, middle, wide = (layout(columns, busy().widths).heading().split() for columns in (55, 80, 200))
    assert ("NAMESPACE/POD" in narrow, "OVER" in narrow, "OVER" in middle) == (True, False, True)
    # No pod has a size, and no agent measures the utilisation.
    assert " ".join(wide) == "STATE NODE GPU USED SHARE % OVER FOR POD NAMESPACE QUEUE PROCESSES"
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")
    (heading,) = (line for line in page.splitlines() if line.startswith("   GPU "))
    left_out = {"", "STATE", "NODE", "SIZE", "PROCESSES", "NAMESPACE/POD"}
    # the bar, the node that the head names, and columns for wider terminals
    assert re.split(r" {1,40}", heading.replace("OVER FOR", "OVER-FOR").strip()) == [
        column.heading.replace(" ", "-") for column in COLUMNS if column.heading not in left_out
    ]


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 120, 300])
def test_every_line_has_exactly_the_width_and_a_long_name_keeps_both_ends(columns: int) -> None:
    name = "a-deployment-with-a-name-as-long-as-kubernetes-allows-5d4f8c7b96-x2x7k"
    fleet = fleet_of({"node-with-a-long-name.example": document("x", pod(name, "x")), "n": SILENT})
    texts = [line_text(fleet, columns, line) for line in arrange(fleet, Arrangement(group="node"))]
    assert {len(text) for text in texts} == {columns}
    assert ("x7k" in texts[-1]) == (columns >= 60)


HOSTILE = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["[red]x[/red]", "[/]", "[link=file:///x]y[/link]", "[@click=app.quit]x[/]", "\x1b[31mred", "\x1b]0;t\x07",
                     "\x9b31m", "a\nb", "a\rb", "\u202eevil", "\u2028", ":boom:", "漢字" * 30, "e\u0301" * 20, "x" * 5000,
                     "\x00", "\u115f\u3164", "👩‍👩‍👧‍👦", "\ufe0f", "עברית", "\U000e0041"]),
)  # fmt: skip


@settings(deadline=None)
@given(HOSTILE, HOSTILE, HOSTILE, st.sampled_from([24, 80, 120, 200]))
def test_no_name_acts_or_breaks_the_table(first: str, second: str, third: str, columns: int) -> None:
    made = pod(
        first, "n", 3 * GIB, lasted=9.0, is_flagged=True, namespace=second, queue=third, size=first, notes=[third],
        uid=second, vcluster={"name": first, "namespace": second, "pod": third}, phase=third, gpuGroups=[first],
    )  # fmt: skip
    made["verdicts"][0] |= {"reason": third, "firstAct": first, "runbook": second, "message": third}
    made["candidates"][0]["text"] = second
    act = {"firstAct": third, "runbook": first}
    problems = [{"reason": first, "gpuUuid": second, "detail": third, **act}]
    body = json.loads(document("n", made, problems=problems, gpus=[gpu("n", model=second) | act]))
    for others in ({}, {"m": document("m", pod("good", "m")), "k": "x"}):
        fleet = fleet_of({"n": json.dumps(body).encode(), **others})
        fleet.set_failure("agent-of-k", second)
        for line in arrange(fleet, Arrangement(group="queue")):
            texts = [line_text(fleet, columns, line), *details_of(line, fleet, 1.0)]
            assert len(texts[0]) == columns
            for text in texts:
                assert not CONTROLS.search(text)
                assert width(text) == len(text)
        text = as_text(fleet, ALL, 1.0)
        assert not CONTROLS.search(text.replace("\n", ""))
        assert len(text.splitlines()) == text.count("\n")
        assert "".join(json_parts(fleet, ALL, 1.0)).isascii()


NUMBERS = st.one_of(st.none(), st.integers(-(1 << 70), 1 << 70))


@settings(deadline=None)
@given(NUMBERS, NUMBERS, NUMBERS, st.floats(-1e300, 1e300))
def test_implausible_numbers_are_unknown_and_break_nothing(
    used: int | None, other: int | None, promised: int | None, seconds: float
) -> None:
    made: dict[str, Any] = pod("p", "n", used, share=other or 0, lasted=seconds, is_flagged=True)
    made["verdicts"][0]["balanceSeconds"] = seconds
    made["gpus"][0] |= {"gpu": other or 0, "processes": promised or 0}
    fields = {"usedBytes": used, "totalBytes": other, "promisedBytes": promised}
    fleet = fleet_of({"n": document("n", made, gpus=[gpu("n", other or 0, **fields)])})
    for line in arrange(fleet, ALL):
        assert len(line_text(fleet, 100, line)) == 100
        details_of(line, fleet, 0.0)
    as_text(fleet, ALL, 0.0)
    assert len(head(fleet, 0.0)[0][0]) < 120


def test_a_taken_node_cannot_name_another_or_fill_the_memory_or_the_screen() -> None:
    many = pod(
        "many",
        "x",
        3 * GIB,
        gpuUuids=[f"GPU-{number}" for number in range(100_000)],
        notes=["x" * 5000] * 9999,
    )
    many["candidates"] = [
        {"source": "s", "text": "t" * 500, "bytesPerGpu": {f"GPU-{n}": 1 for n in range(999)}}
    ] * 999
    fleet = fleet_of({"taken": document("innocent", many, *(pod(f"p{n}", "x") for n in range(9000)))})
    rows = fleet.agents["agent-of-taken"].table.rows
    assert len(rows) <= MAX_ROWS
    assert {row.cells["node"] for row in rows} == {"taken"}
    details = details_of(rows[0], fleet, 0.0)
    assert (len(details) < 500, max(map(len, details)) < 2100) == (True, True)


def test_an_equal_response_is_not_read_again() -> None:
    fleet = busy()
    agent = fleet.agents["agent-of-node-a"]
    rows, again = agent.table.rows, agent.received
    assert again is not None
    fleet.set_response("agent-of-node-a", received(again.body, 9.0))
    assert agent.table.rows is rows


def test_json_is_one_document_with_failures() -> None:
    fleet = busy()
    parts = list(json_parts(fleet, ALL, 2.0))
    assert len(parts) == 4, "one for each agent, since 5,000 agents have 100 MB"
    whole = json.loads("".join(parts))
    assert "".join(parts) == json.dumps(whole, indent=2) + "\n"
    by_node = {agent["node"]: agent for agent in whole["agents"]}
    assert by_node["node-c"] == {
        "agent": "agent-of-node-c", "node": "node-c", "answered": False, "ageSeconds": None, "error": SILENT, "shares": None,
    }  # fmt: skip
    assert (by_node["node-a"]["ageSeconds"], len(by_node["node-a"]["shares"]["pods"])) == (2.0, 3)
    assert "".join(json_parts(Fleet(), ALL, 1.0)) == json.dumps({"agents": []}, indent=2) + "\n"


def test_small_texts() -> None:
    assert [percent(None), percent(0.5), percent(100.0)] == ["unknown", "50%", ">9999%"]
    assert [bar(ratio, 4) for ratio in (0.0, 0.5, 1.0, 1.5, None)] == ["    ", "██  ", "████", "███▶", "    "]
    assert plain("Ü–漢\u202e") == "Ü–\ufffd\ufffd"


def test_no_name_is_cut_in_a_pipe() -> None:
    widths = {"name": 104, "node": 50, "used": 9, "share": 9}
    for is_whole in (True, False):
        chosen = layout(80, widths, is_whole=is_whole)
        sizes = {column.name: size for column, size in chosen.columns}
        assert (sizes["name"] >= 104) is is_whole
        assert (chosen.width > 80) is is_whole
        assert sum(sizes.values()) + len(sizes) + 2 <= chosen.width
