"""Balances, flags, first-seen shares and KAI's records over a restart of the agent."""

import io
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent.evaluation.saved_state import MOST_BYTES, SavedState, boot_id
from service.log import JsonLog
from tests.support import agent_process
from tests.support.kube_objects import GPU_0, GPU_1, bind_request, fraction, node, reservation, uid
from tests.support.sample_pipeline import GRACE, Pipeline

GIB = 1 << 30
POD = uid(1)
OVER = {POD: {GPU_0: 20 * GIB}}
OBJECTS = (node(), reservation(), fraction())


class Agent(Pipeline):
    """A pipeline whose state is in a directory."""

    def __init__(self, folder: Path, *, name: str = "n", boot: str = "b", at: float = 0.0) -> None:
        super().__init__()
        self.now = at
        self.log = io.BytesIO()
        self.state = SavedState(
            folder, node=name, boot=boot, judge=self.books.judge, share_resolver=self.books.share_resolver,
            driver_limits=self.books.driver_limits, log=JsonLog(self.log),
        )  # fmt: skip
        self.state.restore()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def restarted(self, folder: Path, *, seconds: float = 5.0) -> "Agent":
        self.state.save()
        return Agent(folder, at=self.now + seconds - 5)


def samples_until_flagged(agent: Agent) -> int:
    for number in range(1, 10):
        agent.see(*OBJECTS, used_bytes=OVER)
        if agent.flagged:
            return number
    raise AssertionError("not flagged")


def test_the_flag_comes_when_it_would_have_come(tmp_path: Path) -> None:
    steady = samples_until_flagged(Agent(tmp_path))
    first = Agent(tmp_path)
    first.see(*OBJECTS, used_bytes=OVER, times=steady - 1)
    assert not first.flagged
    second = first.restarted(tmp_path)
    assert samples_until_flagged(second) == 1
    assert second.judged[-1].verdicts.over_seconds[POD, GPU_0] == pytest.approx(GRACE)


def test_an_agent_that_lives_for_one_sample_at_a_time_still_flags(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    for _ in range(12):
        agent.see(*OBJECTS, used_bytes=OVER)
        if agent.flagged:
            break
        agent = agent.restarted(tmp_path, seconds=8)
    assert agent.flagged == {(POD, GPU_0, "over-share")}


def test_a_flag_stands_without_being_raised_again_and_clears_as_before(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    samples_until_flagged(agent)
    agent = agent.restarted(tmp_path, seconds=300)
    agent.see(*OBJECTS, used_bytes=OVER)
    assert agent.flagged
    assert not agent.judged[-1].changes
    agent.see(*OBJECTS, used_bytes={POD: {GPU_0: GIB}})
    agent = agent.restarted(tmp_path)
    agent.see(*OBJECTS, used_bytes={POD: {GPU_0: GIB}})
    assert not agent.flagged, "in the second sample within its share"


def edited(**annotations: str) -> dict[str, Any]:
    pod = fraction()
    pod["metadata"]["annotations"] |= annotations
    return pod


def test_the_first_annotation_counts_after_a_restart(tmp_path: Path) -> None:
    first = Agent(tmp_path)
    first.see(*OBJECTS, used_bytes={})
    share = first.promised(GPU_0)
    second = first.restarted(tmp_path)
    second.see(node(), reservation(), edited(**{"gpu-fraction": "0.9"}), used_bytes={})
    assert second.promised(GPU_0) == share
    assert second.flagged == {(POD, GPU_0, "share-changed")}
    forgetful = Pipeline()
    forgetful.see(node(), reservation(), edited(**{"gpu-fraction": "0.9"}), used_bytes={})
    assert forgetful.promised(GPU_0) != share


def test_a_pinned_gpu_survives_and_kais_records_contradict_it(tmp_path: Path) -> None:
    first = Agent(tmp_path)
    first.see(*OBJECTS, bind_request(), used_bytes={})
    pinned = first.pod_share(POD)
    assert pinned.gpu_uuids == (GPU_0,)
    second = first.restarted(tmp_path)
    second.see(node(), fraction(), used_bytes={})
    assert second.pod_share(POD).gpu_uuids == (GPU_0,), "the reservation pod and the BindRequest are gone"
    assert second.pod_share(POD).source == "bind-request"
    third = second.restarted(tmp_path)
    third.see(node(), reservation(), fraction(), bind_request(portion="0.10"), used_bytes={})
    assert third.pod_share(POD).candidates[0].text == "portion 0.10", "KAI's present record counts"
    fourth = third.restarted(tmp_path)
    fourth.see(node(), reservation(gpu=GPU_1), fraction(), bind_request(portion="0.10"), used_bytes={})
    assert fourth.pod_share(POD).gpu_uuids == (GPU_1,)


def test_the_state_of_a_pod_that_has_ended_is_dropped(tmp_path: Path) -> None:
    first = Agent(tmp_path)
    samples_until_flagged(first)
    second = first.restarted(tmp_path)
    second.see(node(), reservation(), used_bytes={})
    second.state.save()
    saved = json.loads((tmp_path / "state.json").read_text())
    assert (saved["flags"], saved["times"], saved["pods"]) == ([], [], [])


def test_a_state_that_no_inventory_has_confirmed_is_saved_again(tmp_path: Path) -> None:
    first = Agent(tmp_path)
    samples_until_flagged(first)
    first.state.save()
    before = json.loads((tmp_path / "state.json").read_text())
    Agent(tmp_path).state.save()
    assert json.loads((tmp_path / "state.json").read_text()) == before


def replace_text(old: str, new: str) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old.encode(), new.encode())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (replace_text('"boot":"b"', '"boot":"c"'), "it is of another boot"),
        (replace_text('"node":"n"', '"node":"m"'), "it is of another node"),
        (replace_text('"format":1', '"format":2,"flags":7'), "it is of another format"),
        (lambda data: data[:-20], "truncated"),
        (lambda data: data + b" " * 10_000_000, f"expected at most {MOST_BYTES}"),
        (lambda _data: b"", "truncated"),
        (lambda _data: b"\xff\xfe", ""),
        (lambda _data: b"[" * 100_000, ""),
        (replace_text('"balance":', '"balance":-'), "Expected `int` >= 0"),
        (replace_text('"reason":"over-share"', '"reason":"other"'), "Invalid enum value"),
    ],
)
def test_a_state_that_does_not_fit_is_dropped_whole_with_one_line(
    tmp_path: Path, spoil: Callable[[bytes], bytes], reason: str
) -> None:
    first = Agent(tmp_path)
    samples_until_flagged(first)
    first.state.save()
    file = tmp_path / "state.json"
    file.write_bytes(spoil(file.read_bytes()))
    second = Agent(tmp_path, at=first.now)
    (line,) = second.lines
    assert line["message"] == "saved state dropped"
    assert reason in line["reason"]
    second.see(*OBJECTS, used_bytes=OVER)
    assert not second.flagged


def test_the_file_is_bounded_and_the_largest_entries_go_first(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    pods = [fraction(f"pod-{number}", number) for number in range(1, 400)]
    for number, pod in enumerate(pods):
        pod["metadata"]["annotations"]["kaishare.dev/x"] = "x" * (4000 if number else 1)
    agent.see(node(), reservation(), *pods, used_bytes=OVER)
    agent.state.save()
    file = tmp_path / "state.json"
    saved = json.loads(file.read_text())
    assert 0.9 * MOST_BYTES < file.stat().st_size <= MOST_BYTES
    assert saved["flags"]
    assert saved["pods"][0]["uid"] == POD


async def test_a_directory_that_takes_no_file_is_one_line(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "gone")
    agent.see(*OBJECTS, used_bytes=OVER)
    agent.state.save()
    agent.state.save()
    assert [line["message"] for line in agent.lines] == ["state not saved"]


def test_the_boot_is_the_nodes(tmp_path: Path) -> None:
    assert boot_id(tmp_path) == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("other\n")
    assert boot_id(tmp_path) == "other"


def test_a_text_that_is_no_unicode_is_left_out(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    broken = fraction("broken", 2)
    broken["metadata"]["annotations"]["kaishare.dev/x"] = "\ud800"
    agent.see(*OBJECTS, broken, used_bytes=OVER)
    agent.state.save()
    saved = json.loads((tmp_path / "state.json").read_text())
    assert [pod["uid"] for pod in saved["pods"]] == [POD]


SCENARIO = {
    "node": {"labels": {"nvidia.com/gpu.memory": "23028"}},
    "gpus": [{"uuid": GPU_0, "memory": "23028Mi", "reserved": "500Mi"}],
    "pods": [{"name": "a/over", "memory": 1500, "gpu": 0}],
    "processes": [{"pid": 101, "gpu": 0, "pod": "a/over", "memory": "3000Mi"}],
}


def balance(running: agent_process.Agent) -> float:
    """Seconds that count towards the grace, of the one pod that has any."""
    verdicts = [verdict for pod in running.shares()["pods"] for verdict in pod["verdicts"]]
    return max((verdict["balanceSeconds"] for verdict in verdicts), default=0.0)


def test_a_killed_agent_goes_on_with_its_balances(tmp_path: Path) -> None:
    file, state = tmp_path / "node.yaml", tmp_path / "state"
    file.write_text(yaml.safe_dump(SCENARIO))
    state.mkdir()
    options = f"--gpus simulated:{file} --interval 100ms --grace 1h --state {state}".split()
    with agent_process.agent(tmp_path / "log", *options) as running:
        running.until(lambda: any('"balance"' in each.read_text() for each in state.glob("state.json")))
        running.stop(signal.SIGKILL)
    saved = max(flag.get("balance", 0) for flag in json.loads((state / "state.json").read_text())["flags"])
    assert saved > 0
    with agent_process.agent(tmp_path / "log-2", *options) as running:
        running.until(lambda: running.shares()["pods"])
        assert balance(running) * 1e9 >= saved
        assert running.stop() == 0
    (line,) = running.log_lines("state restored")
    assert line["flags"] > 0
