"""Command `doctor`: runs all checks in turn, even if some fail."""

import asyncio
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from console.doctor.agent_cluster import cluster_findings, cluster_pods, logged, own_runtime_class
from console.doctor.attribution_checks import pod_findings
from console.doctor.check_results import CheckResult, problem, unknown, write_report
from console.doctor.device_access import Host, device_findings
from console.doctor.driver_checks import Observation, Probe, driver_findings
from console.doctor.proc_checks import proc_findings
from console.doctor.self_test import self_test_result
from console.doctor.shared_checks import API_SERVER
from gpuagent.gpus.gpu_reader import DEADLINE_SECONDS
from gpuagent.node import NodeSettings, open_node
from gpuagent.pods.file_pods import FilePods
from gpuagent.sampling.processes import Processes
from kube.access import Access, AccessError, find_access
from service.documents import DocumentError
from service.log import JsonLog
from service.log_writer import discard_library_logs

_FILE: Final = "pods file"
_MACHINE: Final = "this machine"
_NODE: Final = "node"
_SIMULATED: Final = "simulated: GPUs, processes and pods are synthetic"
_SIMULATED_CLUSTER: Final = "simulated: GPUs and processes are synthetic"


def run(settings: NodeSettings, *, needs_cluster: bool, output: str) -> int:
    """Run all checks and print the results; return 1 if there is a problem, else 0.

    Args:
        settings: which node; all of them are optional.
        needs_cluster: whether a missing cluster is a problem.
        output: `text` or `json`.

    Raises:
        UsageError: the settings cannot be used; also service.documents.DocumentError.
    """
    discard_library_logs()
    log = JsonLog(io.BytesIO())
    node = open_node(settings, deadline=DEADLINE_SECONDS, log=log)
    if settings.simulates_cluster and settings.node:
        access, _ = asyncio.run(_access(Host.here(settings.proc_root), needs_cluster=needs_cluster))
        if access is not None:
            node.follow(asyncio.run(cluster_pods(access, settings, log)))
    source, settings = node.source, node.settings
    probe = Probe(source=source, processes=Processes(proc_root=settings.proc_root))
    try:
        findings = list(
            _examine(settings, probe, needs_cluster=needs_cluster, is_simulated=source.is_simulated)
        )
    finally:
        probe.close()
    heading = _SIMULATED_CLUSTER if settings.simulates_cluster else _SIMULATED
    status = write_report(
        findings,
        output=output,
        about={"node": settings.node or None, "simulated": source.is_simulated},
        heading=heading if source.is_simulated else "",
    )
    if source.is_hanging:
        os._exit(status)  # a normal exit would wait for the hanging call
    return status


def _examine(
    settings: NodeSettings, probe: Probe, *, needs_cluster: bool, is_simulated: bool
) -> Iterator[CheckResult]:
    host = Host.here(settings.proc_root)
    observation = probe.observe()
    yield from driver_findings(observation, host)
    access, no_access = None, None
    if not settings.pods:
        access, no_access = asyncio.run(_access(host, needs_cluster=needs_cluster))
    if is_simulated:
        yield from (problem(str(entry.cause), entry.detail) for entry in observation.problems)
        yield unknown(_MACHINE, "PID namespace, /proc and devices not checked: the node is simulated")
    else:
        yield from proc_findings(observation, host)
        name = host.environment.get("HOSTNAME", "")
        is_pod = access is not None and host.is_contained and bool(name)
        runtime_class = asyncio.run(own_runtime_class(access, name)) if access and is_pod else None
        yield from device_findings(host, runtime_class)
        yield self_test_result(observation, probe.observe, host)
    if settings.pods:
        yield from _file(settings, settings.pods, observation)
        yield unknown(API_SERVER, "not checked: the pods are from a file")
    elif no_access:
        yield no_access
    elif not settings.node:
        yield problem(_NODE, "node name not set", "set --node or NODE_NAME")
    elif access:
        yield from asyncio.run(cluster_findings(access, settings, observation))


async def _access(host: Host, *, needs_cluster: bool) -> tuple[Access | None, CheckResult | None]:
    """Return the connection settings of the cluster, or a result that explains why there are none."""
    try:
        return await find_access(), None
    except AccessError as error:
        if "KUBERNETES_SERVICE_HOST" in host.environment:
            return None, problem(
                API_SERVER, str(error), "mount the pod's service account token (automountServiceAccountToken)"
            )
        if needs_cluster:
            return None, problem(API_SERVER, str(error), "run in the agent's pod, or set KUBECONFIG")
        return None, unknown(
            API_SERVER,
            f"no cluster: {error}",
            "run in a pod or set KUBECONFIG to check pods and rights, too",
        )


def _file(settings: NodeSettings, path: Path, observation: Observation) -> Iterator[CheckResult]:
    if not settings.node:
        yield problem(_NODE, "node name not set", "set --node or NODE_NAME")
        return
    stream = io.BytesIO()
    try:
        pods = FilePods(
            path=path,
            node=settings.node,
            reservation_namespace=settings.reservation_namespace,
            log=JsonLog(stream),
        )
    except DocumentError as error:
        yield problem(_FILE, str(error))
        return
    yield from logged(_FILE, stream)
    if pods.inventory is not None:
        source = "the scenario" if settings.scenario else str(path)
        yield from pod_findings(pods.inventory, observation, settings, source=source)
