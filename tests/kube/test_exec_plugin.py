"""Credential plugins: what they write to standard error."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from kube.access import AccessError, KubeConfig
from tests.support.standard_streams import PATIENCE_SECONDS, ROOT


def with_plugin(folder: Path, program: str) -> str:
    """Write a kubeconfig with a plugin in Python; return its path."""
    (folder / "plugin.py").write_text(program)
    entry = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(folder / "plugin.py")],
        "interactiveMode": "IfAvailable",
    }
    document = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": entry}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))
    return str(path)


def next_line(terminal: int) -> str:
    """Read a line from the other end of a terminal."""
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([terminal], [], [], PATIENCE_SECONDS)[0], line
        line += os.read(terminal, 1)
    return line.decode()


def test_a_plugin_asks_a_person_on_the_terminal_and_the_error_line_does_not_repeat_it(tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    os.mkfifo(answer)
    kubeconfig = with_plugin(
        tmp_path,
        "import sys\n"
        "print('Open https://login.example', file=sys.stderr, flush=True)\n"
        f"sys.exit(int(open({str(answer)!r}).read()))\n",
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "console", "policies", "--kubeconfig", kubeconfig],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    try:
        assert next_line(ours) == "Open https://login.example\r\n"
        answer.write_text("3")
        assert next_line(ours) == (
            f'kaishare: {kubeconfig}: user "u": exec: {sys.executable}: exit status 3\r\n'
        )
        assert process.wait(PATIENCE_SECONDS) == 2
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(theirs)
        os.close(ours)


async def test_of_what_a_plugin_writes_elsewhere_the_end_is_kept_for_the_error_line(tmp_path: Path) -> None:
    kubeconfig = with_plugin(
        tmp_path,
        "import sys\n"
        "for _ in range(64):\n"
        "    sys.stderr.write('debug ' * 100_000)\n"
        "sys.exit('Run the login first.')\n",
    )
    tracemalloc.start()
    try:
        with pytest.raises(AccessError, match=r"exit status 1: ….{250,} debug Run the login first\.$"):
            await KubeConfig.load(kubeconfig)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000, "of 38 MB"
    finally:
        tracemalloc.stop()
