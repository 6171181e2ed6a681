"""`kaishare top --url`: text and screen from an agent's real JSON, and errors of the connection."""

import os
import re
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

from console.agent_client import Agent, ReadFailed, Received, age_of_figures
from console.cli import main
from console.top.arrange import Arrangement
from console.top.fleet import AgentRef, Fleet
from console.top.text import as_text
from gpuagent.api_types import AgentResponse, read_answer
from gpuagent.evaluation.status import Status
from gpuagent.first_acts import FOR_FLAG
from gpuagent.gpus.gpu_reading import MigInstance
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.pods.pod_owners import Tenant, Workload
from gpuagent.problems import Cause, Problem
from gpuagent.server.api import shares_json
from gpuagent.shares.pod_share import Amount, Candidate, LimitSource, ShareSource
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.verdict import Change, Verdicts
from tests.support.free_ports import free_port
from tests.support.samples import DENIED, GIB, HOST, MIB, A, B, gpu, in_pod, pod_share, sample, snapshot_of

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
        pod_share("far-over", 2 * GIB, tenant=tenant, limits={A: Amount(3 * GIB, LimitSource.ANNOTATION)}),
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


def fleet_of(status: Status, *, is_simulated: bool = False) -> Fleet:
    """The state after an agent's response, sampled 4 s before."""
    body = shares_json(status, node="node-1", is_simulated=is_simulated)
    fleet = Fleet()
    fleet.set_agents([AgentRef("http://127.0.0.1:9445", "")], 0.0)
    fleet.set_response(
        "http://127.0.0.1:9445", Received(answer=read_answer(body), body=body, at=100.0, age=4.0)
    )
    return fleet


def text_of(status: Status, columns: int = 200) -> str:
    return as_text(fleet_of(status), Arrangement(), 100.0, columns=columns)


BELOW = " " * 5
"""Indentation of the lines below a row; the column of the state begins before it."""


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_table_has_every_figure_of_each_pod() -> None:
    lines = text_of(judged(180.0)).splitlines()
    assert lines[:8] == [
        "3 flagged, 0 in grace, 6 pods; used 13.2 GiB, promised 11.0 GiB of 48.0 GiB",
        "2 GPUs: none lost",
        "1 node: all answer",
        "node-1: driver 570.00, sample of 4 s ago",
        "",
        "       MODEL       USED       TOTAL     FREE      PROMISED  HOST     UNATTRIBUTED",
        "GPU 0  NVIDIA A10  13.1 GiB   24.0 GiB  10.6 GiB  11.0 GiB  1.0 GiB  100.0 MiB",
        "GPU 1  NVIDIA A10  100.0 MiB  24.0 GiB  23.6 GiB  0 B       0 B      100.0 MiB",
    ]
    start = next(index for index, line in enumerate(lines) if "STATE" in line)
    rows = [words(line) for line in lines[start:] if not line.startswith(BELOW)]
    assert rows == [
        "STATE GPU USED SHARE % LIMIT OVER FOR POD NAMESPACE QUEUE PROCESSES SOURCE IN VCLUSTER",
        "! flagged: limit-bypassed 0 6.0 GiB 2.0 GiB 300% 3.0 GiB 3 min far-over team-a - 1 bind-request red: ml/train-0",
        "! flagged: over-share 0 2.0 GiB 1.0 GiB 200% - 3 min over team-a - 1 bind-request -",
        "! flagged: no-reservation unknown - 5.0 GiB unknown - 3 min nowhere team-a - - bind-request -",
        "within share 0 4.0 GiB 8.0 GiB 50% - - within team-a vision 1 annotation -",
        "in order 0 1.0 MiB - - - - none team-a - 1 - -",
        "not judged: its GPU does not respond unknown unknown 1.0 GiB unknown - - lost team-a - unknown bind-request -",
    ]
    below = " ".join(words(line) for line in lines[start:] if line.startswith(BELOW))
    for reason, message in (
        (
            "limit-bypassed",
            f"uses 6.0 GiB on GPU 0 ({A}), above its memory limit of 3.0 GiB, which is not enforced",
        ),
        ("over-share", f"uses 2.0 GiB on GPU 0 ({A}), above its share of 1.0 GiB, for 3 min"),
        ("no-reservation", "its GPU is no longer reserved"),
    ):
        assert below.count(message) == below.count(FOR_FLAG[reason].line) == 1


def test_a_violation_within_the_grace_is_no_flag_yet() -> None:
    text = text_of(judged(30.0))
    assert text.startswith("0 flagged, 3 in grace, ")
    assert "~  in grace: over-share" in text
    assert "flagged:" not in text


def test_a_flag_that_no_longer_holds_stays_until_it_is_cleared() -> None:
    judge = Judge(grace=60, interval=60, longest_gap=1000)
    judge.judge(node())
    judge.judge(node(100.0))
    good = snapshot_of(
        sample(gpu((3, GIB)), origins={3: in_pod("over")}, at=110.0), pod_share("over", GIB, gpus=(A,))
    )
    assert "flagged: over-share" in text_of(status_of(good, judge.judge(good)[0]))


def test_unknown_figures_are_named_and_not_zero() -> None:
    origins = {1: in_pod("a-pod"), 2: DENIED}
    taken = sample(gpu((1, None), (2, GIB)), origins=origins)
    snapshot = snapshot_of(taken, pod_share("a-pod", GIB), pod_share("hidden", GIB))
    problem = Problem(Cause.PROC_DENIED, A, "/proc/1/cgroup: Permission denied")
    text = words(text_of(status_of(snapshot, None, problem)))
    for name in ("a-pod", "hidden"):
        assert f"not judged: verdicts are suspended 0 unknown 1.0 GiB unknown - {name} team-a unknown" in text
    assert "? node-1: verdicts suspended: proc-denied (GPU 0): /proc/1/cgroup: Permission denied" in text


def test_values_that_cannot_be_read_are_named() -> None:
    note = 'Pod team-a/a-pod: gpu-fraction: "half" is not allowed'
    snapshot = snapshot_of(sample(gpu()), pod_share("a-pod", notes=(note,)))
    assert f"     note: {note}\n" in text_of(status_of(snapshot))


def test_each_mig_device_of_a_pod_is_a_line() -> None:
    split = gpu(mig=True, instances=tuple(
        MigInstance(uuid=f"MIG-{n}aaaaaaa-0000", total_bytes=GIB, processes=()) for n in (1, 2)
    ))  # fmt: skip
    both = pod_share("both", GIB, gpus=("MIG-1aaaaaaa-0000", "MIG-2aaaaaaa-0000"))
    text = words(text_of(status_of(snapshot_of(sample(split), both))))
    for device in ("MIG-1aaa…", "MIG-2aaa…"):
        assert f"not judged: MIG 0 {device} 0 B 1.0 GiB 0% - both team-a" in text
    assert "100.0 MiB MIG: not judged" in text


@pytest.mark.parametrize("columns", range(30, 90))
def test_no_amount_is_separated_from_its_unit(columns: int) -> None:
    for line in text_of(judged(180.0), columns).splitlines():
        assert not re.match(r" *([GMK]i)?B\b", line)


def test_size_workload_and_flags_since_the_start() -> None:
    snapshot = snapshot_of(
        sample(gpu((1, GIB)), origins={1: in_pod("a")}),
        replace(pod_share("a", GIB), size="train", workload=Workload("CronJob", "nightly")),
    )
    text = text_of(status_of(snapshot))
    assert "CronJob nightly" in text
    assert re.search(r"\btrain\b", text)
    assert "since the agent started" not in text
    raised = replace(status_of(snapshot), transitions={(FlagReason.OVER_SHARE, Change.FLAGGED): 2})
    assert "; flags since the agent started: 2 raised, 0 cleared, 0 dropped" in text_of(raised)


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
    assert capsys.readouterr().out.count("far-over") == 2


def test_piped_it_shows_everything_once_without_colour(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(GOOD) as url:
        assert main(["top", "--url", url]) == 0
    out, err = capsys.readouterr()
    assert "flagged: limit-bypassed" in out
    assert "\x1b" not in out
    assert err == ""


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
        (raw(b"HTTP/1.1 200 OK\r\nX: ", *[b"a"] * 40, pause=0.05), "no answer within 1 s"),
        (raw(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 40, pause=0.05), "no answer within 1 s"),
        (raw(b"HTTP/1.1 200 OK\r\nX: \x1b[31m\r\n\r\n{}", pause=1.2), "no answer within 1 s"),
    ],
)  # fmt: skip
def test_a_server_that_is_no_agent_is_one_line(answer: Answer, message: str) -> None:
    with serving(answer) as url, pytest.raises(ReadFailed) as caught:
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
    assert capsys.readouterr().err == f"kaishare: {url}: {message}\n"


def test_no_agent_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for more in ([], ["--once"], ["-o", "json"]):
        assert main(["top", "--url", url, *more]) == 2
        out, err = capsys.readouterr()
        assert (out, err) == (
            "",
            f"kaishare: {url}: Connection refused; is an agent running at this address?\n",
        )


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "", "http://x:port", "http://x:99999", "http://x/?a=b", "http://x/#a", "http://x/a b",
            "http://x/\x1b[31m", "file:///etc/passwd", "http://[::1", "http://x\ny"],
)  # fmt: skip
def test_an_invalid_address_is_one_line_and_status_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", url]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kaishare: ")
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
        [sys.executable, "-m", "console", "top", *options],
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


def test_a_closed_pipe_is_no_error() -> None:
    with serving(GOOD) as url:
        reading, writing = os.pipe()
        os.close(reading)
        with running("--once", "--url", url, stdout=writing, stderr=subprocess.PIPE) as top:
            os.close(writing)
            assert top.wait(10) == 0
            assert top.stderr is not None
            assert top.stderr.read() == b""
