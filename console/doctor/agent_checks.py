"""Checks of the agents: their DaemonSet and pods, their releases, their responses and their attribution.

Every text of an agent is untrusted and is printed as one line.

The DaemonSet's controller creates a pod for each node that the pod's node selector and node affinity select
and whose taints the pod tolerates (`pkg/controller/daemon`, `NodeShouldRunDaemonPod`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from console.agents import AGENT_LABELS, AgentPod, AgentReadiness, AgentReading
from console.doctor.api_reader import ApiReader, ListResult, ListSpec
from console.doctor.check_results import CheckResult, limited, ok, problem, unknown, warning
from console.doctor.webhook_deployment import WebhookPod
from gpuagent.api_types import AgentResponse
from gpuagent.first_acts import FOR_PROBLEM
from gpuagent.problems import SUSPENDS_NOTHING
from kube.kinds import Taint
from kube.metadata import ObjectMeta, Requirement
from service.text import MOST_LINES, counted, joined, listed, one_line
from service.units import duration

RELEASES: Final = "releases"


def release_findings(
    agents: Sequence[AgentPod], webhooks: Iterable[WebhookPod], published: str, own: str
) -> Iterator[CheckResult]:
    """Yield a warning if releases differ. Pure.

    Args:
        agents: the agents' pods.
        webhooks: the webhook's pods.
        published: the version in the webhook's published settings; empty if unknown.
        own: the version of this command.
    """
    parts: defaultdict[str, set[str]] = defaultdict(set)
    for webhook in webhooks:
        if webhook.version:
            parts[webhook.version].add("webhook")
    if published:
        parts[published].add("published settings")
    for pod in agents:
        if pod.version:
            parts[pod.version].add("agent")
    if not parts:
        return
    parts[own].add("this command")
    if len(parts) == 1:
        yield ok(RELEASES, f"{_parts(parts)}")
        return
    yield warning(
        RELEASES, f"different: {_parts(parts)}", "finish the upgrade, or install the same release everywhere"
    )


def _parts(parts: Mapping[str, set[str]]) -> str:
    return joined(f"{one_line(version)} ({listed(names)})" for version, names in sorted(parts.items()))


READINESS: Final = "agent readiness"
RESPONSES: Final = "agent responses"
ATTRIBUTION: Final = "attribution"

_STALE_SECONDS: Final = 120.0
"""Age of figures that are reported; the agent's default interval is 5 s."""
_LONGEST_DETAIL: Final = 500  # characters
_UNKNOWN_MEMORY: Final = (
    "on MIG nodes set the chart's agent.migMonitor; GPUs with unified memory have no remedy, and their shares"
    " need the node's label nvidia.com/gpu.memory"
)


def pod_findings(
    pods: Sequence[AgentPod], readiness: Sequence[AgentReadiness], now: datetime | None
) -> Iterator[CheckResult]:
    """Yield findings about agents that are not ready, or terminating.

    Args:
        pods: the agents' pods.
        readiness: responses of `/readyz` of pods that run and are not ready.
        now: the API server's time; None if it is unknown.
    """
    reasons = {response.pod.uid: response.reasons for response in readiness}
    unready = [pod for pod in pods if not pod.is_ready and not pod.is_terminating]
    for pod in unready[:MOST_LINES]:
        detail = "; ".join(reasons.get(pod.uid, ())) or pod.trouble
        restarts = f", {counted(pod.restarts, 'restart')}" if pod.restarts else ""
        yield problem(
            READINESS,
            f"{place(pod, now)}: {one_line(detail)}{restarts}",
            f"kubectl -n {pod.namespace} describe pod {pod.name}, and its log",
        )
    if len(unready) > MOST_LINES:
        names = [pod.node or pod.name for pod in unready[MOST_LINES:]]
        yield problem(READINESS, f"and {counted(len(names), 'more agent')} not ready: {listed(names)}")
    terminating = [place(pod, now) for pod in pods if pod.is_terminating]
    if terminating:
        yield unknown(
            READINESS,
            f"{counted(len(terminating), 'agent')} terminating: {listed(terminating)}",
            "run doctor again; a pod that stays so is on a node whose kubelet does not answer",
        )
    elif pods and not unready:
        yield ok(READINESS, f"{counted(len(pods), 'agent')} ready")


def response_findings(readings: Sequence[AgentReading], now: datetime | None) -> Iterator[CheckResult]:
    """Yield findings about agents that do not answer; agents with the same failure share a line.

    Args:
        readings: one reading of each agent that is ready.
        now: the API server's time; None if it is unknown.
    """
    by_failure: defaultdict[tuple[str, str], list[AgentPod]] = defaultdict(list)
    for reading in readings:
        if reading.failure:
            by_failure[reading.failure, reading.missing_right].append(reading.pod)
    failures = []
    for (failure, missing_right), pods in sorted(by_failure.items()):
        what = f"{listed([place(pod, now) for pod in pods])}: {one_line(failure)}"
        if missing_right:
            failures.append(unknown(RESPONSES, what, f"grant the right to {missing_right}"))
        else:
            log = f"kubectl -n {pods[0].namespace} logs {pods[0].name}"
            failures.append(problem(RESPONSES, what, f"check the log: {log}"))
    yield from limited(failures, "more kind of failure", "more kinds of failures")
    if readings and not by_failure:
        count = counted(len(readings), "agent answers", "agents answer")
        yield ok(RESPONSES, f"{count} through the API server")


def attribution_findings(readings: Sequence[AgentReading]) -> Iterator[CheckResult]:
    """Yield the agents' problems, each with what to do first, and findings about figures that are missing.

    Args:
        readings: one reading of each agent that runs, ready or not.
    """
    answers = 0
    suspended: defaultdict[str, dict[str, str]] = defaultdict(dict)
    minor: defaultdict[str, dict[str, str]] = defaultdict(dict)
    stale, waiting, failed, unknown_memory = [], [], [], []
    for reading in readings:
        received = reading.received
        if received is None:
            continue
        answers += 1
        node, answer = reading.pod.node, received.answer
        for entry in answer.problems:
            kind = minor if entry.reason in SUSPENDS_NOTHING else suspended
            kind[one_line(entry.reason, _LONGEST_DETAIL)].setdefault(
                node, one_line(entry.detail, _LONGEST_DETAIL)
            )
        unknown_memory += _gpus_of_unknown_memory(node, answer)
        if answer.attribution_ok is None:
            waiting += [node] * reading.pod.is_ready
        elif not answer.attribution_ok and not answer.problems:
            failed.append(node)
        if received.age is not None and received.age > _STALE_SECONDS:
            stale.append(f"{node} ({duration(received.age)})")
    lines = []
    if failed:
        lines.append(problem(ATTRIBUTION, f"not possible on {listed(failed)}", "see the agent's log"))
    if stale:
        lines.append(problem(ATTRIBUTION, f"the figures are old: {listed(stale)}", "see the agent's log"))
    lines += [*_by_reason(suspended, problem), *_by_reason(minor, warning)]
    if unknown_memory:
        what = f"the memory of GPUs is unknown: {listed(unknown_memory)}"
        lines.append(warning(ATTRIBUTION, what, _UNKNOWN_MEMORY))
    if waiting:
        lines.append(unknown(ATTRIBUTION, f"no sample yet on {listed(waiting)}", "run doctor again"))
    yield from limited(lines, "more kind of problem", "more kinds of problems")
    if answers and not lines:
        count = counted(answers, "agent attributes", "agents attribute")
        yield ok(ATTRIBUTION, f"{count} all memory to pods")


def _gpus_of_unknown_memory(node: str, answer: AgentResponse) -> list[str]:
    return [
        f"GPU {gpu.index} of {one_line(node)}: {one_line(gpu.memory_unknown, _LONGEST_DETAIL)}"
        for gpu in answer.gpus
        if gpu.memory_unknown
    ]


def _by_reason(
    details: Mapping[str, Mapping[str, str]], make: Callable[[str, str, str], CheckResult]
) -> Iterator[CheckResult]:
    """Yield one finding for each reason, with its nodes and the detail of the first."""
    for reason, by_node in sorted(details.items()):
        first = by_node[min(by_node)]
        more = f": {first}" if first else ""
        step = FOR_PROBLEM.get(reason)  # the details of the other reasons have the remedy
        yield make(ATTRIBUTION, f"{reason} on {listed(by_node)}{more}", step.line if step else "")


def place(pod: AgentPod, now: datetime | None) -> str:
    """Name an agent by node, pod and age: `gpu-node-3 (pod kaishare-agent-x7k2p, 3 d old)`."""
    age = ""
    if now is not None and pod.created_at is not None:
        age = f", {duration(max((now - pod.created_at).total_seconds(), 0.0))} old"
    return f"{pod.node or 'no node'} (pod {pod.name}{age})"


_NAME: Final = "metadata.name"
_KEEPS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})
_OF_KUBERNETES: Final = "node.kubernetes.io/"
"""Prefix of the taints for a node's state, which the controller makes every pod of a DaemonSet tolerate."""


class _Toleration(Struct, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect not in ("", taint.effect) or (self.key and self.key != taint.key):
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


class _Term(Struct, rename="camel", frozen=True):
    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None

    def holds(self, labels: Mapping[str, str]) -> bool:
        lines = (*(self.match_expressions or ()), *(self.match_fields or ()))
        return bool(lines) and all(_holds(line, labels) for line in lines)


class _NodeSelector(Struct, rename="camel", frozen=True):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(Struct, frozen=True):
    required: _NodeSelector | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class _Affinity(Struct, rename="camel", frozen=True):
    node_affinity: _NodeAffinity | None = None


class _PodSpec(Struct, rename="camel", frozen=True):
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: list[_Toleration] | None = None


class _Template(Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _Spec(Struct, frozen=True):
    template: _Template = _Template()


class _Status(Struct, rename="camel", frozen=True):
    desired_number_scheduled: int = 0


class AgentDaemonSet(Struct, frozen=True):
    """The agents' DaemonSet."""

    metadata: ObjectMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def desired(self) -> int:
        """Number of nodes that should run an agent (DESIRED in kubectl)."""
        return self.status.desired_number_scheduled

    def obstacles(self, name: str, labels: Mapping[str, str], taints: tuple[Taint, ...]) -> Iterator[str]:
        """Yield why the DaemonSet places no pod on a node, with the value of the chart; nothing if it does.

        Args:
            name: the node's name.
            labels: the node's labels.
            taints: the node's taints.
        """
        spec = self.spec.template.spec
        for key, value in sorted((spec.node_selector or {}).items()):
            if labels.get(key) != value:
                yield f"no label {one_line(key)}={one_line(value)} (agent.nodeSelector)"
        affinity = spec.affinity.node_affinity if spec.affinity else None
        if affinity is not None and affinity.required is not None:
            fields = {**labels, _NAME: name}
            if not any(term.holds(fields) for term in affinity.required.node_selector_terms or ()):
                yield "not selected by the node affinity (agent.affinity)"
        for taint in taints:
            if (
                taint.effect in _KEEPS_AWAY
                and not taint.key.startswith(_OF_KUBERNETES)
                and not any(toleration.tolerates(taint) for toleration in spec.tolerations or ())
            ):
                yield f"taint {one_line(str(taint))} without a toleration (agent.tolerations)"


_daemon_set = msgspec.json.Decoder(AgentDaemonSet)


async def list_agent_daemon_sets(reader: ApiReader, namespace: str) -> ListResult[AgentDaemonSet]:
    """List the agents' DaemonSets in a namespace; a failed request is recorded in the reader."""
    spec = ListSpec(
        resource="daemonsets",
        group="apps",
        namespace=namespace,
        params={"labelSelector": AGENT_LABELS},
        without="why nodes have no agent is not known",
    )
    return await reader.list(spec, _daemon_set.decode)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Whether a requirement of a node affinity holds; it has the operators Gt and Lt, too."""
    if requirement.operator not in ("Gt", "Lt"):
        return requirement.holds(labels)
    try:
        actual, limit = int(labels.get(requirement.key, "")), int((requirement.values or [""])[0])
    except ValueError:
        return False
    return actual > limit if requirement.operator == "Gt" else actual < limit
