"""Faults of time and of processes under the real agent, for tests/gpuagent/test_process_faults.py.

The agent runs with a library that stands in for NVIDIA's, on a node with two GPUs. Its clocks jump, it is
suspended and killed, PIDs are reused, one of them in the middle of a sample, and a pod is created again under
its name. No pod that stays within its share may get a flag, no figure be another pod's, and the pod above its
share may not lose its flag.
"""

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuagent.sampling.processes import ticks_since_boot
from gpuagent.sampling.sampler import longest_gap
from tests.support.agent_process import Agent, agent
from tests.support.kube_objects import bind_request, pod, reservation, uid
from tests.support.moved_clocks import MovedClocks
from tests.support.nvml_stub.build import ANSWERS
from tests.support.proc_files import ProcTree, in_pod
from tests.support.waiting import wait_until

GIB: Final = 1 << 30
NODE: Final = "node-1"
UUIDS: Final = tuple(f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "ab")
INTERVAL, GRACE = 0.2, 2.0
"""Seconds; a share is 4 GiB, a quarter of a GPU."""
_SHARE: Final = 4
GREEDY, CALM, BRIEF, EDITED = "greedy", "calm", "brief", "edited"
_GPU_OF: Final = {GREEDY: 0, CALM: 0, BRIEF: 1, EDITED: 1}
SENSORS: Final = {
    "nvmlDeviceGetUtilizationRates": 37, "nvmlDeviceGetTemperature": 61, "nvmlDeviceGetPowerUsage": 142_500,
    "nvmlDeviceGetEnforcedPowerLimit": 300_000,
}  # fmt: skip
_SOON: Final = 30.0
_MOST_BETWEEN: Final = 2.5 * INTERVAL
"""Longest time between two samples."""
_CHANCE: Final = 10 * INTERVAL
"""Seconds that more samples than on average may count: the times between samples are random."""


@dataclass
class Node:
    folder: Path
    library: Path
    numbers: dict[str, int] = field(default_factory=lambda: {GREEDY: 1, CALM: 2, BRIEF: 3, EDITED: 4})
    """The number of each pod, from which its UID follows."""
    pids: dict[str, int] = field(
        default_factory=lambda: {name: 100 + number for number, name in enumerate(_GPU_OF)}
    )
    gib: dict[str, float] = field(default_factory=lambda: {GREEDY: 9, CALM: 1, BRIEF: 1, EDITED: 1})
    """GiB that the process of each pod uses."""
    fraction: str = "0.25"
    """The annotation of the pod `edited`, of which KAI has no other record."""
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree = ProcTree(self.folder / "proc")
        self.tree.add(2, "0::/", name="kthreadd")
        for name in _GPU_OF:
            self.start_process(name, start=100)
        self.clock = MovedClocks(self.folder)
        self.write_pods()
        self.drive()

    @contextlib.contextmanager
    def agent(self, log: str) -> Iterator[Agent]:
        options = (
            f"--node {NODE} --pods {self.folder}/pods.json --proc-root {self.folder}/proc"
            f" --interval {INTERVAL * 1000:.0f}ms --grace {GRACE * 1000:.0f}ms"
        )
        environment = {
            "LD_LIBRARY_PATH": str(self.library.parent),
            ANSWERS: f"{self.folder}/answers",
            **self.clock.environment,
        }
        with agent(self.folder / log, *options.split(), **environment) as running:
            yield running

    def drive(self, *faults: str) -> None:
        lines = []
        for index, uuid in enumerate(UUIDS):
            on_gpu = {name: gib for name, gib in self.gib.items() if _GPU_OF[name] == index}
            lines.append(f"gpu {index} {uuid} {16 * GIB} 0 {int(sum(on_gpu.values()) * GIB)} NVIDIA A10")
            lines += [f"sensor {index} {call} {value}" for call, value in SENSORS.items()]
            for name, gib in on_gpu.items():
                lines.append(f"process {index} - 0 {self.pids[name]} {int(gib * GIB)} 4294967295 4294967295")
        self.replace("answers", "".join(f"{line}\n" for line in (*lines, *faults)))

    def start_process(self, name: str, *, start: int) -> None:
        """Give the PID of a pod to a process of it that started then, in ticks since boot."""
        self.tree.add(self.pids[name], in_pod(uid(self.numbers[name])), start=start)

    def write_pods(self) -> None:
        items = []
        for name, number in self.numbers.items():
            fraction = self.fraction if name == EDITED else "0.25"
            labels, annotations = {"runai-gpu-group": f"group-{_GPU_OF[name]}"}, {"gpu-fraction": fraction}
            items.append(
                pod(name, number, namespace="team", node=NODE, labels=labels, annotations=annotations)
            )
            if name != EDITED:
                groups = (f"group-{_GPU_OF[name]}",)
                items.append(bind_request(name, number, "0.25", groups=groups, namespace="team"))
        items += [reservation(f"group-{i}", uuid, 900 + i, node=NODE) for i, uuid in enumerate(UUIDS)]
        self.replace("pods.json", json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def replace(self, name: str, text: str) -> None:
        making = self.folder / f"{name}.making"
        making.write_text(text)
        making.replace(self.folder / name)

    def check(self, holds: object, text: str) -> None:
        if not holds:
            self.wrong.append(text)

    def check_flags(self, running: Agent, when: str, expected: set[str]) -> None:
        flagged = flags(running)
        self.check(flagged == expected, f"{when}: flags of {flagged or 'no pod'} instead of {expected}")


def flags(running: Agent) -> set[str]:
    return {
        label(series, "pod")
        for series, value in running.series().items()
        if series.startswith("kaishare_pod_flagged{") and value and label(series, "reason") == "over-share"
    }


def label(series: str, name: str) -> str:
    return series.partition(f'{name}="')[2].partition('"')[0]


def amount(running: Agent, what: str, pod_uid: str) -> float | None:
    """Return `used` or `share` of a pod in GiB; None if it is absent."""
    for series, value in running.series().items():
        if series.startswith(f"kaishare_pod_gpu_memory_{what}_bytes{{") and label(series, "uid") == pod_uid:
            return value / GIB
    return None


def used_gib(running: Agent, pod_uid: str) -> float | None:
    return amount(running, "used", pod_uid)


def over_seconds(running: Agent, name: str) -> float:
    return sum(
        value
        for series, value in running.series().items()
        if series.startswith("kaishare_pod_over_share_seconds_total{") and label(series, "pod") == name
    )


def newest_sample(running: Agent) -> float:
    name = "kaishare_agent_last_sample_timestamp_seconds"
    return next(value for series, value in running.series().items() if series.startswith(name))


def seconds_until(holds: Callable[[], object]) -> float:
    began = time.monotonic()
    wait_until(holds, "the agent's figures", _SOON)
    return time.monotonic() - began


def wall_clock_jumps(node: Node, running: Agent) -> None:
    for seconds in (3600, -7200, 366 * 86400, -20 * 366 * 86400, 0):
        before = over_seconds(running, GREEDY)
        began = time.monotonic()
        node.clock.set(seconds)
        ends, statuses = began + 6 * INTERVAL, []
        while time.monotonic() < ends:
            node.check_flags(running, f"wall clock {seconds:+} s", {GREEDY})
            statuses.append(running.get("/readyz")[0])
            time.sleep(0.05)
        lasted, added = time.monotonic() - began, over_seconds(running, GREEDY) - before
        distance = newest_sample(running) - time.time() - seconds
        node.check(set(statuses) == {200}, f"wall clock {seconds:+} s: /readyz {set(statuses)}")
        node.check(abs(distance) < 2, f"wall clock {seconds:+} s: the newest sample is {distance:+.1f} s off")
        node.check(added <= lasted + _CHANCE, f"{added:.1f} s over the share in {lasted:.1f} s")


def monotonic_clock_jumps(node: Node, running: Agent) -> None:
    """Let the monotonic clock jump forward, alone and with the wall clock, as when a suspended machine resumes.
    A pod has been above its share for a part of the grace, and must not be flagged for time without samples."""
    node.gib[BRIEF] = 2 * _SHARE
    node.drive()
    wait_until(lambda: over_seconds(running, BRIEF) >= INTERVAL)
    for wall, seconds in ((0, 3600), (3600, 3600), (0, 0), (0, 10), (0, 10), (0, 10), (0, 7 * 86400)):
        before, newest = over_seconds(running, GREEDY), newest_sample(running) - node.clock.seconds
        began = time.monotonic()
        node.clock.set(wall)
        node.clock.advance(seconds)
        first_after, seen = None, set[str]()
        while (passed := time.monotonic() - began) < 10 * INTERVAL or flags(running) != {GREEDY}:
            assert passed < _SOON, "the pod above its share has no flag again"
            if first_after is None and newest_sample(running) - wall > newest + INTERVAL / 10:
                first_after = passed
                node.gib[BRIEF] = 1  # above its share before and after the first jump, and not for the grace
                node.drive()
            seen |= flags(running)
            time.sleep(0.05)
        lasted, added = time.monotonic() - began, over_seconds(running, GREEDY) - before
        what = f"monotonic clock {seconds:+} s, wall clock at {wall:+} s"
        node.check(seen == {GREEDY}, f"{what}: flags of {seen}")
        node.check(running.get("/readyz")[0] == 200, f"{what}: not ready")
        node.check(
            first_after is not None and first_after < 2 * _MOST_BETWEEN,
            f"{what}: the next sample came after {first_after} s",
        )
        node.check(added <= lasted + _CHANCE, f"{what}: {added:.1f} s over the share in {lasted:.1f} s")


def suspension(node: Node, running: Agent) -> None:
    """Suspend the agent longer than time counts as observed; meanwhile, processes end and begin."""
    node.gib[BRIEF] = 2 * _SHARE
    node.drive()
    wait_until(lambda: over_seconds(running, BRIEF) >= INTERVAL)
    before, newest = over_seconds(running, GREEDY), newest_sample(running)
    seconds = longest_gap(INTERVAL) + 1
    running.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    node.gib[BRIEF] = 1
    node.pids[CALM], node.pids[GREEDY] = node.pids[GREEDY], node.pids[CALM]
    for name in (CALM, GREEDY):
        node.start_process(name, start=ticks_since_boot())
    node.drive()
    time.sleep(seconds)
    running.process.send_signal(signal.SIGCONT)
    seconds_until(lambda: newest_sample(running) > newest + seconds)
    for _ in range(20):
        node.check_flags(running, "after a suspension", {GREEDY})
        time.sleep(0.05)
    added, lasted = over_seconds(running, GREEDY) - before, time.monotonic() - began
    node.check(
        added <= lasted - seconds + _CHANCE,
        f"{added:.1f} s over the share, of which the agent saw {lasted - seconds:.1f} s",
    )
    node.check(used_gib(running, uid(node.numbers[CALM])) == 1, "a reused PID gives a pod another's memory")


def reuse_in_a_sample(node: Node, running: Agent) -> None:
    """Reuse PIDs after the driver has listed them, and before the agent looks them up.
    The other GPU hangs, so that the sample lasts until its deadline."""
    old = dict(node.pids)
    node.drive("delay 1 -")
    time.sleep(2.5 * INTERVAL + 1)  # the GPU that answers has been read, and the reading waits for the other
    del node.gib[GREEDY]
    node.pids[CALM] = old[GREEDY]
    node.start_process(CALM, start=ticks_since_boot())
    newest, amounts = newest_sample(running), set[float | None]()
    ends = time.monotonic() + 4
    while time.monotonic() < ends:
        amounts.add(used_gib(running, uid(node.numbers[CALM])))
        if newest_sample(running) > newest:
            node.drive()
        time.sleep(0.01)
    wait_until(lambda: used_gib(running, uid(node.numbers[CALM])) == 1)
    node.check(amounts <= {1.0, None, 0.0}, f"the pod calm was shown with {amounts} GiB")
    node.pids = {**old, GREEDY: 120}
    node.gib[GREEDY] = 9
    for name in (CALM, GREEDY):
        node.start_process(name, start=ticks_since_boot())
    node.drive()
    wait_until(lambda: flags(running) == {GREEDY})


def recreated_pod(node: Node, running: Agent) -> None:
    """Delete the pod above its share, and create it again under its name; the old process ends later."""
    node.numbers[GREEDY] = 11
    node.write_pods()
    wait_until(lambda: used_gib(running, uid(11)) == 0)
    for _ in range(20):
        node.check_flags(running, "the pod was created again", set())
        node.check(used_gib(running, uid(11)) == 0, "the new pod is shown with the memory of the old one")
        time.sleep(0.05)
    node.pids[GREEDY] = 130
    node.start_process(GREEDY, start=ticks_since_boot())
    node.drive()
    seconds = seconds_until(lambda: flags(running) == {GREEDY})
    node.check(seconds > GRACE / 4, f"the new pod was flagged after {seconds:.1f} s")


def restart(node: Node, running: Agent) -> None:
    """Kill the agent while a pod is above its share and another one has edited its annotation."""
    node.fraction = "0.5"
    node.write_pods()
    wait_until(lambda: "share-changed" in running.get("/metrics")[1])
    running.process.kill()
    running.process.wait()
    with node.agent("log-2") as second:
        wait_until(lambda: used_gib(second, uid(node.numbers[GREEDY])) == 9)
        node.check_flags(second, "after a restart", set())
        seen = time.monotonic()
        wait_until(lambda: flags(second) == {GREEDY})
        seconds = time.monotonic() - seen
        share = amount(second, "share", uid(node.numbers[EDITED]))
        node.check(seconds > GRACE / 4, f"flagged {seconds:.1f} s after the restart")
        node.check(
            share is not None and abs(share - 8) < 0.1,
            f"the edited annotation of a pod without KAI's record counts as {share} GiB",
        )


PARTS: Final = (
    wall_clock_jumps, monotonic_clock_jumps, suspension, reuse_in_a_sample, recreated_pod, restart,
)  # fmt: skip


def run(node: Node) -> None:
    with node.agent("log") as running:
        wait_until(lambda: flags(running) == {GREEDY})
        for part in PARTS:
            part(node, running)
