"""An hour of bad luck on one node: what was true, what was shown, and which alerts fired, minute by minute.

The real agent runs as a process on the tests' stand-in for the driver (needs gcc) and a /proc of its own, its
pods are on a real API server, and a real Prometheus scrapes it with the rules of deploy/mixin. The agent is
killed at random moments, the driver is replaced, a GPU is lost and comes back, the API server is away for ten
minutes, the agent's clock jumps, two agents run on the node, a pod is deleted by force while its process
lives, and the node gets another name. That no pod preempts the agent is shown on a real scheduler by
tests/cluster/test_agent_priority.py.

It exits with 1 if an alert that a true cause must raise was silent 15 minutes after the cause began, if an
alert fired without a cause, or if the agent showed a pod, an amount of memory, a flag or a lost GPU that was
not there, or did not show one that was.

A minute may be shorter (`--minute 2s`): all durations of the rules shrink with it, the agent's own do not. So
rules about what the agent notices after minutes are left out then.

Needs KUBEBUILDER_ASSETS (a folder with etcd and kube-apiserver) and prometheus. Run: `python -m
benchmarks.night`.
"""

import argparse
import asyncio
import contextlib
import math
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.plane import on_a_control_plane
from kube.client import KubeClient
from service.units import parse_duration
from tests.support.administrator import Administrator
from tests.support.agent_process import Agent
from tests.support.control_plane import ControlPlane
from tests.support.free_ports import free_port
from tests.support.gpu_node import MIB, RIGHTS, TOTAL, GpuNode
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    GROUP_0,
    GROUP_1,
    NODE,
    bind_request,
    fraction,
    node,
    reservation,
)
from tests.support.moved_clocks import MovedClocks
from tests.support.proc_files import ProcTree, in_pod
from tests.support.prometheus_server import Prometheus, page, prometheus
from tests.support.promtool import default_rules
from tests.support.waiting import until

HELD_MIB: Final = {"greedy": 9000, "calm": 1000, "ghost": 4000}
"""Memory of each pod's process. `greedy` holds more than its quarter of GPU 0, `ghost` is deleted."""
PLACES: Final = {"greedy": (GROUP_0, "0.25"), "calm": (GROUP_1, "0.5"), "ghost": (GROUP_0, "0.25")}
PODS: Final = "/api/v1/namespaces/research/pods"
BIND_REQUESTS: Final = "/apis/scheduling.run.ai/v1alpha2/namespaces/research/bindrequests"
OTHER_NAME: Final = "gpu-node-renamed"
REAL_MINUTE: Final = 60.0
NOTICED: Final = 15
"""Minutes within which an alert must fire."""
ENDED: Final = 61
"""Minutes within which an alert must end after its cause."""
BACKOFF, START = 60.0, 20.0
"""Seconds in which the agent opens a failed GPU again, and in which it starts on a busy machine."""
SLOW_GROUP: Final = "kaishare-watches"
"""Its rules are about what the agent notices after minutes of its own."""
GROUPS: Final = frozenset(
    {"kaishare-gpu-figures", "kaishare-nodes", "kaishare-pods", "kaishare-gpus", "kaishare-agent"}
)
_DURATION: Final = re.compile(r"(?<=[\[:\s])(\d+)([smhd])(?=[\]:)\s]|$)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Something that is true for some minutes."""

    name: str
    first: int
    last: int
    """The first minute in which it is true no more."""
    must: frozenset[str] = frozenset()
    """Alerts that it must raise."""
    may: frozenset[str] = frozenset()
    """Alerts that it may raise."""

    def lasts(self, number: int, longer: int = 0) -> bool:
        """Whether it is true in a minute, or was some minutes before."""
        return self.first <= number < self.last + longer


AWAY: Final = frozenset(
    {"KaishareAgentDown", "KaishareAgentBlind", "KaishareAgentRestarts", "KaishareNodeUnwatched"}
)
BLIND: Final = frozenset({"KaishareAgentBlind", "KaishareWatchStale"})
OVER = Cause(name="a pod above its share", first=2, last=57, must=frozenset({"KaisharePodOverShare"}))
GHOST = Cause(
    name="memory of a deleted pod", first=5, last=60, must=frozenset({"KaishareGPUMemoryOutsidePods"})
)
KILLED = Cause(
    name="the agent is killed", first=6, last=13, must=frozenset({"KaishareAgentRestarts"}), may=AWAY
)
LOST = Cause(name="GPU 1 is lost", first=15, last=31, must=frozenset({"KaishareAgentPartlyBlind"}), may=BLIND)
REPLACED = Cause(name="the driver is replaced", first=32, last=34, may=AWAY | {"KaishareAgentPartlyBlind"})
# An agent that starts lists its pods first: the API server goes when the next agent is there for sure.
NO_SERVER = Cause(name="no API server", first=44, last=54, may=BLIND)
JUMP = Cause(name="the clock jumps", first=54, last=55)
TWO = Cause(name="two agents", first=54, last=57, may=AWAY)
RENAMED = Cause(name="the node has another name", first=57, last=60, may=AWAY)
CAUSES: Final = (OVER, GHOST, KILLED, LOST, REPLACED, NO_SERVER, JUMP, TWO, RENAMED)
HOUR: Final = 60


@dataclass(kw_only=True)
class Minute:
    """What was true and what was shown at the end of a minute."""

    number: int
    true: list[str]
    shown: list[str] = field(default_factory=list)
    fired: list[str] = field(default_factory=list)


def judge(minutes: list[Minute], causes: tuple[Cause, ...] = CAUSES) -> list[str]:
    """Return where an alert was silent about a cause, or fired without one."""
    wrong = []
    for cause in causes:
        for minute in minutes:
            silent = cause.must - {*minute.fired}
            if cause.lasts(minute.number) and minute.number >= cause.first + NOTICED and silent:
                wrong.append(f"minute {minute.number}: {cause.name}, and {sorted(silent)} did not fire")
        fired = {name for each in minutes if each.number >= cause.first for name in each.fired}
        if minutes and minutes[-1].number >= cause.first + NOTICED:
            wrong += [f"{cause.name}: {name} never fired" for name in sorted(cause.must - fired)]
    for minute in minutes:
        grounds = [cause for cause in causes if cause.lasts(minute.number, ENDED)]
        allowed = {name for cause in grounds for name in cause.must | cause.may}
        wrong += [
            f"minute {minute.number}: {name} without a cause" for name in sorted({*minute.fired} - allowed)
        ]
    return wrong


def scaled_rules(minute: float) -> dict[str, Any]:
    """Return the rules of the node with every duration in minutes of this length."""

    def shorter(match: re.Match[str]) -> str:
        return f"{max(int(int(match[1]) * _SECONDS[match[2]] * 1000 * minute / REAL_MINUTE), 1)}ms"

    names = {*GROUPS, SLOW_GROUP} if minute == REAL_MINUTE else GROUPS
    groups = [group for group in default_rules()["groups"] if group["name"] in names]
    for group in groups:
        group["interval"] = f"{int(minute * 1000)}ms"
        for rule in group["rules"]:
            rule["expr"] = _DURATION.sub(shorter, rule["expr"])
            rule.update(
                {key: _DURATION.sub(shorter, f" {rule[key]}").strip() for key in ("for",) if key in rule}
            )
    return {"groups": groups}


class Kubelet(threading.Thread):
    """Runs the agent of the node, and starts it again when it has ended."""

    def __init__(self, start: Callable[[], contextlib.AbstractContextManager[Agent]], pause: float) -> None:
        super().__init__(daemon=True)
        self._start_agent, self._pause = start, pause
        self.agent: Agent | None = None
        self.is_over = threading.Event()
        self.failures: list[str] = []

    def run(self) -> None:
        """Run the agent until the night is over."""
        while not self.is_over.is_set():
            try:
                with self._start_agent() as agent:
                    self.agent = agent
                    while agent.process.poll() is None and not self.is_over.is_set():
                        time.sleep(0.05)
            except AssertionError as error:
                self.failures.append(str(error)[-500:])
            self.agent = None
            self.is_over.wait(self._pause)

    def end_agent(self) -> None:
        """Kill the agent, as the node does when memory is short."""
        if self.agent is not None:
            self.agent.process.kill()

    def stop(self) -> None:
        """End the agent for good."""
        self.is_over.set()
        self.join(60)


@dataclass(kw_only=True)
class Night:
    """The node, its pods, and what happens to them."""

    minute: float
    plane: ControlPlane
    admin: Administrator
    folder: Path
    token: str
    clock: MovedClocks
    chance: random.Random
    is_lost: bool = False
    is_replaced: bool = False
    """Whether the driver is of another release than its library (NVML_ERROR_LIB_RM_VERSION_MISMATCH)."""
    name: str = NODE
    ports: list[int] = field(default_factory=lambda: [free_port(), free_port()])
    wrong: list[str] = field(default_factory=list)
    minutes: list[Minute] = field(default_factory=list)
    gpu_nodes: list[GpuNode] = field(default_factory=list)
    """The node as each of its two agents sees it: with a log of its own."""

    def __post_init__(self) -> None:
        for number in range(2):
            folder = self.folder / f"agent-{number}"
            folder.mkdir()
            if number:
                (folder / "proc").symlink_to(self.gpu_nodes[0].folder / "proc")
            self.gpu_nodes.append(GpuNode(folder=folder, plane=self.plane, admin=self.admin))
        answers = self.gpu_nodes[1].folder / "answers"
        answers.unlink()
        answers.symlink_to(self.gpu_nodes[0].folder / "answers")

    def write_driver(self) -> None:
        """Write what the driver answers."""
        unused = "4294967295 4294967295"
        used = {0: HELD_MIB["greedy"] + HELD_MIB["ghost"], 1: HELD_MIB["calm"]}
        lines = ["driver 580.65.06"]
        for index, uuid in enumerate((GPU_0, GPU_1)):
            lines.append(f"gpu {index} {uuid} {TOTAL} {500 * MIB} {used[index] * MIB} NVIDIA A10")
        for number, (name, mib) in enumerate(HELD_MIB.items()):
            lines.append(f"process {int(name == 'calm')} - 0 {101 + number} {mib * MIB} {unused}")
        lines += ["fail * 1 15"] * self.is_lost + ["fail * - 18"] * self.is_replaced
        making = self.gpu_nodes[0].folder / "answers.making"
        making.write_text("".join(f"{line}\n" for line in lines))
        making.replace(self.gpu_nodes[0].folder / "answers")

    async def prepare(self) -> None:
        """Create the node and its pods, each with the records that KAI leaves."""
        await self.admin.create(node())
        await self.admin.create(reservation())
        await self.admin.create(reservation(GROUP_1, GPU_1, 901))
        tree = ProcTree(self.gpu_nodes[0].folder / "proc")
        for number, (name, (group, share)) in enumerate(PLACES.items()):
            made = await self.admin.create(fraction(name, number + 1, share, group))
            uid = str(made["metadata"]["uid"])
            request = bind_request(name, portion=share, groups=(group,))
            request["metadata"]["ownerReferences"][0]["uid"] = uid
            await self.admin.post(BIND_REQUESTS, request)
            tree.add(101 + number, in_pod(uid, f"{101 + number:064x}"))
        self.write_driver()

    def started(self, number: int) -> contextlib.AbstractContextManager[Agent]:
        """Run an agent of the node, the first or the second."""
        options = f"--node {self.name} --interval 200ms --grace 1s --listen 127.0.0.1:{self.ports[number]}"
        environment: dict[str, Any] = {"is_forked": False, **self.clock.environment}
        return self.gpu_nodes[number].agent(self.token, *options.split(), **environment)

    def scrape(self, count: int) -> None:
        """Let Prometheus scrape this number of agents."""
        targets = [f"127.0.0.1:{port}" for port in self.ports[:count]]
        making = self.folder / "targets.making"
        making.write_text(yaml.safe_dump([{"targets": targets}]))
        making.replace(self.folder / "targets.yaml")

    def state_metrics(self, _: int) -> str:
        """Return kube-state-metrics' page."""
        daemon_set = 'namespace="kaishare-agent",daemonset="kaishare-agent"'
        return (
            f'kube_node_info{{node="{self.name}"}} 1\n'
            f'kube_node_status_capacity{{node="{self.name}",resource="nvidia_com_gpu"}} 2\n'
            f"kube_daemonset_status_desired_number_scheduled{{{daemon_set}}} 1\n"
        )

    async def act(self, number: int, kubelet: Kubelet, second: Kubelet) -> None:
        """Let happen what begins or ends with a minute."""
        if number == GHOST.first:
            await self.admin.delete(f"{PODS}/ghost")
        if number in (LOST.first, LOST.last):
            self.is_lost = not self.is_lost
        if number in (REPLACED.first, REPLACED.last):
            self.is_replaced = not self.is_replaced
        self.write_driver()
        if number == NO_SERVER.first:
            await asyncio.to_thread(self.plane.kill)
        if number == NO_SERVER.last:
            await asyncio.to_thread(self.plane.start)
        if number in (JUMP.first, JUMP.last):
            self.clock.set(3600 if number == JUMP.first else 0)
        if KILLED.lasts(number) and number % 2 == 0:
            await asyncio.sleep(self.chance.uniform(0, self.minute / 2))
            kubelet.end_agent()
        if number == TWO.first:
            second.start()
            self.scrape(2)
        if number == TWO.last:
            self.scrape(1)
            await asyncio.to_thread(second.stop)
        if number == RENAMED.first:
            renamed = node()
            renamed["metadata"]["name"] = self.name = OTHER_NAME
            await self.admin.post("/api/v1/nodes", renamed)
            for name in ("greedy", "calm"):
                await self.admin.delete(f"{PODS}/{name}")
            kubelet.end_agent()

    def pods_at(self, number: int) -> dict[str, int]:
        """Return the memory of the pods that the API server has in a minute, by name."""
        until_minute = {"ghost": GHOST.first}
        return {name: mib for name, mib in HELD_MIB.items() if number < until_minute.get(name, RENAMED.first)}

    def look(self, number: int, kubelet: Kubelet, server: Prometheus) -> None:
        """Note a minute."""
        minute = Minute(number=number, true=[cause.name for cause in CAUSES if cause.lasts(number)])
        self.compare(minute, kubelet)
        alerts = server.get("alerts")["alerts"]
        fired = [each["labels"]["alertname"] for each in alerts if each["state"] == "firing"]
        minute.fired = sorted(set(fired))
        if fired.count("KaisharePodOverShare") > 1:
            self.wrong.append(f"minute {number}: one pod raised {fired.count('KaisharePodOverShare')} alerts")
        self.minutes.append(minute)

    def compare(self, minute: Minute, kubelet: Kubelet) -> None:
        """Compare the agent's answer with the truth; a change may show a minute later."""
        number, wrong = minute.number, []
        back_off, start = (math.ceil(seconds / self.minute) for seconds in (BACKOFF, START))
        is_away = any(cause.may >= AWAY and cause.lasts(number, start) for cause in CAUSES)
        agent, shares = kubelet.agent, None
        with contextlib.suppress(OSError):
            shares = agent.shares() if agent is not None else None
        if shares is None or shares.get("attributionOk") is None:
            minute.shown.append("no agent")
            self.wrong += [f"minute {number}: no agent"] * (not is_away)
            return
        before, now = self.pods_at(number - 1), self.pods_at(number)
        for pod in shares["pods"]:
            name = pod["name"]
            held = [gpu["usedBytes"] // MIB for gpu in pod["gpus"] if gpu.get("usedBytes")]
            flags = [each["reason"] for each in pod["verdicts"] if each["flagged"]]
            minute.shown.append(f"{name} {sum(held)} MiB{''.join(f' {flag}' for flag in flags)}")
            if held and held != [(before | now).get(name)]:
                wrong.append(f"{name} holds {held} MiB, and {before | now} is true")
            if flags and (name, flags) != ("greedy", ["over-share"]):
                wrong.append(f"{name} is flagged {flags}")
        silent = (before.keys() & now.keys()) - {pod["name"] for pod in shares["pods"]}
        wrong += [f"{name} is not shown" for name in silent if not is_away]
        lost = [gpu["index"] for gpu in shares["lostGpus"]]
        minute.shown += [f"GPU {index} lost" for index in lost]
        is_unsure = number == LOST.first or LOST.last <= number < LOST.last + back_off
        if bool(lost) is not self.is_lost and not is_unsure and not REPLACED.lasts(number, start):
            wrong.append(f"lost GPUs are {lost}")
        self.wrong += [f"minute {number}: {each}" for each in wrong]

    async def run(self) -> None:
        """Let the hour pass, from the agent's first answer on."""
        kubelet = Kubelet(lambda: self.started(0), self.minute / 4)
        second = Kubelet(lambda: self.started(1), self.minute / 4)
        self.scrape(1)
        kubelet.start()
        try:
            await until(lambda: kubelet.agent, lambda: kubelet.failures, 90)
            with page(self.state_metrics) as state_metrics, self.prometheus(state_metrics) as server:
                began = time.monotonic()
                for number in range(1, HOUR + 1):
                    await self.act(number, kubelet, second)
                    await asyncio.sleep(max(began + number * self.minute - time.monotonic(), 0))
                    await asyncio.to_thread(self.look, number, kubelet, server)
        finally:
            kubelet.stop()
            second.is_over.set()
        self.wrong += judge(self.minutes)

    def prometheus(self, state_metrics: str) -> contextlib.AbstractContextManager[Prometheus]:
        """Run a Prometheus with the rules, whose minutes are as long as the night's."""
        agents = {
            "job_name": "kaishare-agent",
            "honor_labels": True,
            "file_sd_configs": [{"files": [f"{self.folder}/targets.yaml"], "refresh_interval": "1s"}],
        }
        return prometheus(
            self.folder,
            {"kube-state-metrics": state_metrics},
            agents,
            lookback=f"{int(5 * self.minute * 1000)}ms",
            interval=f"{int(self.minute * 500)}ms",
            rules=scaled_rules(self.minute),
        )


async def night(plane: ControlPlane, folder: Path, minute: float, seed: int) -> Night:
    """Run; return what happened."""
    async with KubeClient(plane.access()) as client:
        admin = Administrator(client)
        await admin.prepare()
        run = Night(
            minute=minute,
            plane=plane,
            admin=admin,
            folder=folder,
            token=await admin.token("night-agent", *RIGHTS),
            clock=MovedClocks(folder),
            chance=random.Random(seed),
        )
        try:
            await run.prepare()
            await run.run()
        finally:
            await admin.clean_up()
    return run


async def measure(plane: ControlPlane, folder: Path, minute: float, seed: int) -> int:
    """Run, print the report, and return the exit status."""
    run = await night(plane, folder, minute, seed)
    print(f"an hour of minutes of {minute:g} s, seed {seed}")
    for each in run.minutes:
        print(f"{each.number:2} true: {'; '.join(each.true) or '-'}")
        print(f"   shown: {'; '.join(each.shown) or '-'}")
        print(f"   alerts: {', '.join(each.fired) or '-'}")
    print("\n".join(run.wrong))
    print("nothing true was silent, nothing untrue was shown" if not run.wrong else "WRONG")
    return int(bool(run.wrong))


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.night",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    text = "length of a minute (default %(default)s)"
    parser.add_argument("--minute", type=parse_duration, default="60s", metavar="DURATION", help=text)
    parser.add_argument("--seed", type=int, default=1, help="seed of the run (default %(default)s)")
    options = parser.parse_args()
    on_a_control_plane(parser, lambda plane, folder: measure(plane, folder, options.minute, options.seed))


if __name__ == "__main__":
    main()
