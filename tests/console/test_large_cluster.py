"""`kaishare top` and `doctor` over the stand-ins of `benchmarks.fleet`, which has 5,000 of them by default."""

import pytest

from benchmarks.fleet import measure


@pytest.mark.slow
async def test_every_command_answers_within_its_memory(capfd: pytest.CaptureFixture[str]) -> None:
    assert await measure(40) == 0
    printed = capfd.readouterr().out
    assert (
        printed.count("\n      40 /api/v1/namespaces/kaishare-agent/pods/kaishare-agent-N:9445/proxy/") == 3
    )
    assert "exit status 0" in printed
