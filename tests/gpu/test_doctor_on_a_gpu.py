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
    document = json.loads(capsys.readouterr().out)
    by_check = {finding["check"]: finding for finding in document["findings"]}
    assert by_check["driver"]["state"] == "ok"
    assert ", library " in by_check["driver"]["what"]
    assert "unknown version" not in by_check["driver"]["what"]
    assert by_check["GPU 0"]["state"] == "ok"
    assert by_check["device files"]["state"] == "ok"
    own = by_check["a process of its own"]
    assert own["state"] == "ok" or own["what"].startswith(("not checked: no GPU", "not checked: libcuda"))
