"""A complete agent in a cluster over the simulated driver: its node, and its effects."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kai.kaishare_keys import MODE, OVER_SHARE
from tests.support.administrator import Administrator, right
from tests.support.agent_process import Agent, agent
from tests.support.control_plane import ControlPlane
from tests.support.credentials import in_cluster_environment
from tests.support.hostile_api_server import HostileApiServer
from tests.support.kube_objects import GPU_0, GROUP_0, NODE, fraction, reservation
from tests.support.nvml_stub.build import ANSWERS, built_library
from tests.support.proc_files import ProcTree, in_pod
from tests.support.waiting import seconds_until

MIB = 1 << 20
TOTAL = 23028 * MIB
INTERVAL, GRACE = 0.2, 1.0
RIGHTS = (
    right("pods", "list", "watch"), right("bindrequests", "list", "watch", group="scheduling.run.ai"),
    right("nodes", "get"), right("namespaces", "get"), right("events", "create", "patch"),
)  # fmt: skip
EVICT = (right("pods/eviction", "create"), right("pods", "get"), right("events", "list"))
# As in a pod, but for the folder where the kubelet would mount the credentials, and the driver's stand-in.
_PROGRAM = """
import ctypes, sys
from pathlib import Path
import pynvml
from kube.access import InCluster
folder, library = Path(sys.argv.pop(1)), sys.argv.pop(1)
InCluster.__init__.__kwdefaults__["folder"] = folder
pynvml.nvmlLib = ctypes.CDLL(library)
from gpuagent.cli import main
sys.exit(main(sys.argv[1:]))
"""
AGENT_NAMESPACE = "team-a"
"""Namespace of the agent's service account, from `Administrator.token`."""


@dataclass(frozen=True, kw_only=True)
class GpuNode:
    folder: Path
    plane: ControlPlane | HostileApiServer
    admin: Administrator
    total_bytes: int = TOTAL
    pids: dict[str, int] = field(default_factory=dict)
    """PID of the process of each pod, by UID."""

    def __post_init__(self) -> None:
        ProcTree(self.folder / "proc").add(2, "0::/", name="kthreadd")
        self.hold({})

    def hold(self, used_mib: dict[str, int]) -> None:
        """Let one process of each pod, by UID, use an amount of memory in MiB."""
        tree = ProcTree(self.folder / "proc")
        lines = [
            "driver 580.65.06",
            f"gpu 0 {GPU_0} {self.total_bytes} {500 * MIB} {sum(used_mib.values()) * MIB} NVIDIA A10",
        ]
        for uid, mib in used_mib.items():
            number = self.pids.setdefault(uid, 101 + len(self.pids))
            tree.add(number, in_pod(uid, f"{number:064x}"))
            lines.append(f"process 0 - 0 {number} {mib * MIB} 4294967295 4294967295")
        making = self.folder / "answers.making"
        making.write_text("".join(f"{line}\n" for line in lines))
        making.replace(self.folder / "answers")

    async def pod(self, name: str = "half", **fields: Any) -> str:
        """Create a running pod with half of the GPU, as KAI leaves it; return its UID."""
        made = await self.admin.create(fraction(name, **{"group": GROUP_0, **fields}))
        return str(made["metadata"]["uid"])

    @contextmanager
    def agent(
        self,
        token: str,
        *options: str,
        port: int | None = None,
        prelude: str = "",
        is_forked: bool = True,
        **more: str,
    ) -> Iterator[Agent]:
        """Run an agent in a process of its own, by default with a grace of 1 s and five samples a second."""
        self.plane.access(token)
        (self.plane.account(token) / "namespace").write_text(AGENT_NAMESPACE)
        environment = {
            ANSWERS: str(self.folder / "answers"),
            **(in_cluster_environment(port) if port else self.plane.environment),
            **more,
        }
        library = built_library(self.folder.parent)  # one for all tests of the session
        program = ("-c", prelude + _PROGRAM, str(self.plane.account(token)), str(library))
        fixed = f"--node {NODE} --proc-root {self.folder}/proc --interval 200ms --grace 1s"
        with agent(
            self.folder / "log", *fixed.split(), *options, program=program, is_forked=is_forked, **environment
        ) as running:
            running.until(lambda: running.log_lines("pods listed"))
            yield running

    async def forget_evictions(self) -> None:
        """Delete the records of evictions, which other tests left for this node."""
        await self.admin.client.request(
            "DELETE",
            f"/api/v1/namespaces/{AGENT_NAMESPACE}/events",
            params={"fieldSelector": "reason=GPUShareEvicted"},
        )

    async def events(self, uid: str, namespace: str = "research") -> list[dict[str, Any]]:
        selector = {"fieldSelector": f"involvedObject.uid={uid}"}
        answer = await self.admin.client.get(f"/api/v1/namespaces/{namespace}/events", params=selector)
        events: list[dict[str, Any]] = json.loads(answer)["items"]
        return events

    async def reasons(self, uid: str) -> list[str]:
        return sorted(event["reason"] for event in await self.events(uid))


async def node_with_consent(
    plane: ControlPlane, admin: Administrator, folder: Path, namespace: str
) -> GpuNode:
    """Return a node, in a cluster with a namespace that asks for evictions and without records of any."""
    labels = {OVER_SHARE: "evict", "kai.scheduler/queue": "team-a", MODE: None}
    await admin.ensure({"kind": "Namespace", "metadata": {"name": namespace}})
    await admin.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    await admin.create(reservation())
    node = GpuNode(folder=folder, plane=plane, admin=admin)
    await node.forget_evictions()
    return node


async def until(holds: Callable[[], Any], running: Agent, seconds: float = 20.0) -> float:
    return await seconds_until(holds, running.log.read_text, seconds)


def counted(running: Agent, family: str) -> dict[str, float]:
    name = f"kaishare_agent_{family}_total"
    return {
        series.removeprefix(name).strip("{}"): value
        for series, value in running.series().items()
        if series.startswith(name)
    }
