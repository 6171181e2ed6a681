"""The webhook serves and ends normally with any standard streams."""

import asyncio
import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from service.http.limits import Address
from tests.support.free_ports import free_ports
from tests.support.markers import nightly, sampled
from tests.support.pods import gpu_container, pod
from tests.support.standard_streams import (
    FOREIGN,
    LOSING,
    NOT_READ,
    PATIENCE_SECONDS,
    ROOT,
    SERVED,
    process_with,
    standard_descriptors,
)
from tests.support.waiting import until
from tests.support.webhook_process import Live, trust_of
from tests.support.webhook_server import POLICIES, review_of

REVIEWS = 250
LONG_NAME = json.dumps(
    review_of(pod(gpu_container()), userInfo={"username": "x" * 9000, "groups": []})
).encode()
"""A review whose log line is about 8 KiB long: 250 of them are more than the queue and a pipe hold."""


@pytest.mark.parametrize("streams", SERVED)
async def test_serve_with(streams: str, tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES)
    port, ops_port = free_ports(2)
    command = (
        f"-m webhook serve --policies {tmp_path}/policies.yaml --certs {tmp_path}/tls --drain 100ms"
        f" --listen 127.0.0.1:{port} --ops-listen 127.0.0.1:{ops_port}"
    )
    with process_with(streams, *command.split()) as process:
        await until((tmp_path / "tls" / "ca.crt").exists, "certificates")
        live = Live(
            admission=Address("127.0.0.1", port), ops=Address("127.0.0.1", ops_port),
            trust=trust_of(tmp_path / "tls"), read_log=bytes,
        )  # fmt: skip

        async def is_listening() -> bool:
            try:
                return bool(await live.connect())
            except OSError:
                return False

        async with live:
            await until(is_listening, "listening")
            connection = await live.connect()
            for _ in range(REVIEWS):
                assert (await connection.post(LONG_NAME)).response["allowed"] is True
            assert (await live.get("/healthz")).status == 200
            lost = await live.figure("kaishare_log_lines_lost_total")
            if streams in LOSING:
                # All lines but those that the writer has not come to yet.
                await until(lambda: _lost_at_least(live, REVIEWS), "every line counted")
            elif streams == NOT_READ:
                assert 0 < lost < REVIEWS
            else:
                assert lost == 0
            assert not [name for name in standard_descriptors(process) if name.startswith(FOREIGN)]
            connection.close()
        process.terminate()
        assert await asyncio.to_thread(process.wait, PATIENCE_SECONDS) == 0


async def _lost_at_least(live: Live, count: int) -> bool:
    return await live.figure("kaishare_log_lines_lost_total") >= count


DENIED = """
kind: Pod
apiVersion: v1
metadata: {name: a, namespace: team}
spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: "4"}}}]}
---
"""
GOOD = DENIED.replace(', resources: {limits: {nvidia.com/gpu: "4"}}', "")
EXPLAIN = (
    "-m webhook explain --namespace team --label kai.scheduler/queue=q --label kaishare.dev/mode=enforce"
    " --label kaishare.dev/max-gpu-fraction=0.5 --filename"
)


@pytest.mark.parametrize(
    ("streams", "status"),
    [
        (NOT_READ, 1),
        nightly(("2>&-", 1)),
        nightly((">&-", 2)),
        (">/dev/full", 2),
        nightly((">/dev/full 2>&1", 2)),
        (">&- 2>&- <&-", 2),
    ],
)
def test_explain_of_denied_pods_with(streams: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "pods.yaml").write_text(DENIED)
    with process_with(streams, *EXPLAIN.split(), str(tmp_path / "pods.yaml")) as process:
        assert process.wait(PATIENCE_SECONDS) == status


def test_explain_of_denied_pods_keeps_its_status_when_its_output_pipe_closes(tmp_path: Path) -> None:
    """`explain … | head -1`; the output is longer than a pipe holds."""
    (tmp_path / "pods.yaml").write_text(DENIED * 300)
    command = [sys.executable, *EXPLAIN.split(), str(tmp_path / "pods.yaml"), "-o", "text"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"Pod a in namespace team\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_SECONDS) == 1


@pytest.mark.parametrize(
    ("output", "streams"),
    sampled(product(("text", "json", "yaml", "patch", "manifest"), (">&-", ">/dev/full")), 3),
)
def test_explain_without_a_writable_output_ends_with_2_and_one_line(
    output: str, streams: str, tmp_path: Path
) -> None:
    (tmp_path / "pods.yaml").write_text(GOOD)
    errors = tmp_path / "errors"
    command = (*EXPLAIN.split(), f"{tmp_path}/pods.yaml", "-o", output)
    with process_with(f"{streams} 2>{errors}", *command) as process:
        assert process.wait(PATIENCE_SECONDS) == 2
    (line,) = errors.read_text().splitlines()
    assert line.startswith("kaishare: standard output: ")


@pytest.mark.parametrize("output", sampled(["text", "json", "yaml", "patch", "manifest"], 4))
def test_explain_of_admitted_pods_keeps_status_0_when_its_output_pipe_closes(
    output: str, tmp_path: Path
) -> None:
    (tmp_path / "pods.yaml").write_text(GOOD * 300)
    command = [sys.executable, *EXPLAIN.split(), str(tmp_path / "pods.yaml"), "-o", output]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_SECONDS) == 0
