"""The webhook serves and ends normally with any standard streams."""

import asyncio
import json
from pathlib import Path

import pytest

from service.http.limits import Address
from tests.support.free_ports import free_ports
from tests.support.pods import gpu_container, pod
from tests.support.standard_streams import (
    FOREIGN,
    LOSING,
    NOT_READ,
    PATIENCE_SECONDS,
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
