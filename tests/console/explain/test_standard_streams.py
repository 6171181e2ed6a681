"""`kaishare explain` ends normally with any standard streams."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.markers import nightly
from tests.support.standard_streams import NOT_READ, PATIENCE_SECONDS, ROOT, process_with

DENIED = """
kind: Pod
apiVersion: v1
metadata: {name: a, namespace: team}
spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: "4"}}}]}
---
"""
EXPLAIN = (
    "-m console explain --namespace team --label kai.scheduler/queue=q --label kaishare.dev/mode=enforce"
    " --label kaishare.dev/max-gpu-fraction=0.5 --filename"
)


@pytest.mark.parametrize(
    ("streams", "status"),
    [
        (NOT_READ, 1),
        nightly(("2>&-", 1)),
        (">&- 2>&- <&-", 2),
        (">&- 2>ERRORS", 2),
        (">/dev/full 2>ERRORS", 2),
    ],
)
def test_explain_of_denied_pods_with(streams: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "pods.yaml").write_text(DENIED)
    errors = tmp_path / "errors"
    command = (*EXPLAIN.split(), str(tmp_path / "pods.yaml"))
    with process_with(streams.replace("ERRORS", str(errors)), *command) as process:
        assert process.wait(PATIENCE_SECONDS) == status
    if "ERRORS" in streams:
        assert re.fullmatch(r"kaishare: standard output: .+\n", errors.read_text())


@pytest.mark.parametrize("output", ["text", nightly("json")])
def test_a_closed_pipe_keeps_the_status(output: str, tmp_path: Path) -> None:
    """`explain … | head -1`; the output is longer than a pipe holds."""
    (tmp_path / "pods.yaml").write_text(DENIED * 300)
    command = [sys.executable, *EXPLAIN.split(), str(tmp_path / "pods.yaml"), "-o", output]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 1
