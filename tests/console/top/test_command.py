"""`kaishare top` as a command: text, JSON, errors in one line, and a terminal that is restored."""

import io
import os
import pty
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from itertools import product
from pathlib import Path

import pytest

from console.cli import main
from gpuagent.first_acts import FOR_FLAG
from tests.support.free_ports import free_port
from tests.support.markers import sampled
from tests.support.top_agents import GIB, act_line, document, gives, pod, serving

ROOT = Path(__file__).parents[3]
BODY = document(
    "node-a",
    pod("fine", "node-a", namespace="team-b"),
    pod("flagged-\x1b[31m", "node-a", 3 * GIB, lasted=300.0, is_flagged=True),
)

GOOD = gives(BODY)


def asks_for_token(handler: BaseHTTPRequestHandler) -> None:
    """Answer as an agent with `--authentication=tokens`; a token "repeat…" is repeated."""
    sent = handler.headers.get("X-Kaishare-Token", "")
    if sent.startswith("repeat"):
        gives(b"refused: " + sent.encode(), 500)(handler)
    elif sent == "unchecked":
        gives(b"why", 503)(handler)
    else:
        (GOOD if sent == "good-token" else gives(b"a bearer token is required", 401))(handler)


def test_without_a_terminal_the_table_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(GOOD) as url:
        assert main(["top", "--url", url]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("1 flagged, 0 in grace, 2 pods; used 10.0 GiB, promised 20.0 GiB of 24.0 GiB")
    assert lines[2:4] == ["1 node: all answer", ""]
    assert " ".join(lines[5].split()) == "node-a GPU 0 NVIDIA A10 10.0 GiB 20.0 GiB 14.0 GiB -"
    assert lines[7].split() == ["STATE", "GPU", "USED", "SHARE", "%", "OVER", "FOR", "POD", "NAMESPACE"]
    assert lines[8].split()[:8] == ["!", "flagged:", "over-share", "0", "3.0", "GiB", "2.0", "GiB"]
    assert "flagged-\ufffd[31m" in lines[8]
    assert " ".join(line.strip() for line in lines[9:-1]) == act_line(FOR_FLAG["over-share"])
    assert "fine" in lines[-1]
    assert max(map(len, lines)) <= 80
    assert ("\x1b" in out, err) == (False, "")


def test_an_agent_that_does_not_answer_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for more in ([], ["--once"], ["-o", "json"]):
        assert main(["top", "--url", url, *more]) == 2
        line = f"kaishare: {url}: Connection refused; is an agent running at this address?\n"
        assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize(
    ("given", "reason", "asks"),
    [
        (None, "the agent needs --token-file: 401, a bearer token is required", False),
        ("other\n", "the agent refuses the token of --token-file: 401, a bearer token is required", False),
        ("unchecked", "the agent cannot check the token: 503, why", False),
        ("repeat-this\n", "the response is not from an agent: it repeats the token of the request", True),
        ("two words", "standard input: not a token; create one with kubectl create token --audience", False),
    ],
)
def test_a_token_for_one_agent_comes_from_a_file(
    given: str | None, reason: str, asks: bool, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    options = [] if given is None else ["--token-file", "-"]
    monkeypatch.setattr("sys.stdin", io.StringIO(given or ""))
    with serving(asks_for_token) as url:
        assert main(["top", "--once", "--url", url, *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert reason in err
    assert ("is an agent running" in err) == asks, "else an agent has answered"


def test_a_valid_token_is_sent_to_one_agent_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("good-token\n")
    with serving(asks_for_token) as url:
        assert main(["top", "-o", "json", "--url", url, "--token-file", str(file)]) == 0
    out, err = capsys.readouterr()
    assert '"answered": true' in out
    assert "good-token" not in out + err
    assert main(["top", "--once", "--token-file", str(file)]) == 2
    assert "--token-file needs --url" in capsys.readouterr().err


ADDRESSES = ["ftp://x", "http://", "", "http://x:port", "http://x:99999", "http://x/?a=b", "http://x/#a", "http://x/a b",
             "http://x/\x1b[31m", "file:///etc/passwd", "http://[::1", "http://x\ny"]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        *((["--url", url], "allowed: such as http://127.0.0.1:9445") for url in ADDRESSES),
        (["-n", "a.b"], "a.b"),
        (["--sort", "name"], "name"),
        (["--kubeconfig", "/nowhere"], "/nowhere"),
    ],
)
def test_unusable_options_are_one_line_and_status_2(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert part in err
    assert err.strip().isprintable()


@pytest.mark.parametrize(
    ("no_color", "ending"), sampled(product((False, True), ("q", signal.SIGTERM, signal.SIGINT)), 2)
)
def test_the_terminal_has_the_view_and_is_restored(ending: str | signal.Signals, no_color: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    environment.pop("NO_COLOR", None)
    if no_color:
        environment["NO_COLOR"] = "1"
    with serving(GOOD) as url:
        process = subprocess.Popen(
            [sys.executable, "-m", "console", "top", "--url", url],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            seen = until(ours, b"fine", process)
            if isinstance(ending, str):
                os.write(ours, ending.encode())
            else:
                process.send_signal(ending)
            seen += until(ours, b"\x1b[?1049l", process)
            assert process.wait(10) == 0
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            os.close(theirs)
            os.close(ours)
    assert b"\x1b[?1049h" in seen
    assert b"Traceback" not in seen
    assert b"flagged-\x1b[31m" not in seen
    assert (b"\x1b[1;31" in seen or b";31;" in seen or b";31m" in seen) is not no_color


def until(descriptor: int, text: bytes, process: "subprocess.Popen[bytes]", seconds: float = 20.0) -> bytes:
    """Read from a terminal until a text appears."""
    os.set_blocking(descriptor, False)
    seen = b""
    deadline = time.monotonic() + seconds
    while text not in seen:
        assert time.monotonic() < deadline, seen[-2000:]
        try:
            seen += os.read(descriptor, 65536)
        except BlockingIOError:
            assert process.poll() is None, seen[-2000:]
            time.sleep(0.02)
    return seen
