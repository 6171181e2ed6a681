"""The chain from a source of GPUs to the agent's answers, in one thread and with a simulated clock."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuagent.evaluation.pipeline import SamplePipeline
from gpuagent.evaluation.transition_log import TransitionLog
from gpuagent.gpus.gpu_reading import GpuReading, GpuSource
from gpuagent.gpus.memory_limits import NO_LIMITS
from gpuagent.ledger.driver_limits import DriverLimits
from gpuagent.pods.inventory import Inventory
from gpuagent.sampling.container_limits import ContainerLimits
from gpuagent.sampling.processes import Processes
from gpuagent.sampling.sample import Sample
from gpuagent.server.api import shares_json
from gpuagent.server.exposition import Metrics
from gpuagent.shares.share_resolver import ShareResolver
from gpuagent.verdicts.flagging import Judge
from kai.installation import SharingMode
from service.log import JsonLog

Series = dict[str, dict[tuple[str, ...], float]]


@dataclass
class ListedPods:
    inventory: Inventory | None

    def seconds_since_contact(self) -> float:
        return 0.0

    async def run(self) -> None:
        raise NotImplementedError


@dataclass
class Chain:
    """Sampler and pipeline without a thread: each `sample` reads the driver and renders all answers."""

    source: GpuSource
    proc_root: Path
    inventory: Inventory | None
    clock: Callable[[], float]
    grace: float = 10
    cgroup_root: Path | None = None
    mode: SharingMode | None = None
    readings: list[GpuReading] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.processes = Processes(proc_root=self.proc_root)
        self.limits = self.cgroup_root and ContainerLimits(
            self.cgroup_root, self.source.memory_limits, deadline=30
        )
        self.log = io.BytesIO()
        self.pods = ListedPods(self.inventory)
        self.books = SamplePipeline(
            pods=self.pods, share_resolver=ShareResolver(gpu_sharing_mode=self.mode),
            driver_limits=DriverLimits(self.mode), judge=Judge(grace=self.grace, interval=10, longest_gap=60),
            is_simulated=False, interval=5, clock=self.clock, transition_log=TransitionLog(JsonLog(self.log)),
        )  # fmt: skip
        self.metrics = Metrics(node="node-1", is_simulated=False)

    def sample(self) -> Series:
        reading = self.source.read()
        origins, problems = self.processes.look_up(reading)
        limits = self.limits.read(reading, origins) if self.limits else NO_LIMITS
        now = self.clock()
        sample = Sample(
            reading=reading, origins=origins, taken_at=now, wall_time=now, seconds=0.0, problems=problems,
            limits=limits,
        )  # fmt: skip
        self.readings.append(reading)
        self.sampled = sample
        self.books.process(sample, self.source.errors)
        self.answer: dict[str, Any] = json.loads(
            shares_json(self.books.status(), node="node-1", is_simulated=False)
        )
        status = self.books.status()
        self.sample_text = b"".join(self.metrics.sample_parts(status))
        return series_of((self.sample_text + self.metrics.agent_text(status)).decode())


_KEY = ("pod", "gpu_uuid", "reason", "change")


def series_of(text: str) -> Series:
    """Return kaishare's series by name, and by the labels pod, gpu_uuid, reason and change where present."""
    series: Series = {}
    for line in text.splitlines():
        matched = re.fullmatch(r"kaishare_(\w+?)(?:\{(.*)\})? (\S+)", line)
        if matched:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', matched[2] or ""))
            key = tuple(labels[name] for name in _KEY if name in labels)
            if labels.get("source") == "driver":  # beside the limit of an annotation
                key += ("driver",)
            places = series.setdefault(matched[1], {})
            assert key not in places or "le" in labels or "call" in labels, (
                line
            )  # Prometheus takes no series twice
            places[key] = float(matched[3])
    return series
