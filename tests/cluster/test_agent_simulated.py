"""The agent of a cluster without GPUs, as a process, with pods placed as KAI's binder leaves them."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuagent.sampling.sampler import LONGEST_GAP
from kai.kaishare_keys import OVER_SHARE, SIMULATE
from tests.cluster.test_agent import PROGRAM
from tests.support.administrator import Administrator
from tests.support.agent_process import ROOT, Agent, agent
from tests.support.control_plane import ControlPlane
from tests.support.gpu_node import GRACE, INTERVAL, RIGHTS, counted, until
from tests.support.kai_standin import Binder
from tests.support.kube_objects import GPU_0, GPU_1, NODE, fraction, node, pod
from tests.support.nvml_stub.build import built_library

Done = subprocess.CompletedProcess[str]
MIB = 1 << 20
TOTAL = 23028 * MIB
HALF = 11500 * MIB  # of an A10, as KAI counts it
USUAL = HALF * 80 // 100
MARK = "simulated: these figures are synthetic"
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
    def agent(self, token: str, *options: str, is_forked: bool = True, **environment: str) -> Iterator[Agent]:
        with agent(
            self.folder / "log",
            *f"--node {NODE} --gpus simulated --interval 200ms --grace 1s".split(),
            *options,
            program=self.program(token),
            is_forked=is_forked,
            **self.environment(),
            **environment,
        ) as running:
            running.until(lambda: running.log_lines("pods listed"))
            yield running
            if running.process.poll() is None:
                assert running.stop() == 0
        if not is_forked:  # a forked program may end before its threads, and without Python's own end
            assert not list((self.folder / "tmp").iterdir())

    def run(self, token: str, *arguments: str, prelude: str = "", **environment: str) -> Done:
        """Run a command of the agent to its end, after a prelude in Python."""
        option, code, *rest = self.program(token)
        return subprocess.run(
            [sys.executable, option, prelude + code, *rest, *arguments],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, **self.environment(), **environment},
        )  # fmt: skip

    def program(self, token: str) -> tuple[str, ...]:
        self.plane.access(token)
        return ("-c", PROGRAM, str(self.plane.account(token)), str(self.folder / "loaded"))

    def environment(self) -> dict[str, str]:
        (self.folder / "tmp").mkdir(exist_ok=True)
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.plane.port),
            "TMPDIR": str(self.folder / "tmp"),
        }

    async def run_half(self, **more: Any) -> str:
        """Place and start the pod `half` on the first GPU; return its UID."""
        stored = await self.binder.place(fraction("half", node=None, **more), group="a", gpu=GPU_0)
        await self.binder.start("half")
        return str(stored["metadata"]["uid"])

    async def annotate(self, name: str, percent: str | None) -> None:
        path = f"/api/v1/namespaces/research/pods/{name}"
        await self.admin.merge(path, {"metadata": {"annotations": {SIMULATE: percent}}})

    async def messages(self, uid: str) -> dict[str, str]:
        """Return the messages of a pod's Events by reason."""
        selector = {"fieldSelector": f"involvedObject.uid={uid}"}
        answer = await self.admin.client.get("/api/v1/namespaces/research/events", params=selector)
        return {event["reason"]: event["message"] for event in json.loads(answer)["items"]}


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


def flags(running: Agent, pod_name: str) -> dict[str, float]:
    return {
        name.partition('reason="')[2].partition('"')[0]: value
        for name, value in running.series().items()
        if name.startswith("kaishare_pod_flagged") and f'pod="{pod_name}"' in name
    }


async def test_figures_follow_the_pods_within_an_interval(cluster: Cluster) -> None:
    token = await cluster.admin.token("simulated", *RIGHTS)
    with cluster.agent(token) as running:
        await until(lambda: len(running.shares()["gpus"]) == 2, running)
        assert used(running) == {}
        await cluster.run_half()
        assert await until(lambda: used(running) == {("half", GPU_0): USUAL}, running) < A_GAP
        share = {"bytes": HALF, "source": "bind-request"}
        await until(lambda: running.shares()["pods"][0]["shares"] == {GPU_0: share}, running)
        await cluster.binder.place(fraction("second", 2, share="0.25", node=None), group="b", gpu=GPU_1)
        await cluster.binder.start("second")
        both = {("half", GPU_0): USUAL, ("second", GPU_1): HALF // 2 * 80 // 100}
        assert await until(lambda: used(running) == both, running) < A_GAP
        await cluster.annotate("half", "40%")
        assert await until(lambda: used(running)["half", GPU_0] == USUAL // 2, running) < A_GAP
        await cluster.admin.delete("/api/v1/namespaces/research/pods/half")
        assert await until(lambda: set(used(running)) == {("second", GPU_1)}, running) < A_GAP
        assert running.get("/readyz")[0] == 200
        assert {gpu["uuid"] for gpu in running.shares()["gpus"]} == {GPU_0, GPU_1}


async def test_a_whole_gpu_is_found_by_its_process(cluster: Cluster) -> None:
    token = await cluster.admin.token("simulated-whole", *RIGHTS)
    await cluster.run_half()
    whole = pod("whole", 2, gpus="1")
    whole["spec"]["schedulerName"] = "kai-scheduler"
    await cluster.admin.create(whole)
    with cluster.agent(token, is_forked=False) as running:
        await until(lambda: len(used(running)) == 2, running)
        (other,) = (gpu["uuid"] for gpu in running.shares()["gpus"] if gpu["uuid"] != GPU_0)
        assert used(running) == {("half", GPU_0): USUAL, ("whole", other): TOTAL * 80 // 100}
        shares = {each["name"]: each["shares"] for each in running.shares()["pods"]}
        assert shares["whole"] == {other: {"bytes": TOTAL, "source": "whole-gpu"}}


async def test_pods_that_come_and_go_all_the_time_break_no_sample(cluster: Cluster) -> None:
    token = await cluster.admin.token("simulated-churn", *RIGHTS)
    await cluster.run_half()
    path = "/api/v1/namespaces/research/pods/"
    with cluster.agent(token, "--interval", "100ms") as running:
        await until(lambda: used(running), running)
        for number in range(2, 32):
            await cluster.admin.create(fraction(f"p{number}", number, "0.05", group="a"))
            if number > 6:
                await cluster.admin.delete(f"{path}p{number - 5}")
        left = {f"p{number}" for number in range(27, 32)} | {"half"}
        await until(lambda: {name for name, _ in used(running)} == left, running)
        assert used(running)["half", GPU_0] == USUAL
        assert not running.log_lines("sample failed")
        assert not running.log_lines("pod flagged")
        host = {gpu["uuid"]: gpu["hostBytes"] for gpu in running.shares()["gpus"]}
        assert host[GPU_0] == 0


async def test_a_pod_above_its_share_is_flagged_and_the_flag_clears(cluster: Cluster) -> None:
    token = await cluster.admin.token("simulated-flags", *RIGHTS)
    uid = await cluster.run_half()
    with cluster.agent(token) as running:
        await until(lambda: flags(running, "half").get("over-share") == 0, running)
        await cluster.annotate("half", "150%")
        took = await until(lambda: flags(running, "half").get("over-share") == 1, running)
        assert took >= GRACE / 5, "a sample counts one interval, and follows after at least a fifth of it"
        await until(lambda: cluster.messages(uid), running)
        await cluster.annotate("half", None)
        await until(lambda: flags(running, "half").get("over-share") == 0, running)

        async def both() -> bool:
            return set(await cluster.messages(uid)) == {"GPUMemoryOverShare", "GPUMemoryWithinShare"}

        await until(both, running)
        for message in (await cluster.messages(uid)).values():
            assert message.startswith("simulated: uses ")
        assert sum(counted(running, "events").values()) == 2


async def test_every_output_is_marked(cluster: Cluster) -> None:
    token = await cluster.admin.token("simulated-marks", *RIGHTS)
    await cluster.run_half()
    with cluster.agent(token) as running:
        await until(lambda: used(running), running)
        assert running.shares()["simulated"] is True
        assert {gpu["model"] for gpu in running.shares()["gpus"]} == {"Simulated NVIDIA-A10"}
        assert running.log_lines("serving")[0]["simulated"] is True
        (build,) = (name for name in running.series() if name.startswith("kaishare_build_info"))
        assert 'simulated="true"' in build
        assert 'driver="simulated"' in build
        command = [sys.executable, "-m", "console", "top", "--once", "--url", running.url]
        assert MARK in await asyncio.to_thread(subprocess.check_output, command, cwd=ROOT, text=True)
        assert 'model="Simulated NVIDIA-A10"' in running.get("/metrics")[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--eviction on",
            "--eviction=on is refused with --gpus simulated: its figures are synthetic",
        ),
        ("--proc-root /proc", "--proc-root cannot be combined with --gpus simulated"),
    ],
)
async def test_the_agent_refuses_what_synthetic_figures_must_not_do(
    cluster: Cluster, options: str, message: str
) -> None:
    token = await cluster.admin.token("simulated-refused", *RIGHTS)
    done = cluster.run(token, "serve", *f"--node {NODE} --gpus simulated".split(), *options.split())
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


async def test_where_nvidias_library_loads_the_agent_refuses_to_simulate(cluster: Cluster) -> None:
    token = await cluster.admin.token("simulated-driver", *RIGHTS)
    library = built_library(cluster.folder)
    options = f"--node {NODE} --gpus simulated".split()
    done = cluster.run(token, "serve", *options, LD_LIBRARY_PATH=str(library.parent))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    refused = "--gpus simulated is refused on a node with an NVIDIA driver: libnvidia-ml.so.1 loads"
    assert line == f"kaishare-agent: {refused}"


async def test_without_a_writable_folder_the_agent_says_so_in_one_line(cluster: Cluster) -> None:
    token = await cluster.admin.token("simulated-folder", *RIGHTS)
    options = f"--node {NODE} --gpus simulated".split()
    # Python falls back to the current folder, which is writable here but not in a container.
    prelude = "import tempfile; tempfile._candidate_tempdir_list = list\n"
    done = cluster.run(token, "serve", *options, prelude=prelude)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--gpus simulated needs a writable temporary folder ($TMPDIR): " in line


async def test_a_dry_run_evicts_no_pod(cluster: Cluster) -> None:
    labels = {OVER_SHARE: "evict", "kai.scheduler/queue": "team-a"}
    await cluster.admin.merge("/api/v1/namespaces/research", {"metadata": {"labels": labels}})
    token = await cluster.admin.token("simulated-dry-run", *RIGHTS)
    try:
        uid = await cluster.run_half(annotations={SIMULATE: "150%"})
        with cluster.agent(token, "--eviction", "dry-run") as running:
            await until(lambda: flags(running, "half").get("over-share") == 1, running)
            await until(lambda: counted(running, "evictions"), running)
            await asyncio.sleep(2 * INTERVAL)
            assert "GPUShareEvicted" not in await cluster.messages(uid)
            stored = await cluster.admin.read("/api/v1/namespaces/research/pods/half")
            assert "deletionTimestamp" not in stored["metadata"]
    finally:
        removed: dict[str, Any] = dict.fromkeys(labels)
        await cluster.admin.merge("/api/v1/namespaces/research", {"metadata": {"labels": removed}})


async def test_without_the_right_to_read_its_node_the_agent_goes_on(cluster: Cluster) -> None:
    token = await cluster.admin.token("simulated-blind", *RIGHTS[:2], RIGHTS[-1])
    with cluster.agent(token) as running:
        await until(lambda: "the Node is not readable" in str(running.shares()["problems"]), running)
        await cluster.run_half()
        share = 16300 * MIB // 2  # of a GPU of the usual 16 GiB, as KAI counts
        assert await until(lambda: used(running) == {("half", GPU_0): share * 80 // 100}, running) < A_GAP
        assert running.get("/readyz")[0] == 200
        denied = [line["resource"] for line in running.log_lines("resource unavailable")]
        assert "nodes" in denied


async def test_on_a_node_without_gpus_the_agent_is_ready_and_shows_none(cluster: Cluster) -> None:
    token = await cluster.admin.token("simulated-none", *RIGHTS)
    bare = {"nvidia.com/gpu.count": None, "nvidia.com/gpu.memory": None}
    await cluster.admin.merge(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": bare}})
    await cluster.admin.create(pod("plain", 2))
    with cluster.agent(token) as running:
        await until(lambda: running.shares()["attributionOk"], running)
        shares = running.shares()
        assert (shares["gpus"], shares["problems"], shares["simulated"]) == ([], [], True)


async def test_hostile_pods_cost_no_figure_of_others(cluster: Cluster) -> None:
    token = await cluster.admin.token("simulated-hostile", *RIGHTS)
    await cluster.run_half()
    hostile = [
        pod("unplaced", 2, annotations={SIMULATE: "1000%", "gpu-fraction": "0.9"}),
        fraction("lost-group", 3, group="no-such-group", annotations={SIMULATE: "1000%"}),
        fraction("forged-group", 4, share="0.9", group="a", annotations={SIMULATE: "1000%"}),
    ]
    for document in hostile:
        await cluster.admin.create(document)
    for number, (name, value) in enumerate({"huge": "9" * 100_000 + "%", "odd": "\n0::/kubepods"}.items(), 5):
        tried = fraction(name, number, share="0.1", node=None, annotations={SIMULATE: value})
        hostile.append(await cluster.binder.place(tried, group="a", gpu=GPU_0))
        await cluster.binder.start(name)
    with cluster.agent(token) as running:
        tenth = 2300 * MIB * 80 // 100  # an annotation that is no percentage does not count
        expected = {"half": USUAL, "huge": tenth, "odd": tenth}
        # The pods without a BindRequest use nothing once a list has confirmed that they have none.
        await until(
            lambda: used(running) == {(name, GPU_0): amount for name, amount in expected.items()}, running
        )
        (line,) = running.log_lines("ignoring invalid annotation")
        assert line["pod"] == "research/odd"
        path = "/api/v1/namespaces/research/pods/"
        for document in hostile:
            await cluster.admin.delete(path + document["metadata"]["name"])
        await until(lambda: set(used(running)) == {("half", GPU_0)}, running)
        assert not running.log_lines("sample failed")
