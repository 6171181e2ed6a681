"""Made-up histories of pods as OpenMetrics, for tests on a real Prometheus that compare with the raw samples."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.known_metrics import recorded as names_of_records
from tests.support.prometheus_server import Prometheus, prometheus
from tests.support.promtool import default_rules, needed, promtool

MIB, GIB = 1 << 20, 1 << 30
STEP = 60
"""Seconds between samples."""
HOURS = 36
END = 1_767_225_600
"""2026-01-01."""
START = END - HOURS * 3600

MODELS = {
    "NVIDIA H100 80GB HBM3": 81559, "Tesla T4": 15360, "NVIDIA A10": 23028, "NVIDIA L40S": 46068,
    "NVIDIA A100-SXM4-80GB": 81920, "NVIDIA H200": 143771,
}  # fmt: skip
"""MiB of each model of card, as the driver reports it."""

JOB = "kaishare-agent"


@dataclass(frozen=True, kw_only=True)
class PodHistory:
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
    used_on_second: Callable[[float], float | None] | None = None
    """The same on the second GPU; None if it is that of the first one."""
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
        for at in range(START + STEP, END + 1, STEP):
            hour = (at - START) / 3600
            is_gap = any(begin < hour <= end for begin, end in self.gaps)
            if self.hours[0] < hour <= self.hours[1] and not is_gap:
                yield at, hour

    @cache  # noqa: B019 # a few series of a few pods, in thousands of samples
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
        generation = sum(hour > at for at in self.restarts)
        yield from (f"10.0.{generation}.{agent}:9445" for agent in range(self.agents))


def recorded(folder: Path, *names: str) -> None:
    """Add some records of pods to a folder's `tsdb`, as if Prometheus had evaluated the rules at the time.
    A record that reads other records needs their blocks, so that there are several rounds. Made-up series have no
    end that Prometheus marks, so that a sample counts for a minute. `promtool tsdb create-blocks-from rules` does
    the same in three times the processor time: it writes a block for every rule and every two hours."""
    rules = default_rules()
    groups = {group["name"]: group for group in rules["groups"]}
    seen, *of_pods = groups["kaishare-usage-pods"]["rules"]
    needed_rules = [rule for rule in of_pods if rule["record"] in names]
    counted = [rule for rule in groups["kaishare-gpu-figures"]["rules"] if "counted" in rule["record"]]
    sums = [rule for rule in groups["kaishare-usage"]["rules"] if rule["record"] in names]
    for interval, round_of_rules in ((STEP, [*counted, seen]), (STEP, needed_rules), (900, sums)):
        if round_of_rules:
            with prometheus(folder, {}, lookback="1m") as running:
                lines = [line for rule in round_of_rules for line in _records(running, rule, interval)]
            create_blocks(folder, lines)


def _records(running: Prometheus, rule: Mapping[str, Any], interval: int) -> Iterator[str]:
    times = {"start": str(START), "end": str(END + interval), "step": str(interval)}
    for series in running.get("query_range", query=rule["expr"], **times)["result"]:
        metric = {name: value for name, value in series["metric"].items() if name != "__name__"}
        labels = rendered(metric | rule.get("labels", {}))
        for at, value in series["values"]:
            yield f"{rule['record']}{labels} {value} {at}"


@contextmanager
def records_of(folder: Path, *pods: "PodHistory", lines: Iterable[str] = ()) -> Iterator[str]:
    """Run a Prometheus with the histories of pods and their records, or with lines; yield its address.
    Made-up series have no end that Prometheus marks, so that a sample counts for a minute."""
    needed("prometheus")
    if pods:
        History(pods).write(folder)
        recorded(folder, *names_of_records())
    else:
        create_blocks(folder, lines)
    with prometheus(folder, {}, lookback="1m") as running:
        yield running.url


def create_blocks(folder: Path, lines: Iterable[str]) -> None:
    text = folder / "history.om"
    with text.open("w") as stream:
        stream.writelines(f"{line}\n" for line in (*lines, "# EOF"))
    blocks = ("tsdb", "create-blocks-from", "--max-block-duration=240h")
    promtool(*blocks, "openmetrics", text, folder / "tsdb")


def rendered(labels: Mapping[str, str]) -> str:
    escaped = (
        (key, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for key, value in labels.items()
    )
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}"


@dataclass
class History:
    pods: tuple[PodHistory, ...]
    lines: dict[str, list[str]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        create_blocks(folder, self.openmetrics())

    def openmetrics(self) -> Iterator[str]:
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
                labels = {"job": JOB, "instance": "10.0.0.0:9445", "gpu_uuid": f"GPU-{index}-{gpu}", "model": model}  # fmt: skip
                for at in range(START + STEP, END + 1, STEP):
                    yield f"kaishare_gpu_memory_total_bytes{rendered(labels)} {mib * MIB} {at}"

    def _used(self, pod: PodHistory) -> Iterator[tuple[str, float, int]]:
        for at, hour in pod.times():
            for gpu in range(pod.gpus):
                value = (pod.used_on_second or pod.used)(hour) if gpu else pod.used(hour)
                if value is not None:
                    for instance in pod.instances(hour):
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
    return lambda _: amount
