"""A node whose driver limits containers: the stand-in library, /proc, the cgroup tree and the pods."""

from pathlib import Path
from typing import Any

from gpuagent.gpus.gpu_reader import NvmlGpus
from kai.installation import SharingMode
from tests.support.driver_chain import Chain, Series
from tests.support.inventories import inventory
from tests.support.kube_objects import GPU_0, bind_request, pod, reservation, uid
from tests.support.proc_files import ProcTree
from tests.support.samples import MIB

TOTAL = 23028 * MIB
LIMIT_KEY = "nvidia.com/container.main.gpu-memory.limit"
REQUEST_KEY = "nvidia.com/container.main.gpu-memory.request"


def container_id(number: int) -> str:
    return f"{number:064x}"


def variables(request: object = None, limit: object = None) -> list[dict[str, str]]:
    """Return the toolkit's variables of a container, without those that are None."""
    named = (("NVIDIA_GPU_MEMORY_REQUEST", request), ("NVIDIA_GPU_MEMORY_LIMIT", limit))
    return [{"name": name, "value": str(value)} for name, value in named if value is not None]


class LimitedNode:
    """One GPU; pods with a process in each container, by pod number and container."""

    def __init__(
        self,
        folder: Path,
        gpus: NvmlGpus,
        clock: Any,
        answers: Path,
        *,
        mode: SharingMode | None = SharingMode.NV_FRACTIONS,
        backend: str | None = "misc",
        is_private: bool = False,
    ) -> None:
        self.root = folder / "cgroup"
        self.root.mkdir()
        (self.root / "cgroup.controllers").write_text("cpu memory\n")
        self.proc = ProcTree(folder / "proc")
        self.proc.add(2, "0::/", name="kthreadd")
        self.clock, self.answers, self.backend = clock, answers, backend
        self.is_private = is_private
        """Whether the agent has a cgroup namespace of its own."""
        self.documents = [reservation()]
        self.groups: dict[tuple[int, str], Path] = {}
        self.pids: dict[tuple[int, str], int] = {}
        self.used: dict[int, int] = {}
        self.limits: dict[Path, tuple[int, int]] = {}
        """Soft and hard limit in bytes, by the folder of the cgroup."""
        self.without_files: set[Path] = set()
        self.more: list[str] = []
        self.chain = Chain(gpus, self.proc.root, None, clock, cgroup_root=self.root, mode=mode)

    def add(
        self,
        number: int = 1,
        *,
        annotations: dict[str, str] | None = None,
        env: list[dict[str, str]] | None = None,
        containers: tuple[str, ...] = ("main",),
        share: str = "0.50",
    ) -> None:
        """Add a pod that KAI placed, with a process of 1 GiB in each container."""
        name = f"pod-{number}"
        folder = self.root / f"kubepods.slice/kubepods-pod{uid(number).replace('-', '_')}.slice"
        statuses = []
        for index, container in enumerate(containers):
            own = container_id(number * 100 + index)
            path = folder / f"cri-containerd-{own}.scope"
            path.mkdir(parents=True)
            self.groups[number, container] = path
            relative = path.relative_to(self.root)
            text = f"0::/../../{Path(*relative.parts[1:])}" if self.is_private else f"0::/{relative}"
            pid = self.pids[number, container] = 1000 + number * 100 + index
            self.proc.add(pid, text)
            self.used[pid] = 1024 * MIB
            statuses.append({"name": container, "containerID": f"containerd://{own}"})
        document = pod(
            name,
            number,
            labels={"runai-gpu-group": reservation()["metadata"]["labels"]["runai-gpu-group"]},
            annotations=annotations if annotations is not None else {"gpu-fraction": share},
            containers=[
                {"name": container, **({"env": env} if env and not index else {})}
                for index, container in enumerate(containers)
            ],
            containerStatuses=statuses,
        )
        self.documents += [document, bind_request(name, number, share)]

    def limit(self, number: int = 1, container: str = "main", *, hard: int, soft: int = 0) -> None:
        self.limits[self.groups[number, container]] = soft, hard

    def limit_pod(self, number: int = 1, *, hard: int) -> None:
        self.limits[next(path for (pod, _), path in self.groups.items() if pod == number).parent] = 0, hard

    def sample(self, times: int = 1) -> Series:
        """Take samples, 5 s apart; return the series of the last one."""
        self.chain.pods.inventory = inventory(*self.documents)
        folders = {path for path in self.root.rglob("*") if path.is_dir()}
        lines = [
            "driver 620.70.06",
            f"gpu 0 {GPU_0} {TOTAL} {500 * MIB} {sum(self.used.values())} NVIDIA A10",
            *(f"process 0 - 0 {pid} {used} 4294967295 4294967295" for pid, used in self.used.items()),
            *([f"backend 0 {self.backend}"] if self.backend else []),
            *(f"group {path} {'misc' if path in self.without_files else 'dmem'}" for path in folders),
            *(f"limit 0 {soft} {hard} 5 {path}" for path, (soft, hard) in self.limits.items()),
            *self.more,
        ]
        (self.root / "dmem.capacity").unlink(missing_ok=True)
        if self.backend == "dmem":
            (self.root / "dmem.capacity").write_text(f"nvidia/0000:00:05.0/vidmem {TOTAL}\n")
        for path in folders:
            (path / "dmem.max").unlink(missing_ok=True)
            if self.backend == "dmem" and path not in self.without_files:
                (path / "dmem.max").write_text("max\n")
        making = self.answers.with_suffix(".making")
        making.write_text("".join(f"{line}\n" for line in lines))
        making.replace(self.answers)
        for _ in range(times):
            self.clock.now += 5
            series = self.chain.sample()
        return series

    def rows(self, number: int = 1) -> list[dict[str, Any]]:
        """Return the pod's driver limits in the API."""
        pods = {each["name"]: each for each in self.chain.answer["pods"]}
        return list(pods[f"pod-{number}"]["driverLimits"])

    def flags(self, series: Series, number: int = 1) -> dict[str, float]:
        """Return the series of the two flags, by reason."""
        flagged = series.get("pod_flagged", {})
        return {
            key[2]: value
            for key, value in flagged.items()
            if key[0] == f"pod-{number}" and key[2].startswith("limit-") and key[2] != "limit-bypassed"
        }
