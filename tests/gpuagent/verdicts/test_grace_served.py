"""A balance over the end of the real program, on a simulated node."""

import json
import signal
from pathlib import Path

import yaml

from tests.support.agent_process import Agent, agent

UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
SCENARIO = {
    "node": {"labels": {"nvidia.com/gpu.memory": "23028"}},
    "gpus": [{"uuid": UUID, "memory": "23028Mi", "reserved": "500Mi"}],
    "pods": [{"name": "a/over", "memory": 1500, "gpu": 0}],
    "processes": [{"pid": 101, "gpu": 0, "pod": "a/over", "memory": "3000Mi"}],
}


def balance(running: Agent) -> float:
    """Seconds that count towards the grace, of the one pod that has any."""
    verdicts = [verdict for pod in running.shares()["pods"] for verdict in pod["verdicts"]]
    return max((verdict["balanceSeconds"] for verdict in verdicts), default=0.0)


def test_a_killed_agent_goes_on_with_its_balances(tmp_path: Path) -> None:
    file, state = tmp_path / "node.yaml", tmp_path / "state"
    file.write_text(yaml.safe_dump(SCENARIO))
    state.mkdir()
    options = f"--gpus simulated:{file} --interval 100ms --grace 1h --state {state}".split()
    with agent(tmp_path / "log", *options) as running:
        running.until(lambda: any('"balance"' in each.read_text() for each in state.glob("state.json")))
        running.stop(signal.SIGKILL)
    saved = max(flag.get("balance", 0) for flag in json.loads((state / "state.json").read_text())["flags"])
    assert saved > 0
    with agent(tmp_path / "log-2", *options) as running:
        running.until(lambda: running.shares()["pods"])
        assert balance(running) * 1e9 >= saved
        assert running.stop() == 0
    (line,) = running.log_lines("state restored")
    assert line["flags"] > 0
