"""The agent of a cluster without GPUs, as a process, with pods placed as KAI's binder leaves them."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuagent.sampling.sampler import LONGEST_GAP
from kai.kaishare_keys import SIMULATE
from tests.cluster.test_agent import PROGRAM
from tests.support.administrator import Administrator
from tests.support.agent_process import ROOT, Agent, agent
from tests.support.control_plane import ControlPlane
from tests.support.gpu_node import INTERVAL, RIGHTS, until
from tests.support.kai_standin import Binder
from tests.support.kube_objects import GPU_0, GPU_1, NODE, fraction, node

MIB = 1 << 20
HALF = 11500 * MIB  # of an A10, as KAI counts it
USUAL = HALF * 80 // 100
PODS = "/api/v1/namespaces/research/pods"
A_GAP = LONGEST_GAP * INTERVAL + 1.0
"""The longest time between two samples, and what a busy machine takes to bring a change from the API server."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A control plane with a labelled node, and what KAI's binder does in it."""

    folder: Path
    plane: ControlPlane
    admin: Administrator
    binder: Binder

    @contextmanager
    def agent(self, token: str) -> Iterator[Agent]:
        self.plane.access(token)
        program = ("-c", PROGRAM, str(self.plane.account(token)), str(self.folder / "loaded"))
        options = f"--node {NODE} --gpus simulated --interval 200ms --grace 1s".split()
        with agent(
            self.folder / "log", *options, program=program, is_forked=True, **self.plane.environment
        ) as running:
            running.until(lambda: running.log_lines("pods listed"))
            yield running
            assert running.stop() == 0

    async def place(
        self, name: str, number: int = 1, *, gpu: str = GPU_0, share: str = "0.5", percent: str = ""
    ) -> None:
        """Place and start a pod, whose use the annotation sets."""
        annotations = {SIMULATE: percent} if percent else {}
        made = fraction(name, number, share=share, node=None, annotations=annotations)
        await self.binder.place(made, group="a" if gpu == GPU_0 else "b", gpu=gpu)
        await self.binder.start(name)


@pytest.fixture
async def cluster(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> Cluster:
    labels = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.product": "NVIDIA-A10"}
    await admin.create(node(**labels))
    return Cluster(folder=tmp_path, plane=plane, admin=admin, binder=Binder(admin, gpus=(GPU_0, GPU_1)))


def used(running: Agent) -> dict[tuple[str, str], int]:
    """Return the used bytes by pod and GPU."""
    return {
        (pod["name"], gpu["gpuUuid"]): gpu["usedBytes"]
        for pod in running.shares()["pods"]
        for gpu in pod["gpus"]
        if gpu["usedBytes"] is not None
    }


async def test_figures_follow_the_pods_within_an_interval_and_are_marked(cluster: Cluster) -> None:
    token = await cluster.admin.token("simulated", *RIGHTS)
    with cluster.agent(token) as running:
        await until(lambda: len(running.shares()["gpus"]) == 2, running)
        assert used(running) == {}
        await cluster.place("half")
        assert await until(lambda: used(running) == {("half", GPU_0): USUAL}, running) < A_GAP
        share = {"bytes": HALF, "source": "bind-request"}
        await until(lambda: running.shares()["pods"][0]["shares"] == {GPU_0: share}, running)
        await cluster.place("second", 2, share="0.25", gpu=GPU_1)
        both = {("half", GPU_0): USUAL, ("second", GPU_1): HALF // 2 * 80 // 100}
        assert await until(lambda: used(running) == both, running) < A_GAP
        await cluster.admin.merge(f"{PODS}/half", {"metadata": {"annotations": {SIMULATE: "40%"}}})
        assert await until(lambda: used(running)["half", GPU_0] == USUAL // 2, running) < A_GAP
        await cluster.admin.delete(f"{PODS}/half")
        assert await until(lambda: set(used(running)) == {("second", GPU_1)}, running) < A_GAP
        assert running.get("/readyz")[0] == 200
        shares = running.shares()
        assert (shares["simulated"], {gpu["uuid"] for gpu in shares["gpus"]}) == (True, {GPU_0, GPU_1})
        assert {gpu["model"] for gpu in shares["gpus"]} == {"Simulated NVIDIA-A10"}
        assert running.log_lines("serving")[0]["simulated"] is True
        (build,) = (name for name in running.series() if name.startswith("kaishare_build_info"))
        assert 'simulated="true"' in build
        assert 'driver="simulated"' in build
        command = [sys.executable, "-m", "console", "top", "--once", "--url", running.url]
        printed = await asyncio.to_thread(subprocess.check_output, command, cwd=ROOT, text=True)
        assert "simulated: these figures are synthetic" in printed
