"""The patterns that beat a stopwatch, against the real program on a simulated node."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.support.agent_process import Agent, agent

UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
SECONDS = 40
SHARE, OVER = "1000Mi", "3000Mi"
DIPS, ALTERNATES, BLINDS, SELDOM = "a/dips", "a/alternates", "a/blinds", "a/seldom"


def rhythm(is_over: Callable[[int], bool]) -> dict[float, str]:
    """Return the memory of a process every tenth of a second; it ends within its share."""
    steps = {tenth / 10: OVER if is_over(tenth) else SHARE for tenth in range(10 * SECONDS)}
    return {**steps, float(SECONDS): SHARE}


def scenario() -> dict[str, Any]:
    """Four pods on one GPU; with a grace of 1 s a stopwatch flags none of them."""
    memory: dict[str, Any] = {
        DIPS: rhythm(lambda tenth: tenth % 10 < 8),
        ALTERNATES: rhythm(lambda tenth: tenth % 2 == 0),
        BLINDS: OVER,
        SELDOM: rhythm(lambda tenth: tenth % 10 < 2),
    }
    pids = dict(zip(memory, range(101, 105), strict=True))
    return {
        "node": {"labels": {"nvidia.com/gpu.memory": "23028"}},
        "gpus": [{"uuid": UUID, "memory": "23028Mi", "reserved": "500Mi"}],
        "pods": [{"name": name, "memory": 1500, "gpu": 0} for name in memory],
        "processes": [
            {"pid": pids[name], "gpu": 0, "pod": name, "memory": amount} for name, amount in memory.items()
        ],
        "faults": [
            {"fault": "memory-unknown", "pid": pids[BLINDS], "from": second + 0.7, "until": second + 1.0}
            for second in range(SECONDS)
        ],
    }


def test_dips_alternation_and_blindness_end_in_a_flag(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(yaml.safe_dump(scenario()))
    options = f"--gpus simulated:{file} --interval 100ms --grace 1s"
    with agent(tmp_path / "log", *options.split()) as running:

        def flagged() -> set[str]:
            return {f"{line['namespace']}/{line['pod']}" for line in running.log_lines("pod flagged")}

        running.until(lambda: len(flagged() | {SELDOM}) == 4)
        series = running.series()
        over = {
            name: next(
                value
                for labels, value in series.items()
                if labels.startswith("kaishare_pod_over_share_seconds_total")
                and f'pod="{name.removeprefix("a/")}"' in labels
            )
            for name in (DIPS, ALTERNATES, BLINDS, SELDOM)
        }
        assert SELDOM not in flagged()
        assert min(over[name] for name in (DIPS, ALTERNATES, BLINDS)) >= 1.0
        assert over[SELDOM] > 0, "time over counts, flagged or not"
        assert running.stop() == 0


def balance(running: Agent) -> float:
    """Seconds that count towards the grace, of the one pod that has any."""
    verdicts = [verdict for pod in running.shares()["pods"] for verdict in pod["verdicts"]]
    return max((verdict["balanceSeconds"] for verdict in verdicts), default=0.0)


def test_a_killed_agent_goes_on_with_its_balances(tmp_path: Path) -> None:
    file, state = tmp_path / "node.yaml", tmp_path / "state"
    file.write_text(yaml.safe_dump({**scenario(), "faults": []}))
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
