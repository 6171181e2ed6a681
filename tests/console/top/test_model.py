"""The table in a terminal, without one: order, filter, groups, columns, head, hostile responses."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.top.arrange import AgentLine, Arrangement, GroupBy, GroupLine, Line, Sort, arrange, is_old
from console.top.columns import COLUMNS, bar, merge_widths
from console.top.details import details_of
from console.top.fleet import AgentRef, Fleet
from console.top.layout import layout
from console.top.text import as_text, head, json_parts
from gpuagent.evaluation.status import Status
from gpuagent.server.api import shares_json
from gpuagent.table.gpu_rows import percent, plain
from gpuagent.table.pod_rows import MAX_ROWS, PodRow
from service.text import width
from tests.support import samples
from tests.support.top_agents import GIB, document, fleet_of, gpu, pod, received

CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
SILENT = "no answer within 5 s"


def busy() -> Fleet:
    """Two nodes with pods of every kind, and one that does not answer."""
    return fleet_of(
        {
            "node-b": document(
                "node-b",
                pod("flagged-short", "node-b", 3 * GIB, lasted=200.0, is_flagged=True, queue="vision"),
                pod("little", "node-b", GIB // 2, namespace="team-b"),
                pod("in-grace", "node-b", 5 * GIB, lasted=20.0),
            ),
            "node-a": document(
                "node-a",
                pod("much", "node-a", 2 * GIB),
                pod("unknown", "node-a", None),
                pod("flagged-long", "node-a", GIB, lasted=900.0, is_flagged=True),
            ),
            "node-c": SILENT,
        }
    )


def names(lines: list[Line]) -> list[str]:
    return [line.pod if isinstance(line, PodRow) else line.key[1] for line in lines]


def test_a_violation_without_a_known_gpu_is_shown_while_it_is_in_its_grace() -> None:
    verdict = {"reason": "no-reservation", "gpuUuid": "", "flagged": False, "lastedSeconds": 60}
    away = {**pod("away", "n", GIB), "gpuUuids": [], "verdicts": [{**verdict, "balanceSeconds": 60}]}
    fleet = fleet_of({"n": document("n", away)})
    assert "in grace: no-reservation" in [row.state_text for row in arrange(fleet, Arrangement())]
    assert head(fleet, 0.0)[0].text.startswith("0 flagged, 1 in grace")


@pytest.mark.parametrize("seconds", [-2, -1e300, 1e300])
def test_impossible_seconds_break_no_table(seconds: float) -> None:
    verdict = {"reason": "over-share", "gpuUuid": "GPU-0", "flagged": True, "lastedSeconds": seconds}
    wrong = {**pod("wrong", "n", GIB), "verdicts": [{**verdict, "balanceSeconds": seconds}]}
    fleet = fleet_of({"n": document("n", wrong)})
    assert "wrong" in as_text(fleet, Arrangement(), 0.0)


def test_flagged_rows_come_first_then_violations_then_agents_in_trouble_then_use_of_the_share() -> None:
    assert names(arrange(busy(), Arrangement())) == [
        "flagged-long", "flagged-short", "in-grace", "agent-of-node-c", "much", "little", "unknown",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        (Sort.USED, ["in-grace", "flagged-short", "much"]),
        (Sort.SHARE, ["in-grace", "flagged-short", "much"]),
        (Sort.OVER, ["flagged-long", "flagged-short", "in-grace"]),
        (Sort.POD, ["flagged-long", "flagged-short", "in-grace"]),
        (Sort.NODE, ["flagged-long", "much", "unknown"]),
    ],
)
def test_other_orders_begin_with_agents_in_trouble(sort: Sort, first: list[str]) -> None:
    assert names(arrange(busy(), Arrangement(sort=sort)))[:4] == ["agent-of-node-c", *first]


@pytest.mark.parametrize(
    ("arrangement", "expected"),
    [
        (Arrangement(flagged_only=True), ["flagged-long", "flagged-short"]),
        (Arrangement(words=("vision",)), ["flagged-short"]),
        (Arrangement(words=("node-b", "team-b/")), ["little"]),
        (Arrangement(words=("over-share", "flagged")), ["flagged-long", "flagged-short"]),
        (Arrangement(words=("node-c",)), ["agent-of-node-c"]),
        (Arrangement(namespace="team-b"), ["agent-of-node-c", "little"]),
    ],
)
def test_filters(arrangement: Arrangement, expected: list[str]) -> None:
    assert names(arrange(busy(), arrangement)) == expected


def test_groups_have_sums_and_the_flagged_ones_come_first() -> None:
    lines = arrange(busy(), Arrangement(group=GroupBy.NAMESPACE))
    headings = [line for line in lines if isinstance(line, GroupLine)]
    assert [(line.name, line.rows, line.flagged, line.over) for line in headings] == [
        ("team-a", 5, 2, 1),
        ("team-b", 1, 0, 0),
    ]
    assert headings[0].used == 11 * GIB
    assert headings[0].is_lower_bound, "the memory of one pod is unknown"
    assert not headings[1].is_lower_bound
    by_queue = arrange(busy(), Arrangement(group=GroupBy.QUEUE))
    assert {line.name for line in by_queue if isinstance(line, GroupLine)} == {"vision", "(no queue)"}


def test_an_agent_that_stops_answering_keeps_its_rows_with_age_and_reason() -> None:
    fleet = busy()
    fleet.set_failure("agent-of-node-b", "Connection refused")
    lines = arrange(fleet, Arrangement())
    row = next(line for line in lines if isinstance(line, PodRow) and line.pod == "little")
    assert is_old(fleet, row)
    text = as_text(fleet, Arrangement(), 65.0, columns=200)
    assert " ? node-b: no answer for 65 s: Connection refused" in text
    assert re.search(r"(?m)^!\? flagged: over-share .*flagged-short", text)
    assert "2 NOT ANSWERING" in text
    fleet.set_response("agent-of-node-b", received(document("node-b"), 66.0))
    assert "node-b" not in as_text(fleet, Arrangement(), 67.0)


def test_the_head_names_lost_and_overpromised_gpus_and_silent_agents() -> None:
    lost = {"reason": "nvml", "gpuUuid": "GPU-gone", "detail": "the GPU fell off the bus"}
    fleet = fleet_of(
        {
            "node-a": document("node-a", problems=[lost], lostGpus=[{"uuid": "GPU-gone", "index": 1}]),
            "node-b": document("node-b", gpus=[gpu("node-b", 3, promisedBytes=30 * GIB)]),
            "node-c": SILENT,
            "node-d": document("node-d", attributionOk=False),
        }
    )
    texts = [line.text for line in head(fleet, 30.0)]
    assert all(line.is_alarm for line in head(fleet, 30.0)[1:])
    assert "used ≥30.0 GiB, promised ≥70.0 GiB of ≥72.0 GiB" in texts[0]
    assert texts[1] == (
        "4 GPUs: 1 LOST; 1 OVERPROMISED (lost: node-a GPU 1; overpromised: node-b GPU 3: 30.0 GiB of 24.0 GiB)"
    )
    assert texts[2].startswith("4 nodes: 1 NOT ANSWERING; 1 WITH VERDICTS SUSPENDED; 1 problem")
    assert " ? node-a: nvml (GPU 1): the GPU fell off the bus" in as_text(fleet, Arrangement(), 30.0)


def test_the_documentation_shows_the_columns_of_the_printed_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")
    (heading,) = (line for line in page.splitlines() if line.startswith("   GPU "))
    left_out = {"", "STATE", "NODE", "LIMIT", "SIZE", "PROCESSES", "SOURCE", "WORKLOAD", "IN VCLUSTER"}
    # the bar, the node that the head names, and columns for wider terminals
    assert re.split(r" {1,40}", heading.replace("OVER FOR", "OVER-FOR").strip()) == [
        column.heading.replace(" ", "-") for column in COLUMNS if column.heading not in left_out
    ]


def nvml_problem(uuid: str, detail: str) -> dict[str, str]:
    return {"reason": "nvml", "gpuUuid": uuid, "detail": detail}


def test_a_gpu_that_answers_in_part_is_not_lost() -> None:
    problems = [
        nvml_problem("GPU-node-a-0", "some MIG devices could not be read"),
        nvml_problem("MIG-node-a-0-1", "the list of processes was refused"),
    ]
    fleet = fleet_of({"node-a": document("node-a", problems=problems)})
    assert head(fleet, 1.0)[1].text == "1 GPU: none lost"
    assert "nvml (GPU 0): some MIG devices could not be read" in as_text(fleet, Arrangement(), 1.0)


def test_a_gpu_that_is_lost_keeps_its_index_and_its_pods() -> None:
    lost = nvml_problem("GPU-node-a-1", "the GPU fell off the bus")
    away = pod("away", "node-a", index=1, shares={}, gpus=[], verdicts=[])
    body = document("node-a", away, problems=[lost], lostGpus=[{"uuid": "GPU-node-a-1", "index": 1}])
    fleet = fleet_of({"node-a": body})
    assert head(fleet, 2.0)[1].text == "2 GPUs: 1 LOST (node-a GPU 1)"
    text = as_text(fleet, Arrangement(), 2.0)
    assert "nvml (GPU 1): the GPU fell off the bus" in text
    assert re.search(r"\nGPU 1 .* LOST\n", text)
    assert re.search(r" 1 +unknown +2\.0 GiB +unknown .* away ", text)
    assert "not judged: its GPU does not respond" in text


def test_long_names_hide_no_alarm_at_80_columns() -> None:
    nodes = [f"ip-10-0-{number}-34.eu-central-1.compute.internal" for number in range(6)]
    lost = [{"reason": "nvml", "gpuUuid": f"GPU-{'f' * 36}", "detail": "lost"}]
    bodies: dict[str, bytes | str] = {
        node: document(
            node,
            gpus=[gpu(node, promisedBytes=30 * GIB)],
            problems=lost,
            attributionOk=False,
            lostGpus=[{"uuid": f"GPU-{'f' * 36}", "index": 1}],
        )
        for node in nodes
    }
    fleet = fleet_of({**bodies, "node-c": SILENT})
    texts = [line.text for line in head(fleet, 30.0)]
    assert texts[1][:80].startswith("12 GPUs: 6 LOST; 6 OVERPROMISED (")
    assert texts[2][:80].startswith("7 nodes: 1 NOT ANSWERING; 6 WITH VERDICTS SUSPENDED; 6 problems (")


def test_an_empty_table_says_why() -> None:
    fleet = fleet_of({"node-a": document("node-a")})
    assert as_text(fleet, Arrangement(), 0.0).endswith("No pod has a GPU share or uses GPU memory.\n")
    for narrow in (Arrangement(namespace="a"), Arrangement(flagged_only=True), Arrangement(words=("x",))):
        assert as_text(fleet, narrow, 0.0).endswith("No pod matches the options.\n")
    missing = Fleet(place=' on node "b" in namespace kaishare-agent')
    missing.set_agents([], 0.0)
    text = as_text(missing, Arrangement(), 0.0)
    assert '0 nodes: no agent found on node "b" in namespace kaishare-agent\n' in text
    assert text.endswith('No agents on node "b" in namespace kaishare-agent.\n')


def test_a_list_that_fails_keeps_the_agents_and_says_so() -> None:
    fleet = busy()
    fleet.set_list_failure("Connection refused")
    agents = as_text(fleet, Arrangement(), 1.0).splitlines()[2]
    assert "nodes: LIST OF AGENTS FAILED; " in agents
    assert "(list: Connection refused; " in agents
    assert "flagged-long" in as_text(fleet, Arrangement(), 1.0)


def test_nothing_is_called_well_before_it_is_known() -> None:
    fleet = Fleet()
    assert "0 GPUs: none known to be lost\n0 nodes: listing the agents\n" in as_text(
        fleet, Arrangement(), 0.0
    )
    fleet.set_agents([], 0.0)
    assert "0 nodes: no agent found\nNo agents.\n" in as_text(fleet, Arrangement(), 0.0)
    fleet.set_agents([AgentRef("a", "n")], 0.0)
    assert "none known to be lost" in as_text(fleet, Arrangement(), 0.0)
    fleet.set_response("a", received(document("n")))
    assert "1 GPU: none lost\n1 node: all answer\n" in as_text(fleet, Arrangement(), 0.0)


def test_agents_that_are_gone_leave() -> None:
    fleet = busy()
    fleet.set_agents([AgentRef("agent-of-node-a", "node-a")], 1.0)
    assert "node-b" not in as_text(fleet, Arrangement(), 1.0)
    fleet.set_response("agent-of-node-b", received(document("node-b")))
    fleet.set_failure("agent-of-node-c", "late")
    assert list(fleet.agents) == ["agent-of-node-a"]


@pytest.mark.parametrize(("raised", "text"), [(0, "none raised"), (2, "2 raised, 0 cleared, 0 dropped")])
def test_details_have_the_flags_since_the_start(raised: int, text: str) -> None:
    counts = {"over-share": {"raised": raised, "cleared": 0, "dropped": 0}}
    fleet = fleet_of({"n": document("n", pod("a", "n"), flagTransitions=counts)})
    (row,) = fleet.agents["agent-of-n"].table.rows
    assert f"flags       {text} since the agent started" in list(details_of(row, fleet, 0.0))


@pytest.mark.parametrize(
    ("name", "commands"),
    [("train-0", ["command     kaishare why -n team-a train-0"]), ("x; reboot", []), ("$(id)", [])],
)
def test_details_name_the_command_for_the_story_of_a_pod_whose_name_is_safe_in_a_shell(
    name: str, commands: list[str]
) -> None:
    fleet = fleet_of({"n": document("n", pod(name, "n", namespace="team-a"))})
    (row,) = fleet.agents["agent-of-n"].table.rows
    assert [line for line in details_of(row, fleet, 0.0) if "kaishare why" in line] == commands


def test_unknown_is_never_zero() -> None:
    fleet = fleet_of({"n": document("n", pod("blind", "n", None), gpus=[gpu("n", usedBytes=None)])})
    line = next(line for line in as_text(fleet, Arrangement(), 0.0).splitlines() if "blind" in line)
    assert re.search(r" unknown +2\.0 GiB +unknown ", line)
    assert "used ≥0 B," in as_text(fleet, Arrangement(), 0.0)


def test_a_share_on_a_gpu_that_does_not_respond_is_known_from_its_source() -> None:
    away = pod("away", "n", shares={}, gpus=[], verdicts=[])
    fleet = fleet_of({"n": document("n", away, gpus=[gpu("n", 1)])})
    line = next(line for line in as_text(fleet, Arrangement(), 0.0).splitlines() if "away" in line)
    assert re.search(r" unknown +unknown +2\.0 GiB +unknown ", line)
    (row,) = fleet.agents["agent-of-n"].table.rows
    assert "  share        2.0 GiB (bind-request)" in list(details_of(row, fleet, 0.0))


def test_sums_without_a_current_sample_are_not_zero() -> None:
    stale = [{"reason": "sample-stale", "gpuUuid": "", "detail": "the last successful sample is 61 s old"}]
    body = json.dumps(
        {"node": "a", "attributionOk": False, "problems": stale, "gpus": [], "pods": []}
    ).encode()
    fleet = fleet_of({"a": body})
    memory, gpus, _ = head(fleet, 0.0)
    assert memory.text.endswith("used ≥0 B, promised ≥0 B of ≥0 B")
    assert gpus.text == "0 GPUs: none known to be lost"


def test_the_head_counts_a_pod_that_is_flagged_on_two_gpus_once() -> None:
    both = [
        {"gpuUuid": f"GPU-n-{index}", "gpu": index, "usedBytes": 3 * GIB, "processes": 1} for index in (0, 1)
    ]
    verdicts = [
        {"reason": "over-share", "gpuUuid": f"GPU-n-{index}", "flagged": index == 0, "lastedSeconds": 200.0}
        for index in (0, 1)
    ]
    fleet = fleet_of({"n": document("n", pod("two", "n", gpus=both, verdicts=verdicts))})
    assert head(fleet, 0.0)[0].text.startswith("1 flagged, 0 in grace, 1 pod;")
    verdicts[1]["flagged"] = True
    fleet = fleet_of({"n": document("n", pod("two", "n", gpus=both, verdicts=verdicts))})
    assert head(fleet, 0.0)[0].text.startswith("1 flagged, 0 in grace, 1 pod;")


def test_no_listed_process_beside_unknown_memory_is_not_0_processes() -> None:
    hidden = pod("hidden", "n", gpus=[{"gpuUuid": "GPU-n-0", "gpu": 0, "usedBytes": None, "processes": 0}])
    fleet = fleet_of({"n": document("n", hidden)})
    text = as_text(fleet, Arrangement(), 0.0, columns=110)
    line = next(line for line in text.splitlines() if "hidden" in line)
    assert re.search(r" hidden +team-a +unknown bind-request$", line)
    (row,) = fleet.agents["agent-of-n"].table.rows
    assert "  processes    unknown" in list(details_of(row, fleet, 0.0))


def test_details_have_every_source_of_the_share() -> None:
    fleet = busy()
    row = arrange(fleet, Arrangement(words=("flagged-short",)))[0]
    text = "\n".join(details_of(row, fleet, 5.0))
    assert "workload    " in text
    assert "flags       unknown since the agent started" in text, "these agents do not count them"
    for part in (
        "team-a/flagged-short", "uid-node-b-flagged-short", "group-1", "used         3.0 GiB\n  processes    1\n",
        "2.0 GiB (bind-request)", "over-share: flagged for 3 min", "bind-request: portion 0.25 = 2.0 GiB",
        "annotation: gpu-fraction 0.5 = 4.0 GiB", "GPU 0: model NVIDIA A10, used 10.0 GiB, total 24.0 GiB, free 14.0 GiB, promised 20.0 GiB, host unknown",
    ):  # fmt: skip
        assert part in text


def test_columns_appear_with_the_width() -> None:
    fleet = busy()
    widths = merge_widths(agent.widths for agent in fleet.agents.values())
    narrow, middle, wide = (layout(columns, widths).heading() for columns in (55, 80, 200))
    assert "NAMESPACE/POD" in narrow
    assert "OVER FOR" not in narrow
    assert "OVER FOR" in middle
    for heading in (
        "STATE",
        "NODE",
        "GPU",
        "USED",
        "SHARE",
        "%",
        "OVER FOR",
        "POD",
        "NAMESPACE",
        "QUEUE",
        "PROCESSES",
    ):
        assert heading in wide
    assert "SIZE" not in wide, "no pod has one"
    assert "UTIL" not in wide, "no agent measures it"


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 120, 200, 300])
def test_every_line_has_exactly_the_width_and_a_long_name_keeps_both_ends(columns: int) -> None:
    long = "a-deployment-with-a-name-as-long-as-kubernetes-allows-5d4f8c7b96-x2x7k"
    fleet = fleet_of(
        {
            "node-with-a-long-name.example": document(
                "x", pod(long, "x", 3 * GIB, lasted=300.0, is_flagged=True)
            ),
            "n": SILENT,
        }
    )
    chosen = layout(columns, merge_widths(agent.widths for agent in fleet.agents.values()))
    for line in arrange(fleet, Arrangement(group=GroupBy.NODE)):
        text = chosen.line(line, 5.0)
        assert len(text) == columns
        if isinstance(line, PodRow) and columns >= 60:
            assert "x7k" in text
            assert text.startswith("!")


HOSTILE = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["[red]x[/red]", "[/]", "[link=file:///x]y[/link]", "[@click=app.quit]x[/]", "\x1b[31mred", "\x1b]0;t\x07",
                     "\x9b31m", "a\nb", "a\rb", "\u202eevil", "\u2028", ":boom:", "漢字" * 30, "e\u0301" * 20, "x" * 5000,
                     "\x00", "\u115f\u3164", "👩‍👩‍👧‍👦", "\ufe0f", "עברית", "\U000e0041"]),
)  # fmt: skip


@settings(deadline=None)
@given(HOSTILE, HOSTILE, HOSTILE, st.sampled_from([24, 80, 120, 200]))
def test_no_name_acts_on_the_terminal_or_breaks_the_table(
    first: str, second: str, third: str, columns: int
) -> None:
    made = pod(
        first, "n", 3 * GIB, lasted=9.0, namespace=second, queue=third, size=first, notes=[third], uid=second,
        vcluster={"name": first, "namespace": second, "pod": third}, phase=third, gpuGroups=[first],
    )  # fmt: skip
    made["verdicts"][0]["reason"] = third
    made["candidates"][0]["text"] = second
    problem = {"reason": first, "gpuUuid": second, "detail": third}
    body = json.dumps(
        json.loads(document("n", made, problems=[problem, {"reason": "nvml", "gpuUuid": first}]))
    ).encode()
    fleet = fleet_of({"n": body, "m": document("m", pod("good", "m")), "k": "x"})
    fleet.set_failure("agent-of-k", second)
    chosen = layout(columns, merge_widths(agent.widths for agent in fleet.agents.values()))
    for line in arrange(fleet, Arrangement(group=GroupBy.QUEUE)):
        texts = [chosen.line(line, 1.0), *details_of(line, fleet, 1.0)]
        assert len(texts[0]) == columns
        for text in texts:
            assert not CONTROLS.search(text)
            assert width(text) == len(text)
    text = as_text(fleet, Arrangement(), 1.0)
    assert not CONTROLS.search(text.replace("\n", ""))
    assert len(text.splitlines()) == text.count("\n")
    assert "".join(json_parts(fleet, Arrangement(), 1.0)).isascii()


NUMBERS = st.one_of(st.none(), st.integers(-(1 << 70), 1 << 70))


@settings(deadline=None)
@given(NUMBERS, NUMBERS, NUMBERS, st.floats(-1e300, 1e300))
def test_implausible_numbers_are_unknown_and_break_nothing(
    used: int | None, other: int | None, promised: int | None, seconds: float
) -> None:
    made: dict[str, Any] = pod("p", "n", used, share=other or 0, lasted=seconds, is_flagged=True)
    made["gpus"][0] |= {"gpu": other or 0, "processes": promised or 0}
    body = document(
        "n", made, gpus=[gpu("n", other or 0, usedBytes=used, totalBytes=other, promisedBytes=promised)]
    )
    fleet = fleet_of({"n": body})
    chosen = layout(100, merge_widths(agent.widths for agent in fleet.agents.values()))
    for line in arrange(fleet, Arrangement()):
        assert len(chosen.line(line, 0.0)) == 100
        details_of(line, fleet, 0.0)
    as_text(fleet, Arrangement(), 0.0)
    assert len(head(fleet, 0.0)[0].text) < 120


def test_a_taken_node_cannot_name_another_or_fill_the_memory() -> None:
    uuids = [f"GPU-{number}" for number in range(100_000)]
    many = pod("many", "x", gpuUuids=uuids)
    fleet = fleet_of({"taken": document("innocent", many, *(pod(f"p{n}", "x") for n in range(9000)))})
    rows = fleet.agents["agent-of-taken"].table.rows
    assert len(rows) <= MAX_ROWS
    assert {row.node for row in rows} == {"taken"}


def test_an_equal_response_is_not_read_again() -> None:
    fleet = busy()
    rows = fleet.agents["agent-of-node-a"].table.rows
    again = fleet.agents["agent-of-node-a"].received
    assert again is not None
    fleet.set_response("agent-of-node-a", received(again.body, 9.0))
    assert fleet.agents["agent-of-node-a"].table.rows is rows


def test_json_is_one_document_with_failures_and_is_narrowed() -> None:
    fleet = busy()
    whole = json.loads("".join(json_parts(fleet, Arrangement(), 2.0)))
    by_node = {agent["node"]: agent for agent in whole["agents"]}
    assert by_node["node-c"] == {
        "agent": "agent-of-node-c", "node": "node-c", "answered": False, "ageSeconds": None, "error": SILENT, "shares": None,
    }  # fmt: skip
    assert by_node["node-a"]["ageSeconds"] == 2.0
    assert len(by_node["node-a"]["shares"]["pods"]) == 3
    narrowed = json.loads("".join(json_parts(fleet, Arrangement(flagged_only=True, namespace="team-a"), 2.0)))
    pods = [pod["name"] for agent in narrowed["agents"] for pod in (agent["shares"] or {"pods": []})["pods"]]
    assert sorted(pods) == ["flagged-long", "flagged-short"]


def test_an_agent_whose_document_cannot_be_read_is_one_failure_in_json() -> None:
    fleet = fleet_of({name: document(name) for name in ("node-a", "node-b", "node-c")})
    liar = fleet.agents["agent-of-node-b"]
    fleet.set_response(liar.ref.name, received(b'{"node": "node-b", "x": 1e999}', 0.0))
    agents = json.loads("".join(json_parts(fleet, Arrangement(), 1.0)))["agents"]
    assert [agent["answered"] for agent in agents] == [True, False, True]
    assert agents[1]["shares"] is None
    assert agents[1]["error"].startswith("the response is not from an agent: Number out of range")
    assert liar.failure == agents[1]["error"]


def test_agents_line_before_the_first_answer() -> None:
    fleet = Fleet()
    fleet.set_agents([AgentRef("a", "node-x")], 10.0)
    (line,) = arrange(fleet, Arrangement())
    assert isinstance(line, AgentLine)
    assert " ? node-x: asked 3 s ago, no answer yet" in as_text(fleet, Arrangement(), 13.0)


def test_small_texts() -> None:
    assert [percent(None), percent(0.5), percent(100.0)] == ["unknown", "50%", ">9999%"]
    assert [bar(0.0, 4), bar(0.5, 4), bar(1.0, 4), bar(1.5, 4), bar(None, 4)] == [
        "    ",
        "██  ",
        "████",
        "███▶",
        "    ",
    ]
    assert plain("Ü–漢\u202e") == "Ü–\ufffd\ufffd"


def test_the_utilisation_of_an_agents_own_answer_is_a_column() -> None:
    taken = samples.sample(
        samples.gpu((10, GIB), (11, GIB), utilization={10: 7}),
        origins={10: samples.in_pod("busy"), 11: samples.in_pod("idle")},
    )
    snapshot = samples.snapshot_of(taken, samples.pod_share("busy", GIB), samples.pod_share("idle", GIB))
    status = Status(snapshot=snapshot, attribution_ok=True)
    fleet = fleet_of({"node-1": shares_json(status, node="node-1", is_simulated=False)})
    heading, *lines = as_text(fleet, Arrangement(), 0.0, columns=200).splitlines()[-3:]
    end = heading.index("UTIL") + len("UTIL")
    assert {line.split("team-a")[0].split()[-1]: line[end - 4 : end].strip() for line in lines} == {
        "busy": "7%",
        "idle": "0%",
    }


@pytest.mark.parametrize("ratio", [-0.5, 1.01, 1e300])
def test_an_impossible_utilisation_is_unknown(ratio: float) -> None:
    shares = document("node-1", pod("liar", "node-1"))
    body = json.loads(shares)
    body["pods"][0]["gpus"][0]["utilizationRatio"] = ratio
    fleet = fleet_of({"node-1": json.dumps(body).encode()})
    (row,) = fleet.agents["agent-of-node-1"].table.rows
    assert row.utilization is None
    assert "  utilization  unknown" in details_of(row, fleet, 0.0)


def test_json_is_written_in_a_part_for_each_agent() -> None:
    for count in range(3):
        fleet = fleet_of({f"node-{number}": document(f"node-{number}") for number in range(count)})
        parts = list(json_parts(fleet, Arrangement(), 1.0))
        assert len(parts) == count + 1
        text = "".join(parts)
        assert text == json.dumps(json.loads(text), indent=2) + "\n"
