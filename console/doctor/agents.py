"""Checks of the agents: their pods, their responses through the API server, and their attribution. Pure.

Every text of an agent is untrusted and is printed as one line.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from console.agents import AgentPod, AgentReadiness, AgentReading
from gpuagent.problems import SUSPENDS_NOTHING
from service.check_results import CheckResult, limited, ok, problem, unknown, warning
from service.text import MOST_LINES, counted, listed, one_line
from service.units import duration

READINESS: Final = "agent readiness"
RESPONSES: Final = "agent responses"
ATTRIBUTION: Final = "attribution"

_STALE_SECONDS: Final = 120.0
"""Age of figures that are reported; the agent's default interval is 5 s."""
_LONGEST_DETAIL: Final = 200  # characters


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
    """Yield findings about figures that are stale or not attributed to pods."""
    answers = 0
    suspended: defaultdict[str, dict[str, str]] = defaultdict(dict)
    minor: defaultdict[str, dict[str, str]] = defaultdict(dict)
    stale, waiting, failed = [], [], []
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
        if answer.attribution_ok is None:
            waiting.append(node)
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
    if waiting:
        lines.append(unknown(ATTRIBUTION, f"no sample yet on {listed(waiting)}", "run doctor again"))
    yield from limited(lines, "more kind of problem", "more kinds of problems")
    if answers and not lines:
        count = counted(answers, "agent attributes", "agents attribute")
        yield ok(ATTRIBUTION, f"{count} all memory to pods")


def _by_reason(
    details: Mapping[str, Mapping[str, str]], make: Callable[[str, str, str], CheckResult]
) -> Iterator[CheckResult]:
    """Yield one finding for each reason, with its nodes and the detail of the first."""
    for reason, by_node in sorted(details.items()):
        first = by_node[min(by_node)]
        more = f": {first}" if first else ""
        yield make(
            ATTRIBUTION,
            f"{reason} on {listed(by_node)}{more}",
            "docs/metrics.md describes the reasons; run kaishare-agent doctor in the agent's pod",
        )


def place(pod: AgentPod, now: datetime | None) -> str:
    """Name an agent by node, pod and age: `gpu-node-3 (pod kaishare-agent-x7k2p, 3 d old)`."""
    age = ""
    if now is not None and pod.created_at is not None:
        age = f", {duration(max((now - pod.created_at).total_seconds(), 0.0))} old"
    return f"{pod.node or 'no node'} (pod {pod.name}{age})"
