"""Made-up histories of pods as OpenMetrics, for tests on a real Prometheus that compare with the raw samples."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.support.prometheus_server import prometheus
from tests.support.promtool import ALERTS, promtool

MIB, GIB = 1 << 20, 1 << 30
STEP = 60
"""Seconds between samples."""
HOURS = 36
END = 1_767_225_600
"""2026-01-01."""
START = END - HOURS * 3600

MODELS = {
    "NVIDIA H100 80GB HBM3": 81559,
    "Tesla T4": 15360,
    "NVIDIA A10": 23028,
    "NVIDIA L40S": 46068,
    "NVIDIA A100-SXM4-80GB": 81920,
    "NVIDIA H200": 143771,
}
"""MiB of each model of card, as the driver reports it."""

JOB = "kaishare-agent"


@dataclass(frozen=True, kw_only=True)
class PodHistory:
    """A pod on one GPU."""

    namespace: str
    pod: str
    uid: str = ""
    model: str = "NVIDIA H100 80GB HBM3"
    size: str = ""
    kind: str = "Deployment"
    workload: str = "web"
    vcluster: str = ""
    virtual_namespace: str = ""
    share: Callable[[float], float]
    """Bytes by hours since the start."""
    used: Callable[[float], float | None]
    """Bytes by hours since the start; None while unknown."""
    hours: tuple[float, float] = (0, HOURS)
    gaps: tuple[tuple[float, float], ...] = ()
    """Hours without any sample."""
    restarts: tuple[float, ...] = ()
    """Hours at which the agent's pod was replaced: another instance, and counters from 0."""
    agents: int = 1
    """Agents that report the pod at the same time."""
    gpus: int = 1
    job: str = JOB
    queue: str = "team"
    utilization: Callable[[float], float | None] = lambda _: None
    """From 0 to 1 by hours since the start; None while unknown."""
    over: bool = False
    """Whether the counter of the time above the share is served."""

    @property
    def key(self) -> str:
        return self.uid or self.pod

    def times(self) -> Iterator[tuple[int, float]]:
        """Yield Unix seconds and hours since the start."""
        for at in range(START + STEP, END + 1, STEP):
            hour = (at - START) / 3600
            is_gap = any(begin < hour <= end for begin, end in self.gaps)
            if self.hours[0] < hour <= self.hours[1] and not is_gap:
                yield at, hour

    def labels(self, instance: str, gpu: int | None = 0) -> str:
        labels = {
            "job": self.job, "instance": instance, "namespace": self.namespace, "pod": self.pod,
            "uid": self.key, "node": "n1", "queue": self.queue, "vcluster": self.vcluster,
            "virtual_namespace": self.virtual_namespace,
            "virtual_pod": f"{self.pod}-v" if self.vcluster else "",
        }  # fmt: skip
        if gpu is not None:
            labels |= {"gpu_uuid": self.gpu_uuid(gpu), "gpu": str(gpu)}
        return rendered(labels)

    def gpu_uuid(self, gpu: int = 0) -> str:
        return f"GPU-{list(MODELS).index(self.model)}-{gpu}"

    def instances(self, hour: float) -> Iterator[str]:
        """Yield the agents that report the pod at a time."""
        generation = sum(hour > at for at in self.restarts)
        yield from (f"10.0.{generation}.{agent}:9445" for agent in range(self.agents))


def recorded(folder: Path, *names: str) -> None:
    """Add some records of pods to a folder's `tsdb`, as if Prometheus had evaluated the rules at the time.

    A record that reads other records needs their blocks, so that there are several rounds. Made-up series have no
    end that Prometheus marks, so that a sample counts for a minute.
    """
    rules = yaml.safe_load((ALERTS / "rules.yaml").read_text())
    groups = {group["name"]: group for group in rules["groups"]}
    seen, *of_pods = groups["kaishare-usage-pods"]["rules"]
    needed_rules = [rule for rule in of_pods if rule["record"] in names]
    counted = [rule for rule in groups["kaishare-gpu-figures"]["rules"] if "counted" in rule["record"]]
    sums = [rule for rule in groups["kaishare-usage"]["rules"] if rule["record"] in names]
    for number, (interval, round_of_rules) in enumerate(
        ((STEP, [*counted, seen]), (STEP, needed_rules), (900, sums))
    ):
        if not round_of_rules:
            continue
        file = folder / f"round-{number}.yaml"
        group = {"name": "round", "interval": f"{interval}s", "rules": round_of_rules}
        file.write_text(yaml.safe_dump({"groups": [group]}))
        times = (f"--start={START}", f"--end={END + interval}", f"--output-dir={folder}/tsdb")
        with prometheus(folder, {}, lookback="1m") as running:
            promtool("tsdb", "create-blocks-from", "rules", f"--url={running.url}", *times, file)


def rendered(labels: Mapping[str, str]) -> str:
    """Return labels in the text format."""
    escaped = (
        (key, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for key, value in labels.items()
    )
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}"


@dataclass
class History:
    """All samples of some pods."""

    pods: tuple[PodHistory, ...]
    lines: dict[str, list[str]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the samples into the folder's `tsdb`."""
        text = folder / "history.om"
        with text.open("w") as stream:
            for line in self.openmetrics():
                stream.write(line + "\n")
        blocks = ("tsdb", "create-blocks-from", "--max-block-duration=240h")
        promtool(*blocks, "openmetrics", text, folder / "tsdb")

    def openmetrics(self) -> Iterator[str]:
        """Yield the lines of the file."""
        families = (
            ("kaishare_pod_gpu_memory_used_bytes", "gauge", self._used),
            ("kaishare_pod_gpu_memory_share_bytes", "gauge", self._share),
            ("kaishare_pod_gpu_utilization_ratio", "gauge", self._utilization),
            ("kaishare_pod_info", "gauge", self._info),
            ("kaishare_pod_over_share_seconds", "counter", self._over),
        )
        for name, kind, samples in families:
            yield f"# TYPE {name} {kind}"
            metric = f"{name}_total" if kind == "counter" else name
            for pod in self.pods:
                for labels, value, at in samples(pod):
                    yield f"{metric}{labels} {value!r} {at}"
        yield "# TYPE kaishare_gpu_memory_total_bytes gauge"
        for index, (model, mib) in enumerate(MODELS.items()):
            for gpu in range(2):
                labels = {
                    "job": JOB,
                    "instance": "10.0.0.0:9445",
                    "gpu_uuid": f"GPU-{index}-{gpu}",
                    "model": model,
                }
                for at in range(START + STEP, END + 1, STEP):
                    yield f"kaishare_gpu_memory_total_bytes{rendered(labels)} {mib * MIB} {at}"
        yield "# EOF"

    def _used(self, pod: PodHistory) -> Iterator[tuple[str, float, int]]:
        for at, hour in pod.times():
            value = pod.used(hour)
            if value is not None:
                for instance in pod.instances(hour):
                    for gpu in range(pod.gpus):
                        yield pod.labels(instance, gpu), value, at

    def _utilization(self, pod: PodHistory) -> Iterator[tuple[str, float, int]]:
        for at, hour in pod.times():
            value = pod.utilization(hour)
            if value is not None:
                for instance in pod.instances(hour):
                    for gpu in range(pod.gpus):
                        yield pod.labels(instance, gpu), value, at

    def _share(self, pod: PodHistory) -> Iterator[tuple[str, float, int]]:
        for at, hour in pod.times():
            for instance in pod.instances(hour):
                for gpu in range(pod.gpus):
                    yield pod.labels(instance, gpu), pod.share(hour), at

    def _info(self, pod: PodHistory) -> Iterator[tuple[str, float, int]]:
        more = rendered({"size": pod.size, "workload_kind": pod.kind, "workload": pod.workload})
        for at, hour in pod.times():
            for instance in pod.instances(hour):
                yield f"{pod.labels(instance, None)[:-1]},{more[1:]}", 1, at

    def _over(self, pod: PodHistory) -> Iterator[tuple[str, float, int]]:
        if not pod.over:
            return
        total, generation = 0, 0
        for at, hour in pod.times():
            if sum(hour > restart for restart in pod.restarts) != generation:
                total, generation = 0, generation + 1
            value = pod.used(hour)
            total += STEP if value is not None and value > pod.share(hour) * 1.05 else 0
            for instance in pod.instances(hour):
                for gpu in range(pod.gpus):
                    yield pod.labels(instance, gpu), total, at


def noisy(base: float, spread: float, *, seed: int) -> Callable[[float], float]:
    """Return a use that varies at random between two amounts, the same for the same time."""
    return lambda hour: round(base + spread * random.Random(f"{seed} {hour:.4f}").random())


def always(amount: float) -> Callable[[float], float]:
    """Return the same amount for every time."""
    return lambda _: amount
