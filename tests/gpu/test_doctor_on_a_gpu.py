"""The doctor on a real GPU: the driver's versions, and a process of its own found again."""

import json

import pytest

from gpuagent.cli import main
from gpuagent.gpus.nvml import NvmlGpus


@pytest.fixture
def _driver() -> None:
    source = NvmlGpus()
    reading = source.read()
    source.close()
    if not reading.gpus:
        pytest.skip(f"no NVIDIA driver here: {'; '.join(problem.detail for problem in reading.problems)}")


@pytest.mark.usefixtures("_driver")
def test_a_process_of_its_own_is_found_again(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "-o", "json"])
    shown = json.loads(capsys.readouterr().out)
    found = {finding["check"]: finding for finding in shown["findings"]}
    assert found["driver"]["state"] == "ok"
    assert ", library " in found["driver"]["what"]
    assert "unknown version" not in found["driver"]["what"]
    assert found["GPU 0"]["state"] == "ok"
    assert found["device files"]["state"] == "ok"
    own = found["a process of its own"]
    assert own["state"] == "ok" or own["what"].startswith(("not checked: no GPU", "not checked: libcuda"))
