"""Checks of KAI's sharing mode: what kaishare assumes, what NvFractions needs, and other products' keys.

NvFractions and its operator were read in KAI's documentation and source of 0.18, and never run. Run:ai's keys
are those of NVIDIA's documentation of Run:ai 2.x.
"""

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from console.cluster.agents import AgentReading
from console.cluster.facts import FactReader, items
from console.doctor.admission import PODGROUPS
from console.doctor.check_results import CheckResult, grouped, ok, problem, unknown, warning
from console.doctor.cluster_state import ClusterFacts
from kai.installation import SharingMode
from kai.share import run_ai_limit
from kube.kinds import DAEMON_SETS, Controller, Kind, PartialObject
from service.text import counted, listed, one_line

_NOT_RUN: Final = " (not run on a real KAI 0.18)"
_FIRST_DRIVER: Final = 615
"""First branch of NVIDIA's driver with memory limits by cgroup (NVML's change log of 13.4)."""
_OPERATORS: Final = ("GpuFractioningConfig", "GpuSharingConfig")
"""Kinds of the object `default` of the operator behind NvFractions: its present name, and that of its first
releases."""
_CONDITIONS: Final = ("gpu-fractioning.nvidia.com/Ready", "gpu-sharing.nvidia.com/Ready")
"""Conditions of nodes where that operator's daemons run, likewise. Ready does not mean that limits hold."""
_KRM: Final = frozenset({"kai-pod-group-mutation", "kai-pod-mutation"})
"""Webhooks of kai-resource-management. Its assigner writes the queue of PodGroups."""
_DRIVER_LABELS: Final = ("nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver.major")
"""Labels of GPU feature discovery with the driver's branch, the newer name first."""
_NEEDED: Final = {"container-toolkit": "1.20.1", "k8s-device-plugin": "0.20.1"}
"""The first releases whose CDI devices have the hook that sets the driver's limits, by the image: those of
GPU Operator 26.7.1. An older toolkit sets no limit and says nothing."""
_TAG: Final = re.compile(r"(?:^|/)([a-z0-9-]+):v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})")


class _Cdi(Struct, frozen=True, rename="camel"):
    nri_plugin_enabled: bool | None = None


class _OperatorSpec(Struct, frozen=True):
    cdi: _Cdi = _Cdi()


class _ClusterPolicy(PartialObject, frozen=True):
    """The object that configures NVIDIA's GPU operator."""

    spec: _OperatorSpec = _OperatorSpec()


_CLUSTER_POLICIES: Final = Kind("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", _ClusterPolicy)


def mode_findings(cluster: ClusterFacts, readings: Sequence[AgentReading]) -> Iterator[CheckResult]:
    mode = cluster.sharing_mode
    answers = {
        each.pod.spec.node_name: each.received.answer for each in readings if each.received is not None
    }
    withheld = [
        pod.name for each in answers.values() for pod in each.pods if pod.not_evicted == "mode-unknown"
    ]
    if withheld:
        yield problem(
            f"evictions are withheld, since the agents do not know KAI's sharing mode: {listed(withheld)}",
            f"install kaishare with agent.gpuSharingMode{f'={mode}' if mode else ''}",
        )
    if mode is None:
        return
    of_agents = ((each.gpu_sharing_mode or mode, node) for node, each in answers.items())
    for other, nodes in sorted(grouped(of_agents).items()):
        if other != mode:
            yield problem(
                f"KAI's sharing mode is {mode}, and agents run with --gpu-sharing-mode {one_line(other)}:"
                f" {listed(nodes)}",
                f"install kaishare with agent.gpuSharingMode={mode}",
            )
    if mode is SharingMode.NV_FRACTIONS:
        drivers = {
            node.name: next((node.labels[key] for key in _DRIVER_LABELS if key in node.labels), "")
            for node in items(cluster.nodes)
        }
        drivers |= {node: each.driver_version for node, each in answers.items() if each.driver_version}
        if too_old := [node for node, driver in drivers.items() if _is_too_old(driver)]:
            yield problem(
                f"in {mode} the driver must hold the limits, and that of {listed(too_old)} is older than"
                f" {_FIRST_DRIVER}: no limit can be in force",
                f"install a driver of {_FIRST_DRIVER} or newer",
            )


def _is_too_old(driver: str | None) -> bool:
    major = (driver or "").partition(".")[0]
    return major.isascii() and major.isdecimal() and int(major) < _FIRST_DRIVER


async def limits_can_hold(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    """Yield what NvFractions lacks, as far as a cluster shows it: its operator, toolkit and device plugin."""
    if SharingMode.NV_FRACTIONS not in cluster.sharing_modes:
        return
    served = await reader.served()
    kinds = [kind for name in _OPERATORS for kind in items(served) if kind.kind == name]
    if kinds:
        yield ok(f"the operator's kind is {one_line(kinds[0].name)}{_NOT_RUN}")
    elif served.is_known:
        yield problem(
            f"KAI shares GPUs by NvFractions, and no {' or '.join(_OPERATORS)} is served: no pod with a share"
            f" is scheduled{_NOT_RUN}",
            "install KAI's chart with global.nvFractions.set=true, or NVIDIA's operator gpu-fractioning",
        )
    unready = [node.name for node in items(cluster.nodes) if node.conditions.isdisjoint(_CONDITIONS)]
    if unready:
        yield problem(
            f"{counted(len(unready), 'node')} with GPUs without the condition {' or '.join(_CONDITIONS)}:"
            f" {listed(unready)}; KAI schedules no pod with a share there{_NOT_RUN}",
            "read the log of the operator's pods on these nodes",
        )
    policies = items(await reader.list(_CLUSTER_POLICIES))
    if any(each.spec.cdi.nri_plugin_enabled for each in policies):
        yield problem(
            "the container toolkit's NRI plugin is on (cdi.nriPluginEnabled of NVIDIA's GPU operator), which"
            f" NvFractions needs off{_NOT_RUN}",
            "set cdi.nriPluginEnabled=false; containerd's own NRI must stay on",
        )
    daemon_sets = await reader.list(DAEMON_SETS)
    for result in _releases(items(daemon_sets)) if daemon_sets.is_known else ():
        yield result


def _releases(daemon_sets: Iterable[Controller]) -> Iterator[CheckResult]:
    containers = (each for daemon_set in daemon_sets for each in daemon_set.template.containers or ())
    tags = filter(None, (_TAG.search(each.image) for each in containers))
    found = grouped((tag[1], (int(tag[2]), int(tag[3]), int(tag[4]))) for tag in tags)
    for program, needed in _NEEDED.items():
        oldest = min(found.get(program, ()), default=None)
        if oldest is None:
            yield unknown(
                f"the release of {program} is not known: no DaemonSet has its image with a release as tag;"
                f" limits need {needed} or newer{_NOT_RUN}"
            )
        elif oldest < tuple(map(int, needed.split("."))):
            yield problem(
                f"{program} is {'.'.join(map(str, oldest))}, and limits need {needed}: no limit is set, and"
                f" nothing says so{_NOT_RUN}",
                "install NVIDIA's GPU operator 26.7.1 or newer",
            )


def resource_management(cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Yield where kai-resource-management assigns queues, which the guard refuses: it must not be there."""
    names = {
        name
        for configuration in items(cluster.mutating)
        for name in (configuration.name, *(hook.name for hook in configuration.hooks))
    }
    found = sorted(name for name in names if name.partition(".")[0] in _KRM)
    if not found:
        return
    what = f"kai-resource-management assigns queues here (webhook {listed(found)})"
    if any(policy.name == PODGROUPS for policy in items(cluster.admission.validating)):
        advice = "remove the guard (guard.enabled=false): it is not for clusters with kai-resource-management"
        yield problem(f"{what}, which the guard refuses{_NOT_RUN}", advice)
    else:
        yield warning(
            f"{what}: a pod's queue label is a wish, and its PodGroup moves to other queues{_NOT_RUN}",
            "do not install kaishare's guard in this cluster, whose policies refuse such moves",
        )


def run_ai_keys(cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Yield a warning for waiting pods with keys of Run:ai 2.x, which KAI ignores without a word."""
    version = cluster.installation.version if cluster.installation else None
    by_advice: list[tuple[tuple[str, str], str]] = []
    for pod in items(cluster.waiting):
        annotations: Mapping[str, str] = pod.metadata.annotations or {}
        container = next((each.name for each in pod.spec.containers or ()), "NAME")
        if advice := run_ai_limit(annotations, container, version):
            by_advice.append((advice, "/".join(pod.metadata.key)))
    for (key, remedy), pods in sorted(grouped(by_advice).items()):
        yield warning(f"{listed(pods)}: KAI ignores {key} of Run:ai 2.x, so that no limit is set", remedy)
