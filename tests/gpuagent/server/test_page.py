"""The page: its order, marks and texts, what it says about unknown figures, and that no name becomes markup."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpuagent.evaluation.history import History
from gpuagent.evaluation.status import Status
from gpuagent.first_acts import FOR_FLAG
from gpuagent.gpus.gpu_reading import LostGpu, MigInstance, Xid
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.pods.pod_owners import Tenant, Workload
from gpuagent.problems import Cause, Problem
from gpuagent.server.page.page_links import SECTIONS
from gpuagent.server.page.page_top import MAX_FLAGS, MAX_PROBLEMS, page_top
from gpuagent.server.page.renderer import HEADERS, STATIC, PageRenderer
from gpuagent.server.page.sections import COLOURS, MAX_ROWS
from gpuagent.shares.pod_share import Amount, Candidate, PodShare, ShareSource
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.grounds import Key
from gpuagent.verdicts.verdict import Change, Verdict, Verdicts
from service.http.page_server import Page
from service.units import duration, size
from tests.support.html_tree import Element, HtmlTree
from tests.support.page_server import page_text
from tests.support.samples import DENIED, GIB, HOST, A, B, gpu, in_pod, pod_share, sample, snapshot_of
from tests.support.samples import pod as node_pod

NOW = 1_800_000_000.0


class Parsed(HtmlTree):
    """A page as a tree."""

    def gpus(self) -> list[Element]:
        return self.root.all("section", "gpu")

    def rows(self) -> list[Element]:
        return [row for section in self.gpus() for body in section.all("tbody") for row in body.all("tr")]

    def row(self, name: str) -> Element:
        (row,) = [row for row in self.rows() if row.first("th", "pod").text.split()[0] == name]
        return row


def parsed_page(status: Status, now: float = NOW, renderer: PageRenderer | None = None) -> Parsed:
    renderer = renderer or PageRenderer(node="node-1", is_simulated=False, interval=5.0)
    return Parsed(page_text(renderer.render(status, now=now)).decode())


def status_of(
    snapshot: Snapshot | None, verdicts: Verdicts | None = None, *problems: Problem, **fields: object
) -> Status:
    return Status(
        **{
            "snapshot": snapshot,
            "verdicts": verdicts or Verdicts(),
            "problems": problems,
            "attribution_ok": not problems,
            "good_wall_time": snapshot.wall_time if snapshot else None,
            "lost_gpus": snapshot.lost_gpus if snapshot else (),
            **fields,
        }  # type: ignore[arg-type]
    )


def judged(*snapshots: Snapshot, grace: float = 60, interval: float = 60) -> Status:
    """Evaluate the samples in order; return the status after the last. A sample counts `interval` seconds."""
    judge, history = Judge(grace=grace, interval=interval, longest_gap=1000), History(interval=5)
    verdicts = Verdicts()
    for snapshot in snapshots:
        verdicts, _ = judge.judge(snapshot)
        history.record(snapshot, verdicts)
    return status_of(snapshots[-1], verdicts, history=history)


def node_of(*pods: tuple[str, int | None, int | None], at: float = 0.0, **fields: object) -> Snapshot:
    """Return one GPU with pods: name, share and memory in use."""
    numbers = dict(enumerate(pods, 1))
    busy = gpu(*((number, used) for number, (_, _, used) in numbers.items() if used != 0), **fields)
    origins = {number: in_pod(name) for number, (name, _, _) in numbers.items()}
    return snapshot_of(sample(busy, origins=origins, at=at), *(pod_share(n, share) for n, share, _ in pods))


def over_share(at: float) -> Snapshot:
    busy = gpu((1, 9 * GIB), (2, 2 * GIB), (3, GIB))
    origins = {1: in_pod("a-big"), 2: in_pod("b-good"), 3: HOST}
    tenant = Tenant(vcluster="team", namespace="ml", pod="train-0")
    pod_shares = (
        pod_share("a-big", 6 * GIB, queue="vision", groups=("fde0f5a5-072b",), tenant=tenant),
        pod_share("b-good", 6 * GIB),
    )
    return snapshot_of(sample(busy, origins=origins, at=at), *pod_shares)


def test_flags_are_on_top_as_links_to_their_rows() -> None:
    seen = parsed_page(judged(over_share(0.0), over_share(180.0)), now=NOW + 184)
    (item,) = seen.root.first("section", "flags").all("li")
    assert item.first("p").text == (
        "team-a/a-big over-share , since 08:00:00: uses 9.0 GiB on GPU 0, above its share of 6.0 GiB, for 3 min."
    )
    assert item.first("a").attributes["href"] == f"#{seen.row('a-big').attributes['id']}"
    details = item.first("details").text
    assert "GPU group fde0f5a5-072b" in details
    assert "counts towards the grace 60 s" in details
    assert "ends with usage at or below the share" in details
    assert "1 flag" in seen.root.first("header").text
    assert seen.root.first("header").first("p", "count").first("a").attributes["href"] == "#flags"
    assert "as of 4 s ago" in seen.text
    assert "sample of 08:03:00 UTC" in seen.text
    assert "simulated" not in seen.text


def test_a_row_has_every_figure() -> None:
    seen = parsed_page(judged(over_share(0.0), over_share(180.0)))
    row = seen.row("a-big")
    cells = {cell.classes[0]: cell.text for cell in row.all() if cell.tag in ("td", "th")}
    assert cells == {
        "number": "1",
        "pod": "a-big team-a · queue vision · 1 process vCluster team: ml/train-0",
        "bar": "",
        "used": "9.0 GiB 150% of share peak 9.0 GiB",
        "share": "6.0 GiB bind-request",
        "utilization": "unknown",
        "verdict": "flagged: over-share since 08:03:00; over since 08:00:00 (3 min)",
        "past": "unknown share 9.0 GiB",
    }
    assert row.first("svg", "use").attributes["aria-label"] == "9.0 GiB of the share of 6.0 GiB"
    assert (
        row.first("svg", "trend").attributes["aria-label"].startswith("last 15 minutes: from 9.0 GiB to 9.0")
    )
    assert "within share since 08:00:00" in seen.row("b-good").text
    legend = seen.root.first("ul", "legend").text
    assert "host processes 1.0 GiB" in legend
    assert "unattributed 100.0 MiB" in legend
    assert "promised 12.0 GiB" in legend
    assert "in use 12.1 GiB of 24.0 GiB" in legend
    assert "free 11.6 GiB" in legend


def test_flagged_pods_come_first_then_those_over_then_by_use_of_the_share() -> None:
    """In the order of names: half-used, idle, nearly full, flagged, above the share within the grace."""
    before = [node_of(("a", 4 * GIB, 2 * GIB), ("d", GIB, 3 * GIB), at=at) for at in (0, 30)]
    now = node_of(
        ("a", 4 * GIB, 2 * GIB), ("b", 4 * GIB, 0), ("c", 4 * GIB, 3 * GIB), ("d", GIB, 3 * GIB),
        ("e", GIB, 2 * GIB), at=60,
    )  # fmt: skip
    seen = parsed_page(judged(*before, now, interval=30))
    assert [row.first("th", "pod").text.split()[0] for row in seen.rows()] == ["d", "e", "c", "a", "b"]
    assert [row.attributes["class"] for row in seen.rows()] == ["flagged", "over", "calm", "calm", "calm"]
    assert "in grace: over-share" in seen.row("e").text


def test_a_pod_has_one_colour_and_number_in_the_bar_and_in_its_row() -> None:
    pods = [(name, 4 * GIB, (index + 1) * GIB) for index, name in enumerate(("a", "b", "c"))]
    first, second = node_of(*pods, at=0), node_of(*((n, s, 4 * GIB - u) for n, s, u in pods), at=5)
    colours = {}
    for status in (judged(first), judged(first, second)):
        seen = parsed_page(status)
        parts = [part for part in seen.root.first("svg", "device").all("g") if part.all("text")]
        rows = {row.first("th", "pod").text.split()[0]: row for row in seen.rows()}
        for part in parts:
            name = part.first("title").text.partition(":")[0].removeprefix("team-a/")
            colour = part.first("rect").classes[0]
            assert part.first("text").text == rows[name].first("td", "number").text
            assert rows[name].first("svg", "swatch").first("rect").classes == [colour]
            assert rows[name].first("svg", "use").all("rect", colour)
            assert colours.setdefault(name, colour) == colour, "it stays when the order changes"
        assert [part.first("text").text for part in parts] == ["1", "2", "3"], "as in the table"
    assert len(set(colours.values())) == 3


def test_the_flagged_pod_is_marked_in_the_bar() -> None:
    seen = parsed_page(judged(over_share(0.0), over_share(180.0)))
    marked = {
        part.first("title").text: bool(part.all("svg", "flag") and part.all("rect", "alarm"))
        for part in seen.root.first("svg", "device").all("g")
    }
    assert marked.pop("team-a/a-big: 9.0 GiB") is True
    assert len(marked) == 4
    assert not any(marked.values())


def test_the_end_of_the_promised_shares_is_marked() -> None:
    seen = parsed_page(judged(node_of(("a", 12 * GIB, GIB))))
    (mark,) = seen.root.first("svg", "device").all("line", "promised")
    assert mark.attributes["x1"] == mark.attributes["x2"] == "50%"
    assert not seen.root.first("svg", "device").all("rect", "excess")
    assert "overpromised" not in seen.gpus()[0].text


def test_a_gpu_promised_more_than_it_has_says_so() -> None:
    seen = parsed_page(judged(node_of(("a", 20 * GIB, GIB), ("b", 10 * GIB, GIB)), node_of()))
    assert "Promised" not in seen.text
    seen = parsed_page(judged(node_of(("a", 20 * GIB, GIB), ("b", 10 * GIB, GIB))))
    assert "30.0 GiB are promised, 6.0 GiB more than its 24.0 GiB." in seen.gpus()[0].text
    bar = seen.root.first("svg", "device")
    assert bar.first("rect", "memory").attributes["width"] == "80%"
    assert bar.first("line", "end").attributes["x1"] == "80%"
    assert (bar.first("rect", "excess").attributes["x"], bar.first("rect", "excess").attributes["width"]) == ("80%", "20%")  # fmt: skip
    assert bar.first("line", "promised").attributes["x1"] == "100%"


def lost_node(*, at: float, is_lost: bool, **fields: object) -> Snapshot:
    """Return two GPUs with a pod each; the second GPU may be lost."""
    busy = [gpu((1, GIB)), gpu((2, 3 * GIB), uuid=B, index=1)]
    taken = sample(*(busy[:1] if is_lost else busy), origins={1: in_pod("a"), 2: in_pod("b")}, at=at)
    recorded = Candidate(ShareSource.BIND_REQUEST, "portion 0.25", {B: None if is_lost else 4 * GIB})
    snapshot = snapshot_of(
        taken, pod_share("a", 2 * GIB), pod_share("b", 4 * GIB, gpus=(B,), candidates=(recorded,))
    )
    return replace(snapshot, **{"lost_gpus": (LostGpu(1, B, "NVIDIA A10"),) if is_lost else (), **fields})  # type: ignore[arg-type]


def test_a_lost_gpu_keeps_its_section_and_its_pods_with_their_last_shares() -> None:
    snapshots = [lost_node(at=at, is_lost=at >= 60) for at in range(0, 181, 15)]
    status = replace(judged(*snapshots), problems=(Problem(Cause.NVML, B, "GpuIsLost"),))
    seen = parsed_page(status)
    assert [section.first("h2").text for section in seen.gpus()] == ["GPU 0", "GPU 1"]
    lost = seen.gpus()[1]
    assert "GPU 1 was lost at 08:01:00 UTC (2 min ago). It has no figures." in lost.text
    assert "lost" in lost.classes
    assert not lost.all("svg", "device")
    row = seen.row("b")
    assert row in lost.all("tr")
    cells = {cell.classes[0]: cell.text for cell in row.all() if cell.tag == "td"}
    assert (cells["used"], cells["share"]) == ("unknown peak 3.0 GiB", "4.0 GiB last known")
    assert cells["verdict"] == "not judged: its GPU does not respond"
    assert "nvml (GPU 1): GpuIsLost" in " ".join(seen.text.split())
    assert "Pods without a known GPU" not in seen.text


def test_a_lost_gpu_shows_the_error_with_which_it_was_lost() -> None:
    gone = LostGpu(1, B, "NVIDIA A10", Xid(79, 1_763_953_920.0))
    snapshot = lost_node(at=0, is_lost=True, lost_gpus=(gone,))
    assert "XID 79 at Nov 24 03:12 UTC" in parsed_page(judged(snapshot)).gpus()[1].text


def test_after_a_restart_a_lost_gpu_is_unknown_and_the_page_says_so() -> None:
    snapshot = lost_node(at=0, is_lost=True, lost_gpus=(LostGpu(1),), labelled_gpus=3)
    status = replace(judged(snapshot), problems=(Problem(Cause.NVML, "index-1", "GpuIsLost"),))
    seen = parsed_page(status)
    lost, unknown = seen.gpus()[1:]
    assert "GPU 1 does not respond; this was first seen at 08:00:00 UTC." in lost.text
    assert "Its UUID is unknown, so its pods are among those without a known GPU." in lost.text
    assert unknown.first("h2").text == "Pods without a known GPU"
    assert f"its reservation names {B}, which has not responded since the agent started" in unknown.text
    assert "nvml (GPU 1): GpuIsLost" in seen.text
    assert "nvidia.com/gpu.count says 3, and the agent knows 2 GPUs" in seen.text


def test_a_share_on_a_gpu_that_was_never_seen_comes_from_its_source() -> None:
    candidate = Candidate(ShareSource.BIND_REQUEST, "portion 0.50", {B: 8 * GIB})
    share = pod_share("b", 8 * GIB, gpus=(B,), candidates=(candidate,), shares={})
    snapshot = replace(snapshot_of(sample(gpu()), share), lost_gpus=(LostGpu(1, B),))
    assert "8.0 GiB" in parsed_page(judged(snapshot)).row("b").first("td", "share").text


def test_lost_gpus_stay_when_no_gpu_responds_and_another_gpu_may_have_the_index() -> None:
    stale = status_of(None, None, lost_gpus=(LostGpu(0, A), LostGpu(1, B)))
    assert [section.first("h2").text for section in parsed_page(stale).gpus()] == ["GPU 0", "GPU 1"]
    moved = replace(snapshot_of(sample(gpu(uuid=B))), lost_gpus=(LostGpu(0, A),))
    sections = parsed_page(judged(moved)).gpus()
    assert [section.first("h2").text for section in sections] == ["GPU 0", "GPU 0"]
    assert "Another GPU has the index 0 now." in parsed_page(judged(moved)).text
    assert len({section.attributes["id"] for section in sections}) == 2


def test_a_gap_interrupts_the_line_of_the_last_15_minutes() -> None:
    snapshots = [
        node_of(("a", 4 * GIB, None if 30 <= at < 60 else 2 * GIB), at=at) for at in range(0, 120, 15)
    ]
    row = parsed_page(judged(*snapshots)).row("a")
    (line,) = row.first("svg", "trend").all("path", "line")
    assert line.attributes["d"] == "M52 10h2M56 10h4", "52 buckets before the pod was seen, and 2 in between"
    trend = row.first("svg", "trend")
    assert "unknown for" in trend.attributes["aria-label"]
    gaps = [(gap.attributes["x"], gap.attributes["width"]) for gap in trend.all("rect", "gap")]
    assert gaps == [("0%", "72.8%"), ("75.6%", "2.8%")], "hatched"
    assert [text.text for text in trend.all("text")] == ["unknown", "share", "2.0 GiB"]


def test_utilisation_is_shown_or_its_absence_explained() -> None:
    plain = node_of(("a", 4 * GIB, GIB), ("b", 4 * GIB, GIB))
    seen = parsed_page(judged(plain))
    assert "Utilisation is absent: the driver does not report it." in seen.gpus()[0].text
    assert seen.row("a").first("td", "utilization").text == "unknown"
    first, *others = plain.holdings
    measured = replace(plain, holdings=(structs.replace(first, utilization_ratio=0.83), *others))
    seen = parsed_page(judged(measured))
    assert "Utilisation is absent" not in seen.text
    assert seen.row("a").first("td", "utilization").text == "83%"
    assert seen.row("b").first("td", "utilization").text == "unknown"


def test_unknown_figures_are_named_and_not_zero() -> None:
    unknown = gpu((1, None), (2, GIB))
    problem = Problem(Cause.PROC_DENIED, A, "/proc/1/cgroup: Permission denied")
    taken = sample(unknown, origins={1: in_pod("a-pod"), 2: DENIED})
    snapshot = snapshot_of(taken, pod_share("a-pod", GIB), pod_share("hidden", GIB), problems=(problem,))
    seen = parsed_page(status_of(snapshot, None, problem))
    assert seen.row("a-pod").first("td", "used").text == "unknown"
    assert "memory unknown" in seen.row("a-pod").first("td", "bar").text
    assert "not judged: verdicts are suspended" in seen.row("a-pod").text
    for name in ("a-pod", "hidden"):
        assert "unknown processes" in seen.row(name).text, "the denied process may be its own"
    assert "unattributed unknown" in seen.root.first("ul", "legend").text
    assert "owner unknown 1.1 GiB" in seen.root.first("ul", "legend").text
    assert "proc-denied (GPU 0): /proc/1/cgroup: Permission denied" in seen.text
    assert "Verdicts are suspended" in seen.text
    assert not re.search(r"\b0 B\b", seen.text)


def test_a_problem_of_tenants_objects_says_that_it_suspends_nothing() -> None:
    problem = Problem(Cause.RESERVATION_CONFLICT, A, "two namespaces")
    status = status_of(snapshot_of(sample(gpu())), None, problem, attribution_ok=True)
    text = parsed_page(status).root.first("section", "problems").text
    assert text.startswith("Problems reservation-conflict (GPU 0): two namespaces. It suspends no verdict.")


def test_no_sample_no_gpu_and_a_pod_of_unknown_gpu() -> None:
    nothing = parsed_page(Status(snapshot=None, attribution_ok=None))
    assert "no sample yet" in nothing.text
    assert "No figures" in nothing.text
    assert "no figures" in nothing.root.first("title").text
    assert "0 flags" not in nothing.text
    empty = snapshot_of(sample())
    assert "No GPU on this node responds." in parsed_page(status_of(empty)).text
    lost = pod_share("a-lost", has_share=True, is_unresolved=True, groups=("nowhere",))
    seen = parsed_page(status_of(snapshot_of(sample(gpu()), lost)))
    assert seen.gpus()[-1].first("h2").text == "Pods without a known GPU"
    assert "GPU group nowhere has no known GPU" in seen.row("a-lost").text


@pytest.mark.parametrize("used", [4 * GIB, 12 * GIB])
@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"gpus": (), "is_unresolved": True}, "its GPU is unknown"),
        ({"gpus": (B,), "former_gpus": frozenset({A})}, "not promised on this GPU"),
    ],
)
def test_the_share_that_a_pod_is_compared_with_is_shown_wherever_it_is(
    fields: dict[str, Any], source: str, used: int
) -> None:
    elsewhere = {A: Amount(8 * GIB, ShareSource.BIND_REQUEST)}
    train = pod_share("a-train", 8 * GIB, allowed_elsewhere=elsewhere, **fields)
    train = replace(train, candidates=(Candidate(ShareSource.BIND_REQUEST, "portion 0.33", {"": 8 * GIB}),))
    snapshots = [
        snapshot_of(
            sample(gpu((1, used)), gpu(uuid=B, index=1), origins={1: in_pod("a-train")}, at=at), train
        )
        for at in (0.0, 5.0)
    ]
    row = parsed_page(judged(*snapshots, grace=5, interval=5)).gpus()[0].first("tbody")
    assert f"bind-request; {source}" in row.text
    assert "8.0 GiB" in row.text
    assert "none on this GPU" not in row.text
    assert "no share to compare with" not in row.text
    assert ("flagged: over-share" if used > 8 * GIB else "within share") in row.text


def test_mig_and_simulated_are_named() -> None:
    instance = MigInstance(uuid="MIG-1", total_bytes=GIB, processes=())
    split = gpu(mig=True, instances=(instance,), uuid=B)
    snapshot = snapshot_of(sample(split), pod_share("a", GIB, gpus=("MIG-1",)))
    simulated = PageRenderer(node="n", is_simulated=True, interval=5.0)
    seen = parsed_page(status_of(snapshot), renderer=simulated)
    assert "Multi-Instance GPU" in seen.text
    assert "MIG device MIG-1" in seen.row("a").text
    assert "not judged: MIG" in seen.row("a").text
    assert "the driver does not report it for MIG devices" in seen.text
    assert "simulated: these figures are synthetic" in seen.text


def test_the_page_has_the_workload_and_the_flags_since_the_start() -> None:
    snapshot = snapshot_of(
        sample(gpu((1, GIB)), origins={1: in_pod("a")}),
        replace(pod_share("a", GIB), size="train", workload=Workload("CronJob", "night<b>ly")),
    )
    counts = {
        (FlagReason.OVER_SHARE, Change.FLAGGED): 2,
        (FlagReason.NO_SHARE, Change.FLAGGED): 1,
        (FlagReason.OVER_SHARE, Change.DROPPED): 1,
    }
    seen = parsed_page(status_of(snapshot, transitions=counts))
    assert "size train · CronJob night<b>ly" in seen.row("a").text
    assert "Flags since the agent started: 3 raised, 0 cleared, 1 dropped." in seen.text


def crowd(pods: int, *, at: float = 0.0) -> Snapshot:
    """Return one GPU with many pods above their share."""
    holders = [(f"{number:04}-pod", GIB // 1000, GIB) for number in range(pods)]
    return node_of(*holders, at=at, total_bytes=2000 * GIB)


def test_rows_flags_and_problems_have_limits_and_the_page_counts_the_rest() -> None:
    status = judged(crowd(300), crowd(300, at=100))
    problems = tuple(Problem(Cause.NVML, f"index-{number}", "x" * 5000) for number in range(300))
    status = replace(status, problems=problems)
    seen = parsed_page(status)
    assert len(seen.rows()) == MAX_ROWS
    assert f"{300 - MAX_ROWS} more pods are not shown" in seen.gpus()[0].text
    assert len(seen.root.first("section", "flags").first("ul").all("details")) == MAX_FLAGS
    assert f"{300 - MAX_FLAGS} more flags are not shown" in seen.text
    assert len(seen.root.first("section", "problems").all("li")) == MAX_PROBLEMS
    assert f"{300 - MAX_PROBLEMS} more problems are not shown" in seen.text
    assert f"{300 - MAX_ROWS} more pods {300 - MAX_ROWS}.0 GiB" in seen.root.first("ul", "legend").text
    ids = {element.attributes["id"] for element in seen.root.all() if "id" in element.attributes}
    links = {link.attributes["href"] for link in seen.root.all("a")}
    assert {link[1:] for link in links if link.startswith("#")} <= ids, "every link leads somewhere"


def test_one_pod_that_is_not_shown_is_counted_in_the_singular() -> None:
    seen = parsed_page(judged(crowd(MAX_ROWS + 1), crowd(MAX_ROWS + 1, at=100)))
    assert "1 more pod is not shown" in seen.gpus()[0].text


def test_an_id_stands_for_one_element() -> None:
    seen = parsed_page(judged(over_share(0.0), over_share(180.0)))
    ids = [element.attributes["id"] for element in seen.root.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))


def test_viewers_of_one_evaluation_get_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = PageRenderer(node="node-1", is_simulated=False, interval=5)
    status = judged(over_share(0.0))
    contents = []
    monkeypatch.setattr(
        "gpuagent.server.page.renderer.page_top",
        lambda *arguments: contents.append(page_top(*arguments)) or contents[-1],
    )

    pages: list[Page] = []

    async def viewed(status: Status, now: float) -> bytes:
        pages.append(await renderer.page(lambda: status, now=lambda: now))
        return page_text(pages[-1])

    first = asyncio.run(viewed(status, NOW + 1.2))
    asyncio.run(viewed(replace(status), NOW + 1.8))
    assert pages[1] is pages[0]
    later = asyncio.run(viewed(status, NOW + 7))
    assert pages[2].body is pages[0].body
    assert b'data-age="7"' in later
    assert later.partition(b"<main>")[2] == first.partition(b"<main>")[2]
    assert len(contents) == 1
    assert asyncio.run(viewed(judged(over_share(0.0), over_share(180.0)), NOW + 180)) != later
    problem = Problem(Cause.SAMPLE_STALE, "", "old")
    assert b"sample-stale" in asyncio.run(viewed(replace(status, problems=(problem,)), NOW + 7))


async def test_concurrent_viewers_cost_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = PageRenderer(node="node-1", is_simulated=False, interval=5)
    evaluations = [judged(crowd(64)), judged(crowd(64, at=5.0))]
    contents = []
    monkeypatch.setattr(
        "gpuagent.server.page.renderer.page_top",
        lambda *arguments: contents.append(page_top(*arguments)) or contents[-1],
    )
    status = evaluations[0]
    viewers = [asyncio.create_task(renderer.page(lambda: status, now=lambda: NOW)) for _ in range(100)]
    await asyncio.sleep(0)  # the first viewer has begun
    status = evaluations[1]
    pages = await asyncio.gather(*viewers)
    assert len({id(page) for page in pages}) == 2
    assert len(contents) == 2, "those who waited got the newer evaluation"


async def test_other_tasks_run_while_a_large_page_is_rendered() -> None:
    renderer = PageRenderer(node="node-1", is_simulated=False, interval=5)
    status = judged(crowd(64))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await renderer.page(lambda: status, now=lambda: NOW)
    counting.cancel()
    assert turns > 5


def test_every_reason_has_a_section_of_the_runbooks() -> None:
    runbooks = (Path(__file__).parents[3] / "docs" / "runbooks.md").read_text(encoding="utf-8")
    assert FOR_FLAG.keys() == set(FlagReason)
    assert all(f"\n## {section}\n" in runbooks for section in SECTIONS)


def test_every_colour_of_a_row_is_in_the_style_sheet() -> None:
    css = (STATIC / "page.css").read_text(encoding="utf-8")
    assert [number for number in range(100) if f".c{number} {{ fill: var(--c{number}); }}" in css] == list(
        range(COLOURS)
    )


def every_part() -> Status:
    """Return a status whose page has every kind of element."""
    status = judged(over_share(0.0), over_share(180.0))
    lost = (*status.lost_gpus, LostGpu(1, B))
    return replace(status, lost_gpus=lost, problems=(Problem(Cause.NVML, "", "x"),), attribution_ok=False)


def overpromised() -> Status:
    return judged(node_of(("a", 20 * GIB, 40 * GIB), ("b", 10 * GIB, GIB)))


TAGS = parsed_page(every_part()).tags | parsed_page(overpromised()).tags | {"br"}
HOSTILE = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "'-->", "</svg><style>",
                     "&lt;b&gt;", "\x00\x1b[31m", "\u202eevil", "<!--", "]]>", "javascript:alert(1)",
                     "{{ 7 * 7 }}", "{% raw %}", "a" * 5000, "\ud800"]),
)  # fmt: skip


def flag_of(share: PodShare) -> Verdicts:
    """Return a flag for each reason."""
    keys = [Key(share.pod.uid, A, reason) for reason in FlagReason]
    return Verdicts(
        by_key={
            key: Verdict(key=key, pod_share=share, gpu_index=0, is_flagged=True, since=0.0, used_bytes=GIB)
            for key in keys
        }
    )


@given(st.lists(HOSTILE, min_size=7, max_size=7))
def test_no_name_becomes_markup(texts: list[str]) -> None:
    name, namespace, queue, model, group, uid, says = texts
    made = node_pod("a-pod", name=name, namespace=namespace)
    share = pod_share(
        "a-pod",
        GIB,
        pod=made,
        queue=queue,
        size=says,
        groups=(group,) * 20,
        changed=says,
        candidates=(Candidate(ShareSource.ANNOTATION, says, {A: GIB}),) * 20,
        tenant=Tenant(vcluster=name, namespace=queue, pod=model),
    )
    elsewhere = pod_share("b-pod", GIB, gpus=(uid,), pod=node_pod("b-pod", name=name), groups=(group,))
    snapshot = snapshot_of(sample(gpu((1, GIB), model=model), origins={1: in_pod("a-pod")}), share, elsewhere)
    status = status_of(
        replace(snapshot, lost_gpus=(LostGpu(3, group, model),)),
        flag_of(share),
        Problem(Cause.NVML, uid, says),
        driver_version=says,
    )
    seen = parsed_page(status)
    assert seen.tags <= TAGS
    assert not {
        attribute for attribute in seen.attributes if attribute.startswith("on") or attribute == "style"
    }
    assert not [element for element in seen.root.all("script") if element.text]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", seen.text)
    ids = [element.attributes["id"] for element in seen.root.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z]+(-[0-9a-f]{12})?(-title|-fold)?", each) for each in ids)
    assert all(link.attributes["href"][0] in "#ma" for link in seen.root.all("a"))
    assert len(seen.text) < 100_000


@pytest.mark.parametrize("node", ["<script>", "{{ 7 * 7 }}", "n" * 5000, "\u202e\x00"])
def test_the_nodes_name_does_not_become_markup(node: str) -> None:
    renderer = PageRenderer(node=node, is_simulated=False, interval=5.0)
    seen = parsed_page(status_of(over_share(0.0)), renderer=renderer)
    assert seen.tags <= TAGS
    assert seen.root.first("h1").text in (node, "n" * 252 + "…", "\ufffd\ufffd")
    assert seen.root.first("title").text.endswith(": 0 flags – kaishare")


def test_templates_are_not_rendered_twice() -> None:
    share = pod_share("a-pod", GIB, pod=node_pod("a-pod", name="{{ 7 * 7 }}"))
    assert "{{ 7 * 7 }}" in parsed_page(status_of(snapshot_of(sample(gpu()), share))).text


def test_nothing_inline_and_nothing_from_outside() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    files = [*STATIC.iterdir(), *(STATIC.parent / "templates").iterdir()]
    assert len(files) == 9
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text
        assert "style=" not in text
        assert not re.search(r"<script>|<style|\son[a-z]+=", text)


def test_the_pages_links_are_relative_for_proxies() -> None:
    hrefs = {link.attributes["href"] for link in parsed_page(every_part()).root.all("a")}
    assert {"metrics", "api/v1/shares"} <= hrefs
    assert all(href.startswith("#") or href in ("metrics", "api/v1/shares") for href in hrefs)


def test_the_page_names_version_driver_and_the_command_for_all_nodes() -> None:
    footer = parsed_page(status_of(over_share(0.0), driver_version="570.00")).root.first("footer").text
    assert re.match(r"kaishare \S+, driver 570.00", footer)
    assert "kaishare top" in footer
    assert "UTC" in footer


@pytest.mark.parametrize(
    ("amount", "text"),
    [(None, "unknown"), (0, "0 B"), (1023, "1023 B"), (1 << 20, "1.0 MiB"), (12_025_908_429, "11.2 GiB"),
     (-(3 << 30), "-3.0 GiB"), (1536, "1.5 KiB")],
)  # fmt: skip
def test_sizes(amount: int | None, text: str) -> None:
    assert size(amount) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
