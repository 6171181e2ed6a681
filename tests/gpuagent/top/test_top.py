"""`kaishare-agent top`: text and screen from an agent's real JSON, at every width, and errors of the connection."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from rich.console import Console

from gpuagent.api_types import AgentResponse, read_answer
from gpuagent.cli import main
from gpuagent.gpus.reading import MigInstance
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.pods.tenants import Tenant
from gpuagent.pods.workloads import Workload
from gpuagent.problems import Cause, Problem
from gpuagent.server.api import shares_json
from gpuagent.shares.pod_shares import Amount, Candidate, LimitSource, ShareSource
from gpuagent.status import Status
from gpuagent.top.board import Board, board_of, waiting_board
from gpuagent.top.client import Agent, NoAnswer, Received, age_of_figures
from gpuagent.top.screen import Screen
from gpuagent.top.text import as_text
from gpuagent.verdicts.grounds import FlagReason
from gpuagent.verdicts.judge import Change, Judge, Verdicts
from service.text import width
from tests.support.free_ports import free_port
from tests.support.samples import DENIED, GIB, HOST, MIB, A, B, gpu, in_pod, pod_share, sample, snapshot_of
from tests.support.samples import pod as node_pod

ROOT = Path(__file__).parents[3]


def status_of(snapshot: Snapshot | None, verdicts: Verdicts | None = None, *problems: Problem) -> Status:
    return Status(
        snapshot=snapshot,
        verdicts=verdicts or Verdicts(),
        problems=problems,
        attribution_ok=not problems if snapshot else None,
        good_wall_time=snapshot.wall_time if snapshot else None,
        driver_version="570.00",
    )


def node(at: float = 0.0, **names: str) -> Snapshot:
    """Pods over, within and without a share, a vCluster's, one that leads nowhere, and a lost GPU."""
    tenant = Tenant(vcluster="red", namespace="ml", pod="train-0")
    own_word = {A: Amount(8 * GIB, ShareSource.ANNOTATION)}
    candidate = Candidate(ShareSource.BIND_REQUEST, "portion 0.25", {"": 5 * GIB})
    on_lost = Candidate(ShareSource.BIND_REQUEST, "portion 0.05", {"GPU-lost-0000": GIB})
    origins = {1: in_pod("within"), 2: in_pod("far-over"), 3: in_pod("over"), 4: HOST, 5: in_pod("none")}
    pod_shares = (
        pod_share("within", 8 * GIB, shares=own_word, queue="vision"),
        pod_share("far-over", 2 * GIB, tenant=tenant, limits={A: Amount(3 * GIB, LimitSource.HAMI_CORE)}),
        pod_share("over", GIB),
        pod_share("none"),
        pod_share("nowhere", groups=("g",), has_share=True, lacks_reservation=True, is_unresolved=True,
              candidates=(candidate,)),
        pod_share("lost", GIB, shares={}, gpus=("GPU-lost-0000",), candidates=(on_lost,)),
    )  # fmt: skip
    busy = gpu((1, 4 * GIB), (2, 6 * GIB), (3, 2 * GIB), (4, GIB), (5, MIB))
    return snapshot_of(sample(busy, gpu(uuid=B, index=1), origins=origins, at=at), *pod_shares)


def judged(seconds: float) -> Status:
    """The node after so many seconds with a grace of a minute."""
    judge = Judge(grace=60, interval=seconds, longest_gap=1000)
    judge.judge(node())
    after = node(seconds)
    return status_of(after, judge.judge(after)[0])


def received(status: Status, *, age: float | None = 4.0, simulated: bool = False) -> Received:
    body = shares_json(status, node="node-1", is_simulated=simulated)
    return Received(answer=read_answer(body), body=body, at=100.0, age=age)


def board(status: Status, **options: Any) -> Board:
    return board_of(received(status, **options), now=100.0)


def drawn(contents: Board, columns: int, height: int = 200, *, color: bool = False) -> str:
    """Return the text of a terminal of that size."""
    console = Console(
        file=io.StringIO(), width=columns, height=height, force_terminal=color, no_color=not color,
        markup=False, highlight=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    with console.capture() as capture:
        console.print(Screen(contents))
    return capture.get()


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_pod_furthest_over_comes_first_and_flags_have_reason_and_start() -> None:
    lines = as_text(board(judged(180.0)), columns=200).splitlines()
    assert lines[:2] == ["node node-1, driver 570.00", "as of 4 s ago, 3 flags"]
    start = next(index for index, line in enumerate(lines) if line.endswith("STATE"))
    assert [words(line) for line in lines[start:]] == [
        "GPU POD USED SHARE SOURCE OVER LIMIT PROCESSES QUEUE IN VCLUSTER STATE",
        "! 0 team-a/far-over 6.0 GiB 2.0 GiB bind-request +4.0 GiB 3.0 GiB 1 - red: ml/train-0 FLAGGED limit-bypassed for 3 min",
        "! 0 team-a/over 2.0 GiB 1.0 GiB bind-request +1.0 GiB - 1 - - FLAGGED over-share for 3 min",
        "! ? team-a/nowhere - 5.0 GiB bind-request - - - - - FLAGGED no-reservation for 3 min",
        "0 team-a/none 1.0 MiB - - - - 1 - - -",
        "0 team-a/within 4.0 GiB 8.0 GiB annotation - - 1 vision - -",
        "gone team-a/lost unknown 1.0 GiB bind-request - - - - - -",
    ]


def test_the_sums_of_each_gpu_stand_above() -> None:
    lines = [words(line) for line in as_text(board(judged(0.0))).splitlines()]
    start = lines.index("GPU MODEL USED TOTAL PROMISED HOST UNATTRIBUTED")
    assert lines[start + 1] == "0 NVIDIA A10 13.1 GiB 24.0 GiB 11.0 GiB 1.0 GiB 100.0 MiB"
    assert lines[start + 2] == "1 NVIDIA A10 100.0 MiB 24.0 GiB 0 B 0 B 100.0 MiB"


def test_columns_are_aligned() -> None:
    lines = as_text(board(judged(180.0)), columns=200).splitlines()
    start = next(index for index, line in enumerate(lines) if line.endswith("STATE"))
    for heading in ("GPU", "POD", "USED", "SHARE", "STATE"):
        column = lines[start].index(heading)
        for line in lines[start + 1 :]:
            assert line[column - 1] == " "
            assert line[column] != " "


def test_a_violation_within_the_grace_is_no_flag_yet() -> None:
    text = words(as_text(board(judged(30.0))))
    assert "no flags" in text
    assert "over-share for 30 s, in grace" in text
    assert "FLAGGED" not in text


def test_a_flag_that_no_longer_holds_is_clearing() -> None:
    judge = Judge(grace=60, interval=60, longest_gap=1000)
    judge.judge(node())
    judge.judge(node(100.0))
    good = snapshot_of(
        sample(gpu((3, GIB)), origins={3: in_pod("over")}, at=110.0), pod_share("over", GIB, gpus=(A,))
    )
    assert "FLAGGED over-share, clearing" in as_text(board(status_of(good, judge.judge(good)[0])))


def test_time_over_with_breaks_is_shown_as_a_total() -> None:
    judge, text = Judge(grace=60, interval=60, longest_gap=1000), ""
    for number in range(40):
        used_bytes = (2 if number % 2 else 1) * GIB
        snapshot = snapshot_of(
            sample(gpu((3, used_bytes)), origins={3: in_pod("over")}, at=10.0 * number),
            pod_share("over", GIB, gpus=(A,)),
        )
        text = as_text(board(status_of(snapshot, judge.judge(snapshot)[0])))
    assert "FLAGGED over-share for 60 s in all" in text


def test_unknown_figures_are_named_and_not_zero() -> None:
    origins = {1: in_pod("a-pod"), 2: DENIED}
    taken = sample(gpu((1, None), (2, GIB)), origins=origins)
    snapshot = snapshot_of(taken, pod_share("a-pod", GIB), pod_share("hidden", GIB))
    problem = Problem(Cause.PROC_DENIED, A, "/proc/1/cgroup: Permission denied")
    text = words(as_text(board(status_of(snapshot, None, problem))))
    assert "0 team-a/a-pod unknown 1.0 GiB bind-request -" in text
    assert "0 team-a/hidden unknown 1.0 GiB bind-request - unknown -" in text
    assert "problem: proc-denied (GPU 0): /proc/1/cgroup: Permission denied" in text
    assert "problem: Verdicts are suspended until these problems are resolved." in text


def test_values_that_cannot_be_read_are_named() -> None:
    note = 'Pod team-a/a-pod: gpu-fraction: "half" is not allowed'
    snapshot = snapshot_of(sample(gpu()), pod_share("a-pod", notes=(note,)))
    assert f"problem: {note}" in as_text(board(status_of(snapshot)))


def test_each_mig_device_of_a_pod_is_a_line() -> None:
    split = gpu(mig=True, instances=tuple(
        MigInstance(uuid=f"MIG-{n}aaaaaaa-0000", total_bytes=GIB, processes=()) for n in (1, 2)
    ))  # fmt: skip
    both = pod_share("both", GIB, gpus=("MIG-1aaaaaaa-0000", "MIG-2aaaaaaa-0000"))
    text = words(as_text(board(status_of(snapshot_of(sample(split), both))), columns=200))
    assert "0 MIG-1aaaaaaa team-a/both" in text
    assert "0 MIG-2aaaaaaa team-a/both" in text
    assert "NVIDIA A10 (MIG: not evaluated)" in text


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (Status(snapshot=None, attribution_ok=None), "the agent has no sample yet"),
        (Status(snapshot=None, attribution_ok=False, good_wall_time=1.0,
                problems=(Problem(Cause.SAMPLE_STALE, "", "the last successful sample is 95.0 s old"),)),
         "the last successful sample is too old"),
        (status_of(snapshot_of(sample(gpu()))), "No pod has a GPU share"),
        (status_of(snapshot_of(sample())), "no GPU responds"),
    ],
)  # fmt: skip
def test_missing_figures_have_a_reason(status: Status, message: str) -> None:
    age = None if status.good_wall_time is None else 95.0
    contents = board(status, age=age)
    assert message in as_text(contents)
    for columns in (40, 80, 200):
        assert message in words(drawn(contents, columns))


def test_simulated_old_and_silent_agents_are_marked() -> None:
    got = received(judged(0.0), simulated=True)
    fresh = board_of(got, now=got.at)
    assert "simulated: these figures are synthetic" in as_text(fresh)
    assert not fresh.is_old
    assert board_of(got, now=got.at + 100).is_old
    silent = board_of(got, now=got.at + 30, silence="Connection refused")
    assert silent.is_old
    assert "NO RESPONSE FROM THE AGENT FOR 30 s (Connection refused), as of 34 s ago" in as_text(silent)
    waiting = waiting_board("http://127.0.0.1:1", silence="Connection refused", seconds=3)
    assert "NO RESPONSE FROM THE AGENT FOR 3 s (Connection refused)" in as_text(waiting)


@pytest.mark.parametrize("columns", [30, 60, 80, 120, 200])
def test_a_terminal_of_any_width_has_every_pod_every_flag_and_both_names(columns: int) -> None:
    long = "train-0-x-ml-x-a-virtual-cluster-with-a-long-name"
    tenant = Tenant(vcluster="a-virtual-cluster", namespace="ml", pod="train-0")
    over = pod_share(
        "over", GIB, pod=node_pod("over", name=long, namespace="vcluster-a-virtual-cluster"), tenant=tenant
    )
    judge = Judge(grace=60, interval=60, longest_gap=1000)
    for at in (0.0, 100.0):
        snapshot = snapshot_of(sample(gpu((3, 5 * GIB)), origins={3: in_pod("over")}, at=at), over)
        verdicts = judge.judge(snapshot)[0]
    text = drawn(board(status_of(snapshot, verdicts)), columns)
    assert max(map(width, text.splitlines())) <= columns
    folded = re.sub(r"\s", "", text)
    for part in (f"vcluster-a-virtual-cluster/{long}", "a-virtual-cluster: ml/train-0", "5.0 GiB", "+4.0 GiB",
                  "FLAGGED over-share for 100 s", "!"):  # fmt: skip
        assert re.sub(r"\s", "", part) in folded


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_low_terminal_shows_one_line_for_each_pod_and_counts_those_left_out(columns: int) -> None:
    text = drawn(board(judged(180.0)), columns, height=8)
    lines = text.rstrip("\n").splitlines()
    assert len(lines) == 8
    assert lines[2].startswith("2 GPUs: used 13.2 GiB, promised 11.0 GiB of 48.0 GiB")
    assert lines[-1] == "… 6 lines in total; run `top --once` to see all"
    assert "team-a/far-over" in text
    assert "team-a/lost" not in text


def busy_node(pods: int, *, flagged: int, gpus: int = 8) -> Status:
    """Pods with long names on some GPUs. The last ones are a little over their share and flagged; the others
    are within a new grace, and use more."""
    uuids = [f"GPU-{index}aaaaaaa-0000-0000-0000-000000000000" for index in range(gpus)]
    names = [f"{number:02}-a-deployment-with-a-very-long-name-5d4f8c7b96" for number in range(pods)]

    def at(seconds: float, others_bytes: int) -> Snapshot:
        used = [4 * GIB if number >= pods - flagged else others_bytes for number in range(pods)]
        return snapshot_of(
            sample(
                *(gpu(*((number, used[number]) for number in range(index, pods, gpus)), uuid=uuid, index=index)
                  for index, uuid in enumerate(uuids)),
                origins={number: in_pod(str(number)) for number in range(pods)}, at=seconds,
            ),
            *(pod_share(str(number), 2 * GIB, gpus=(uuids[number % gpus],), pod=node_pod(str(number), name=name))
              for number, name in enumerate(names)),
        )  # fmt: skip

    judge = Judge(grace=60, interval=50, longest_gap=1000)
    judge.judge(at(0.0, GIB))
    judge.judge(at(90.0, GIB))
    last = at(100.0, 6 * GIB)
    return status_of(last, judge.judge(last)[0])


def test_every_flagged_pod_of_eight_gpus_is_visible_at_80_by_24() -> None:
    text = drawn(board(busy_node(29, flagged=3)), 80, height=24)
    lines = text.splitlines()
    assert len(lines) == 24
    assert max(map(width, lines)) <= 80
    assert [line[0] for line in lines].count("!") == 3
    start = next(index for index, line in enumerate(lines) if "STATE" in line)
    assert all(line.startswith("!") for line in lines[start + 1 : start + 4])
    for number in (26, 27, 28):
        assert re.search(rf"! \d .*over-share for 100 s +team-a/{number}-a-.*….*-5d4f8c7b96", text)


def test_flags_that_do_not_fit_are_counted() -> None:
    text = drawn(board(busy_node(40, flagged=30)), 80, height=24)
    lines = text.splitlines()
    visible = [line[0] for line in lines].count("!")
    assert len(lines) == 24
    assert visible > 15
    assert lines[-1].startswith(f"… 40 lines in total, {30 - visible} flagged not shown; ")


def with_utilization(status: Status, *ratios: float | None) -> Status:
    """The status with these ratios of its holdings; the last one counts for all others."""
    assert status.snapshot is not None
    holdings = tuple(
        structs.replace(holding, utilization_ratio=ratios[min(index, len(ratios) - 1)])
        for index, holding in enumerate(status.snapshot.holdings)
    )
    return replace(status, snapshot=replace(status.snapshot, holdings=holdings))


def test_size_workload_and_flags_since_the_start() -> None:
    snapshot = snapshot_of(
        sample(gpu((1, GIB)), origins={1: in_pod("a")}),
        replace(pod_share("a", GIB), size="train", workload=Workload("CronJob", "nightly")),
    )
    text = as_text(board(status_of(snapshot)))
    assert "CronJob nightly" in text
    assert re.search(r"\btrain\b", text)
    assert "since the agent started" not in text
    raised = replace(status_of(snapshot), transitions={(FlagReason.OVER_SHARE, Change.FLAGGED): 2})
    assert "no flags, since the agent started 2 raised, 0 cleared, 0 dropped" in as_text(board(raised))


def test_the_utilisation_is_a_column_if_the_driver_reports_it() -> None:
    contents = board(with_utilization(judged(180.0), 0.0, 0.127, 1.0, None))
    lines = [words(line) for line in as_text(contents, columns=200).splitlines()]
    assert (
        "! 0 team-a/over 2.0 GiB 1.0 GiB bind-request +1.0 GiB - 100% 1 - - FLAGGED over-share for 3 min"
        in lines
    )
    assert "0 team-a/none 1.0 MiB - - - - unknown 1 - - -" in lines
    assert {line.pod.partition("/")[2]: line.utilization for line in contents.pods} == {
        "within": "0%", "far-over": "13%", "over": "100%", "none": "unknown", "nowhere": "-", "lost": "-",
    }  # fmt: skip
    for columns in (80, 200):
        heading = next(line for line in drawn(contents, columns).splitlines() if "SHARE" in line)
        assert heading.split()[heading.split().index("OVER") :].count("UTIL") == 1
    assert "GPU 0: 2.0 GiB of 1.0 GiB (+1.0 GiB), utilization 100%" in drawn(contents, 60)
    for text in (
        as_text(board(judged(180.0))),
        *(drawn(board(judged(180.0)), size) for size in (60, 80, 200)),
    ):
        assert "util" not in text.lower()


@pytest.mark.parametrize("ratio", [1.0, None])
@pytest.mark.parametrize("columns", [40, 80, 110])
def test_the_utilisation_hides_no_flag_on_a_low_terminal(ratio: float | None, columns: int) -> None:
    status = with_utilization(busy_node(29, flagged=3), 0.5, ratio)
    text, before = (drawn(board(each), columns, height=24) for each in (status, busy_node(29, flagged=3)))
    assert max(map(width, text.splitlines())) <= columns
    for part in ("!", "over-share for 100 s", "team-a/"):
        assert text.count(part) == before.count(part)
    assert ("UTIL" in text) >= (columns == 110)
    assert "UTIL" in text or text == before


def test_a_flag_precedes_memory_above_the_share_within_the_slack() -> None:
    candidate = Candidate(ShareSource.BIND_REQUEST, "portion 0.25", {"": 5 * GIB})
    nowhere = pod_share("nowhere", groups=("g",), has_share=True, lacks_reservation=True, is_unresolved=True,
                        candidates=(candidate,))  # fmt: skip
    judge = Judge(grace=60, interval=60, longest_gap=1000)
    for at in (0.0, 100.0):
        busy = sample(gpu((1, 2 * GIB + MIB)), origins={1: in_pod("slack")}, at=at)
        snapshot = snapshot_of(busy, pod_share("slack", 2 * GIB), nowhere)
        verdicts = judge.judge(snapshot)[0]
    pods = board(status_of(snapshot, verdicts)).pods
    assert [(line.pod, bool(line.flags)) for line in pods] == [
        ("team-a/nowhere", True),
        ("team-a/slack", False),
    ]


def test_an_overpromised_gpu_is_named_in_the_summary() -> None:
    snapshot = snapshot_of(sample(gpu()), pod_share("big", 30 * GIB))
    summary = board(status_of(snapshot)).gpu_summary
    assert summary == "1 GPU (GPU 0 overpromised): used 100.0 MiB, promised 30.0 GiB of 24.0 GiB"


HOSTILE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["[bold]x[/]", "[/]", "[link=http://x]y[/link]", "\x1b[31mred", "\x1b]0;title\x07", "\x9b31m",
                     "a\nb", "a\rb", "\u202eevil", "\u2028", ":boom:", "漢字" * 30, "e\u0301" * 20, "x" * 5000, "\x00"]),
)  # fmt: skip
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e]")


@settings(deadline=None)
@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE, st.sampled_from([40, 80, 200]))
def test_no_name_acts_on_the_terminal(
    pod_name: str, namespace: str, queue: str, model: str, columns: int
) -> None:
    made = node_pod("a-pod", name=pod_name, namespace=namespace)
    tenant = Tenant(vcluster=queue, namespace=model, pod=pod_name)
    share = pod_share("a-pod", GIB, pod=made, queue=queue, tenant=tenant, notes=(model,))
    snapshot = snapshot_of(sample(gpu((1, GIB), model=model), origins={1: in_pod("a-pod")}), share)
    status = status_of(snapshot, None, Problem(Cause.NVML, queue, namespace))
    body = shares_json(status, node=namespace, is_simulated=False)
    got = Received(answer=read_answer(body), body=body, at=0.0, age=1.0)
    text = as_text(board_of(got, now=0.0))
    assert not CONTROLS.search(text)
    assert len(text.splitlines()) == text.count("\n")
    screen = drawn(board_of(got, now=0.0), columns)
    assert not CONTROLS.search(screen)
    assert not CONTROLS.search(drawn(board_of(got, now=0.0), columns, height=6))
    for name in ("[bold]x[/]", "[/]"):
        if pod_name == name:
            assert f"/{name}" in text
            assert name in re.sub(r"\s", "", screen)


def test_colour_is_never_alone() -> None:
    contents = board(judged(180.0))
    colored, plain = drawn(contents, 80, color=True), drawn(contents, 80)
    assert "\x1b[1;31m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain
    assert "\x1b" not in plain


# --- over HTTP ---

Answer = Callable[[BaseHTTPRequestHandler], None]


def gives(body: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def raw(*chunks: bytes, pause: float = 0.0) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        for chunk in chunks:
            handler.wfile.write(chunk)
            handler.wfile.flush()
            time.sleep(pause)
        handler.close_connection = True

    return answer


@contextmanager
def serving(answer: Answer, port: int = 0) -> Iterator[str]:
    """A server on loopback that gives that answer, and its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/api/v1/shares":
                self.send_error(404)
                return
            with suppress(BrokenPipeError, ConnectionResetError):
                answer(self)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def body_of(status: Status, **options: Any) -> bytes:
    return shares_json(status, **{"node": "node-1", "is_simulated": False, **options})


GOOD = gives(body_of(judged(180.0)))


@pytest.mark.parametrize("suffix", ["", "/", "/api/v1/shares"])
def test_an_address_is_taken_as_people_type_it(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(GOOD) as url:
        assert main(["top", "--once", "--url", url + suffix]) == 0
        assert main(["top", "--once", "--url", url.removeprefix("http://") + suffix]) == 0
    assert capsys.readouterr().out.count("team-a/far-over") == 2


def test_piped_it_shows_everything_once_without_colour(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(GOOD) as url:
        assert main(["top", "--url", url]) == 0
    out, err = capsys.readouterr()
    assert "FLAGGED limit-bypassed for 3 min" in out
    assert "\x1b" not in out
    assert err == ""


def test_json_is_the_agents_own_in_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    status = status_of(
        snapshot_of(sample(gpu()), pod_share("a", GIB, pod=node_pod("a", name="n\x9b31m\u202e")))
    )
    with serving(gives(body_of(status))) as url:
        assert main(["top", "-o", "json", "--url", url]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == json.loads(body_of(status))


def test_the_age_is_by_the_agents_clock() -> None:
    """Sampled 7 s before the answer, on a node whose clock is years away from ours."""
    sampled = 1_000_000_000.0
    status = Status(snapshot=None, attribution_ok=True, good_wall_time=sampled)
    with serving(gives(body_of(status), Date="Sun, 09 Sep 2001 01:46:47 GMT")) as url:
        assert Agent(url).fetch().age == 7.0
    with serving(gives(body_of(status), Date="yesterday")) as url:
        assert Agent(url, wall_clock=lambda: sampled + 3).fetch().age == 3.0
        assert Agent(url, wall_clock=lambda: sampled - 9).fetch().age == 0.0


@pytest.mark.parametrize(
    "date",
    [
        "",
        "Mon, 01 Jan 2020 00:00:00 +99999999999999999999",
        f"Mon, {'9' * 30} Jan 2020 00:00:00 +0000",
    ],
)
def test_without_a_valid_date_the_age_is_by_the_own_clock(date: str) -> None:
    answer = AgentResponse(node="n", last_good_sample_timestamp=100.0)
    assert age_of_figures(answer, date, lambda: 103.0) == 3.0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (gives(b"not found", 404), "the response is not from an agent: 404, not found"),
        (gives(b"", 503), "the response is not from an agent: 503"),
        (gives(b"moved", 302, Location="http://192.0.2.1/"), "the response is not from an agent: 302, moved"),
        (gives(b"<html>"), "the response is not from an agent: "),
        (gives(b"[]"), "the response is not from an agent: Expected `object`, got `array`"),
        (gives(b"{}"), "the response is not from an agent: Object missing required field `node`"),
        (gives(b'{"node": "n", "gpus": [{"uuid": 1}]}'), "the response is not from an agent: "),
        (gives(b'{"node": "\xff"}'), "the response is not from an agent: "),
        (gives(b"[" * 100_000), "the response is not from an agent: "),
        (raw(b"SSH-2.0-x\r\n"), "the response is not HTTP: "),
        (raw(), "Remote end closed connection without response"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), "the response "),
        (raw(b"HTTP/1.1 200 OK\r\n\r\n", *[b" "] * 40, pause=0.05), "no answer within 1 s"),
        (raw(b"HTTP/1.1 200 OK\r\nX: \x1b[31m\r\n\r\n{}", pause=1.2), "no answer within 1 s"),
    ],
)  # fmt: skip
def test_a_server_that_is_no_agent_is_one_line(answer: Answer, message: str) -> None:
    with serving(answer) as url, pytest.raises(NoAnswer) as caught:
        Agent(url, seconds=0.6 if "within" in message else 5).fetch()
    text = str(caught.value)
    assert message in text
    assert text.isprintable()
    assert len(text) < 500


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "the agent refuses the token of --token-file: why"),
        (503, "the agent cannot check the token: 503, why"),
    ],
)
def test_an_agents_refusal_is_not_taken_for_another_program(
    status: int, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("a-token")
    with serving(gives(b"why", status)) as url:
        assert main(["top", "--once", "--url", url, "--token-file", str(tmp_path / "token")]) == 2
    assert capsys.readouterr().err == f"kaishare-agent: {url}: {message}\n"


def test_no_agent_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for more in ([], ["--once"], ["-o", "json"]):
        assert main(["top", "--url", url, *more]) == 2
        out, err = capsys.readouterr()
        assert (out, err) == (
            "",
            f"kaishare-agent: {url}: Connection refused; is an agent running at this address?\n",
        )


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "", "http://x:port", "http://x:99999", "http://x/?a=b", "http://x/#a", "http://x/a b",
            "http://x/\x1b[31m", "file:///etc/passwd", "http://[::1", "http://x\ny"],
)  # fmt: skip
def test_an_invalid_address_is_one_line_and_status_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", url]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kaishare-agent: ")
    assert "allowed: such as http://127.0.0.1:9445" in err
    assert err.count("\n") == 1
    assert err.strip().isprintable()


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with serving(GOOD) as url:
        assert Agent(url).fetch().answer.node == "node-1"


# --- in a process of its own ---


@contextmanager
def running(*options: str, **streams: Any) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuagent", "top", *options],
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"},
        **streams,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def test_watching_goes_on_until_the_agent_answers_and_ends_with_0_at_ctrl_c() -> None:
    port = free_port()
    with running(
        "--watch", "--url", f"http://127.0.0.1:{port}", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as top:
        assert top.stderr is not None
        assert top.stdout is not None
        assert b"Connection refused; retrying" in top.stderr.readline()
        with serving(GOOD, port):
            while b"far-over" not in top.stdout.readline():
                assert top.poll() is None
            top.send_signal(signal.SIGINT)
            assert top.wait(10) == 0
        assert b"Traceback" not in top.stderr.read()


def test_watching_as_json_is_one_line_each_time() -> None:
    with serving(GOOD) as url, running("--watch", "-o", "json", "--url", url, stdout=subprocess.PIPE) as top:
        assert top.stdout is not None
        for _ in range(2):
            assert json.loads(top.stdout.readline())["node"] == "node-1"


def test_a_closed_pipe_is_no_error() -> None:
    with serving(GOOD) as url:
        reading, writing = os.pipe()
        os.close(reading)
        with running("--once", "--url", url, stdout=writing, stderr=subprocess.PIPE) as top:
            os.close(writing)
            assert top.wait(10) == 0
            assert top.stderr is not None
            assert top.stderr.read() == b""


class Terminal:
    """The other end of a terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.seen = ""

    def until(self, text: str, seconds: float = 15.0) -> None:
        """Read until a text appears, counted from the last time."""
        deadline = time.monotonic() + seconds
        got = ""
        while text not in re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", got)):
            assert time.monotonic() < deadline, got
            got += self._read(0.2)
        self.seen += got

    def rest(self) -> str:
        while chunk := self._read(0.2):
            self.seen += chunk
        return self.seen

    def _read(self, seconds: float) -> str:
        if not select.select([self._fd], [], [], seconds)[0]:
            return ""
        try:
            return os.read(self._fd, 65536).decode("utf-8", "replace")
        except OSError:  # the other side is closed
            return ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_on_a_terminal_top_watches_names_an_unreachable_agent_and_restores_the_screen(
    number: signal.Signals,
) -> None:
    ours, theirs = pty.openpty()
    try:
        port = free_port()
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        with running("--url", f"http://127.0.0.1:{port}", **streams) as top:
            terminal = Terminal(ours)
            terminal.until("NO RESPONSE FROM THE AGENT FOR")
            with serving(GOOD, port):
                terminal.until("team-a/far-over")
            terminal.until("NO RESPONSE FROM THE AGENT FOR")
            top.send_signal(number)
            assert top.wait(10) == 0
            seen = terminal.rest()
        assert seen.startswith("\x1b[?1049h")
        assert "\x1b[?1049l" in seen.rpartition("far-over")[2]
        assert "Traceback" not in seen
    finally:
        os.close(ours)
        os.close(theirs)
