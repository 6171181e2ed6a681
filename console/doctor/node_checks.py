"""Checks of nodes with GPUs and of agents: labels, DaemonSet, pods, responses, releases, scraping.

Every text of an agent is untrusted and is printed as one line.

The DaemonSet's controller creates a pod for each node that the pod's node selector and node affinity select
and whose taints the pod tolerates (`pkg/controller/daemon`, `NodeShouldRunDaemonPod`).
"""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from datetime import datetime
from typing import Final

from console.cluster.agents import AGENT_LABELS, VERSION_LABEL, AgentReading, Agents
from console.cluster.facts import FactReader, items
from console.cluster.prometheus import GIVE_ONE, Prometheus, PrometheusError, PrometheusOptions
from console.doctor.check_results import CheckResult, grouped, limited, named, ok, problem, unknown, warning
from console.doctor.cluster_state import PRESENT_LABEL, ClusterFacts, ClusterNode
from console.doctor.sharing_checks import mode_findings
from console.help import link
from gpuagent.problems import SUSPENDS_NOTHING, Cause, OwnCause
from kai import keys
from kai.share_bytes import Card
from kube.answers import REQUEST_ERRORS, ApiError
from kube.client import KubeClient
from kube.kinds import DAEMON_SETS, Controller, Pod
from service.command import UsageError
from service.text import counted, joined, listed, one_line
from service.units import duration
from service.version import version


def nodes_are_labelled(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.nodes.value is None:
        return
    gpu_nodes = cluster.nodes.value
    if not gpu_nodes:
        yield unknown(
            f"no node has GPUs: none has capacity {keys.GPU_RESOURCE} or the label {PRESENT_LABEL}",
            "install NVIDIA's GPU operator, or its device plugin and GPU feature discovery",
        )
        return
    lacking = [
        f"{node.name} ({joined(faults)})" for node in gpu_nodes if (faults := list(_label_faults(node)))
    ]
    if not lacking:
        yield ok(f"{_nodes(gpu_nodes, 'has', 'have')} both labels")
        return
    yield warning(
        f"{_nodes(lacking, 'lacks', 'lack')} a valid label: {listed(lacking)}; the agent's DaemonSet selects"
        f" nodes by {PRESENT_LABEL}, and without {keys.NODE_GPU_MEMORY} KAI assumes 100 MiB for each GPU and"
        " schedules no gpu-memory pod there",
        "install NVIDIA's GPU feature discovery, which sets the labels, or set them by hand; the memory is"
        " that of one GPU in MiB",
    )


def _label_faults(node: ClusterNode) -> Iterator[str]:
    if not node.is_labelled:
        yield f"no {PRESENT_LABEL}=true"
    memory = node.labels.get(keys.NODE_GPU_MEMORY)
    try:
        if memory is None:
            yield f"no {keys.NODE_GPU_MEMORY}"
        else:
            Card.from_label(memory)
    except ValueError as error:
        yield f"{keys.NODE_GPU_MEMORY}: {one_line(str(error))}"


def _nodes(nodes: Sized, verb: str, plural: str) -> str:
    """Begin a sentence about nodes: `2 nodes with GPUs have`."""
    return f"{counted(len(nodes), 'node')} with GPUs {verb if len(nodes) == 1 else plural}"


def coverage(
    cluster: ClusterFacts, pods: Sequence[Pod] | None, daemon_sets: Sequence[Controller]
) -> Iterator[CheckResult]:
    """Yield findings about nodes with GPUs that have no agent; `pods` is None if they could not be listed."""
    gpu_nodes = items(cluster.nodes)
    with_agent = {pod.spec.node_name for pod in pods or ()}
    uncovered = [node for node in gpu_nodes if node.name not in with_agent]
    if pods is None:
        return
    if not pods and not daemon_sets:
        if not cluster.is_absent or cluster.is_by_policies:
            yield (problem if gpu_nodes else unknown)(
                f"no agent found in namespace {cluster.options.agents.namespace}; the usage of GPUs is"
                " unknown",
                "install the chart with agent.enabled, or name the namespace with --agent-namespace",
            )
    elif uncovered:
        yield from _uncovered(uncovered, next(iter(daemon_sets), None))
    elif gpu_nodes:
        yield ok(f"each of {counted(len(gpu_nodes), 'node')} with GPUs has an agent")


def _uncovered(nodes: Sequence[ClusterNode], daemon_set: Controller | None) -> Iterator[CheckResult]:
    by_reason = grouped(
        ("; ".join(obstacles(daemon_set, node)) if daemon_set else "", node.name) for node in nodes
    )
    problems = []
    for reasons, names in sorted(by_reason.items()):
        what = f"{_nodes(names, 'has', 'have')} no agent: {listed(names)}; the usage of their GPUs is unknown"
        advice = f"compare labels ({PRESENT_LABEL}=true) and taints of the nodes with agent.nodeSelector and"
        advice += " agent.tolerations of the chart, and check --agent-namespace"
        if daemon_set is not None:
            name, namespace = daemon_set.metadata.name, daemon_set.metadata.namespace
            wants = counted(daemon_set.status.desired_number_scheduled, "pod")
            detail = "also there: its pods are not created or not scheduled"
            if reasons:
                detail = f"and not there: {reasons}"
                advice = "correct the named values of the chart, or the labels and taints of the nodes"
            else:
                advice = f"kubectl -n {namespace} describe daemonset {name}; see also agent readiness"
            what = f"{what}. DaemonSet {name} wants {wants}, {detail}"
        problems.append(problem(what, advice))
    yield from limited(problems, "more reason")


_OF_KUBERNETES: Final = "node.kubernetes.io/"
"""Prefix of the taints for a node's state, which the controller makes every pod of a DaemonSet tolerate."""


def obstacles(daemon_set: Controller, node: ClusterNode) -> Iterator[str]:
    """Yield why a DaemonSet places no pod on a node, with the value of the chart; nothing if it does."""
    spec = daemon_set.template
    for key, value in sorted((spec.node_selector or {}).items()):
        if node.labels.get(key) != value:
            yield f"no label {one_line(key)}={one_line(value)} (agent.nodeSelector)"
    if spec.affinity is not None and not spec.affinity.selects(node.name, node.labels):
        yield "not selected by the node affinity (agent.affinity)"
    for taint in node.taints:
        if not taint.key.startswith(_OF_KUBERNETES) and not any(
            toleration.tolerates(taint) for toleration in spec.tolerations or ()
        ):
            yield f"taint {one_line(str(taint))} without a toleration (agent.tolerations)"


async def agents_work(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    namespace = cluster.options.agents.namespace
    agents = Agents(reader.client, options=cluster.options.agents)
    pods: list[Pod] | None = None
    daemon_sets: Sequence[Controller] = ()
    try:
        pods = await agents.list()
    except REQUEST_ERRORS as error:
        if isinstance(error, ApiError) and error.is_forbidden:
            reader.refuse(f"the agents' pods in {namespace}", f"list pods in {namespace}")
        else:
            yield unknown(f"not checked: {one_line(str(error))}")
    else:
        query = {"labelSelector": AGENT_LABELS}
        daemon_sets = items(await reader.list(DAEMON_SETS, namespace, query=query))
    for result in coverage(cluster, pods, daemon_sets):
        yield result
    now = reader.client.server_time()
    started = [pod for pod in pods or () if pod.is_bound and not pod.metadata.deletion_timestamp]
    unready = [pod for pod in started if not pod.status.is_ready and pod.status.phase == "Running"]
    readings = await asyncio.gather(*(agents.read(pod) for pod in started if pod.status.is_ready))
    of_unready = await asyncio.gather(*map(agents.read, unready))
    published = cluster.running.published
    release = published.version if published else ""
    for name, results in (
        ("agent readiness", pod_findings(pods or (), of_unready, now)),
        ("agent responses", response_findings(readings, now)),
        ("attribution", attribution_findings([*readings, *of_unready])),
        ("sharing mode", mode_findings(cluster, [*readings, *of_unready])),
        ("releases", release_findings(pods or (), items(cluster.webhook_pods), release, version())),
    ):
        for result in named(name, results):
            yield result
    if pods:
        finding = await scraping_finding(reader.client, namespace, cluster.options.prometheus)
        yield replace(finding, check="scraping")


_PROMETHEUS_SECONDS: Final = 10.0


async def scraping_finding(client: KubeClient, namespace: str, url: str) -> CheckResult:
    """Return whether a Prometheus, by default the one that `advise` reads, has series of the agents' job."""
    where = PrometheusOptions(url=url, seconds=_PROMETHEUS_SECONDS)
    job = f"({namespace}/)?kaishare-agent"  # _config.agentSelector of deploy/mixin
    query = f'count by (job) (up{{job=~"{job}"}} or kaishare_build_info{{component="agent"}})'
    try:
        async with Prometheus.open(where, client) as prometheus:
            series = await prometheus.instant(query, time.time())
    except (PrometheusError, UsageError) as error:
        return unknown(
            f"not checked: {str(error).removesuffix(f'; {GIVE_ONE}')}",
            "give --prometheus URL, or set settings.prometheus of the chart",
        )
    jobs = [one_line(labels.get("job", "")) for labels, _ in series]
    if any(re.fullmatch(job, name) for name in jobs):
        return ok(f"{prometheus.address} scrapes the agents")
    what = f"{prometheus.address} has no series of the job kaishare-agent, by which alerts and records count"
    if jobs:
        advice = "rename the job, or set agentSelector of the mixin"
        return warning(f"{what}; agents are in {listed(jobs)}", advice)
    return warning(
        what, "set monitors.enabled and monitors.labels of the chart, or add the job to Prometheus"
    )


_STALE_SECONDS: Final = 120.0  # age of figures that are reported; the agent's default interval is 5 s
_LONGEST_DETAIL: Final = 500  # characters
_UNKNOWN_MEMORY: Final = (
    "on MIG nodes set the chart's agent.migMonitor; GPUs with unified memory have no remedy, and their shares"
    " need the node's label nvidia.com/gpu.memory"
)


def pod_findings(
    pods: Sequence[Pod], readings: Sequence[AgentReading], now: datetime | None
) -> Iterator[CheckResult]:
    failures = {reading.pod.metadata.uid: reading.failure for reading in readings}
    unready = [pod for pod in pods if not (pod.status.is_ready or pod.metadata.deletion_timestamp)]
    problems = []
    for pod in unready:
        detail = one_line(failures.get(pod.metadata.uid) or pod.status.trouble)
        restarts = f", {counted(pod.status.restarts, 'restart')}" if pod.status.restarts else ""
        advice = f"kubectl -n {pod.metadata.namespace} describe pod {pod.name}, and its log"
        problems.append(problem(f"{place(pod, now)}: {detail}{restarts}", advice))
    yield from limited(problems, "more agent not ready", "more agents not ready")
    terminating = [place(pod, now) for pod in pods if pod.metadata.deletion_timestamp]
    if terminating:
        yield unknown(
            f"{counted(len(terminating), 'agent')} terminating: {listed(terminating)}",
            "run doctor again; a pod that stays so is on a node whose kubelet does not answer",
        )
    elif pods and not unready:
        yield ok(f"{counted(len(pods), 'agent')} ready")


def response_findings(readings: Sequence[AgentReading], now: datetime | None) -> Iterator[CheckResult]:
    """Yield findings about ready agents that do not answer; agents with the same failure share a line."""
    by_failure = grouped(
        ((reading.failure, reading.missing_right), reading.pod) for reading in readings if reading.failure
    )
    failures = []
    for (failure, missing_right), pods in sorted(by_failure.items()):
        what = f"{listed([place(pod, now) for pod in pods])}: {one_line(failure)}"
        if missing_right:
            failures.append(unknown(what, f"grant the right to {missing_right}"))
        else:
            log = f"kubectl -n {pods[0].metadata.namespace} logs {pods[0].name}"
            failures.append(problem(what, f"check the log: {log}"))
    yield from limited(failures, "more kind of failure", "more kinds of failures")
    if readings and not by_failure:
        count = counted(len(readings), "agent answers", "agents answer")
        yield ok(f"{count} through the API server")


def attribution_findings(readings: Sequence[AgentReading]) -> Iterator[CheckResult]:
    """Yield what the agents say of attribution: a line for each reason, with the first node's detail."""
    received_of = [(each.pod, each.received) for each in readings if each.received is not None]
    found: defaultdict[tuple[int, str], dict[str, str]] = defaultdict(dict)
    advice: dict[str, str] = {}

    def add(rank: int, what: str, act: str, node: str, detail: str = "") -> None:
        found[rank, what].setdefault(node, detail)
        advice.setdefault(what, act)

    for pod, received in received_of:
        node, answer = pod.spec.node_name, received.answer
        for entry in answer.problems:
            reason, detail, act, section = (
                one_line(text or "", _LONGEST_DETAIL)
                for text in (entry.reason, entry.detail, entry.first_act, entry.runbook)
            )
            act = f"{act} See {link(f'docs/runbooks.md#{section}')}." if act else ""
            add(2 if entry.reason in _MINOR else 1, reason, act, node, detail)
        for gpu in answer.gpus:
            if gpu.memory_unknown:
                detail = f"GPU {gpu.index}, {one_line(gpu.memory_unknown, _LONGEST_DETAIL)}"
                add(3, "memory of GPUs unknown", _UNKNOWN_MEMORY, node, detail)
        if answer.attribution_ok is None and pod.status.is_ready:
            add(4, "no sample yet", "run doctor again", node)
        elif answer.attribution_ok is False and not answer.problems:
            add(0, "not possible", "see the agent's log", node)
        if received.age is not None and received.age > _STALE_SECONDS:
            add(0, "old figures", "see the agent's log", node, f"taken {duration(received.age)} ago")
    lines = [
        _BY_RANK[rank](f"{what} on {listed(by_node)}{f': {detail}' if detail else ''}", advice[what])
        for (rank, what), by_node in sorted(found.items())
        for detail in [by_node[min(by_node)]]
    ]
    yield from limited(lines, "more kind of problem", "more kinds of problems")
    if received_of and not lines:
        count = counted(len(received_of), "agent attributes", "agents attribute")
        yield ok(f"{count} all memory to pods")


_BY_RANK: Final = (problem, problem, warning, warning, unknown)
_MINOR: Final = SUSPENDS_NOTHING - {Cause.GPU_MISSING} | {OwnCause.NODE_LABEL}
"""Problems after which the agent goes on as before."""


def place(pod: Pod, now: datetime | None) -> str:
    """Name an agent by node, pod and age: `gpu-node-3 (pod kaishare-agent-x7k2p, 3 d old)`."""
    created, age = pod.metadata.creation_timestamp, ""
    if now is not None and created is not None:
        age = f", {duration(max((now - created).total_seconds(), 0.0))} old"
    return f"{pod.spec.node_name or 'no node'} (pod {pod.name}{age})"


def release_findings(
    agents: Sequence[Pod], webhooks: Iterable[Pod], published: str, own: str
) -> Iterator[CheckResult]:
    of_pods = [*(("webhook", pod) for pod in webhooks), *(("agent", pod) for pod in agents)]
    seen = [("published settings", published)]
    seen += [(name, pod.metadata.labels.get(VERSION_LABEL, "")) for name, pod in of_pods]
    parts = grouped((release, name) for name, release in [*seen, ("this command", own)] if release)
    text = joined(f"{one_line(release)} ({listed(set(names))})" for release, names in sorted(parts.items()))
    if len(parts) > 1:
        yield warning(f"different: {text}", "finish the upgrade, or install the same release everywhere")
    elif any(release for _, release in seen):
        yield ok(text)
