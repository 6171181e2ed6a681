"""The command `doctor`: runs all checks with the caller's rights, once or until there is no problem."""

import asyncio
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from console.agent_options import AgentOptions
from console.agents import AGENT_SECONDS, AgentPod, Agents
from console.cluster import ClusterOptions
from console.doctor.agents import attribution_findings, pod_findings, response_findings
from console.doctor.daemon_sets import AgentDaemonSet, list_agent_daemon_sets
from console.doctor.installation import installation_findings, release_finding, right_finding
from console.doctor.nodes import AGENTS, node_findings
from console.doctor.pending_pods import pending_findings
from console.doctor.releases import release_findings
from kube.access import Access, AccessError
from kube.client import KubeClient
from kube.doctor_checks import reach
from kube.errors import REQUEST_ERRORS, ApiError
from service.check_results import CheckResult, State, exit_status, problem, unknown, write_report
from service.command import UsageError, write_warning
from service.log_capture import discard_library_logs
from service.text import counted, listed, one_line
from service.version import version
from webhook.doctor.api_reader import ApiReader, ListSpec
from webhook.doctor.cluster import Cluster, read_cluster
from webhook.doctor.command import policy_findings, webhook_findings
from webhook.doctor.registration import registration_findings
from webhook.policy.labels import Mode
from webhook.registration.configurations import CONFIGURATION_NAME

_EVERY_SECONDS: Final = 5.0
"""Pause between two rounds of `--wait`."""

_AGENTS: Final = AgentOptions()
_PAGE: Final = "docs/doctor.md"
FAILED_REQUESTS: Final = "rights"
"""Section for findings about requests that failed, which are named after a resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings:
    """The settings of `doctor`."""

    cluster: ClusterOptions
    program: str = "kaishare"
    """Name of the running command, for messages."""
    configuration: str = CONFIGURATION_NAME
    agents: AgentOptions = _AGENTS
    agent_seconds: float = AGENT_SECONDS
    """Time limit of one request to an agent."""
    output: str = "text"
    """`text` or `json`."""
    default_mode: Mode | None = None
    """The webhook's --default-mode; None reads it from the cluster."""
    namespace: str | None = None
    """The only namespace to check; None for the whole cluster."""
    is_before: bool = False
    """Whether to check what an installation needs, before there is one."""
    wait_seconds: float | None = None
    """Time to repeat the checks until there is no problem; None to run them once."""


def run(settings: DoctorSettings) -> int:
    """Run all checks and print the findings; return 1 if there is a problem, else 0.

    Raises:
        UsageError: no access to a cluster is configured, or standard output cannot be written.
    """
    discard_library_logs()
    server, findings = asyncio.run(_run(settings))
    about = {
        "server": server,
        "configuration": settings.configuration,
        "agentNamespace": settings.agents.namespace,
    }
    return write_report(findings, output=settings.output, about=about)


async def _run(settings: DoctorSettings) -> tuple[str, list[CheckResult]]:
    try:
        access = await settings.cluster.access()
    except AccessError as error:
        raise UsageError(f"no cluster: {error}") from None
    ends_at = time.monotonic() + (settings.wait_seconds or 0.0)
    reported = ""
    while True:
        findings = await examine(access, settings)
        remaining = ends_at - time.monotonic()
        if not exit_status(findings) or remaining <= 0:
            return access.server, findings
        summary = _summary(findings)
        if summary != reported:
            reported = summary
            write_warning(f"{settings.program}: waiting: {summary}")
        await asyncio.sleep(min(_EVERY_SECONDS, remaining))


def _summary(findings: Sequence[CheckResult]) -> str:
    checks = [finding.check for finding in findings if finding.state is State.PROBLEM]
    return f"{counted(len(checks), 'problem')}: {listed(set(checks))}"


async def examine(access: Access, settings: DoctorSettings) -> list[CheckResult]:
    """Run all checks; each finding but `ok` has a link to the documentation.

    Args:
        access: the API server and the caller's credentials.
        settings: the settings of the command.
    """
    async with KubeClient(access) as client:
        reached, release = await reach(client, without="nothing else was checked")
        if reached.state is State.PROBLEM:
            return [with_link(reached)]
        findings = [reached]
        if settings.is_before:
            findings += [release_finding(release), await right_finding(client)]
        reader = ApiReader(client, settings.namespace)
        cluster = await read_cluster(reader, settings.configuration, settings.default_mode)
        if settings.is_before:
            findings += await installation_findings(reader, cluster)
        elif settings.namespace is not None:
            findings += registration_findings(cluster) if cluster.is_absent else ()
            findings += await policy_findings(reader, cluster)
            findings += await pending_findings(reader, cluster)
        else:
            findings += await webhook_findings(reader, cluster, is_inside=False)
            findings += await pending_findings(reader, cluster)
            findings += await _agent_findings(reader, cluster, settings)
        failed = (with_link(finding, FAILED_REQUESTS) for finding in reader.missing)
        return [*map(with_link, findings), *failed]


async def _agent_findings(reader: ApiReader, cluster: Cluster, settings: DoctorSettings) -> list[CheckResult]:
    findings: list[CheckResult] = []
    agents = Agents(reader.client, options=settings.agents, seconds=settings.agent_seconds)
    namespace = settings.agents.namespace
    has_gpus = any(node.has_gpus for node in cluster.nodes.items)
    pods: list[AgentPod] = []
    with_agent: Collection[str] | None = None
    daemon_sets: Sequence[AgentDaemonSet] = ()
    try:
        pods = await agents.list()
    except REQUEST_ERRORS as error:
        if isinstance(error, ApiError) and error.is_forbidden:
            without = "the agents were not checked"
            reader.refuse(ListSpec(resource="pods", namespace=namespace, without=without))
        else:
            findings.append(unknown(AGENTS, f"not checked: {one_line(str(error))}"))
    else:
        daemon_sets = (await list_agent_daemon_sets(reader, namespace)).items
        if pods or daemon_sets:
            with_agent = frozenset(pod.node for pod in pods)
        elif not cluster.is_absent:
            findings.append(_no_agents(namespace, has_gpus=has_gpus))
        if daemon_sets and not pods and not has_gpus:
            findings.append(unknown(AGENTS, f"DaemonSet {daemon_sets[0].metadata.name} selects no node"))
    now = reader.client.server_time()
    started = [pod for pod in pods if pod.node and not pod.is_terminating]
    unready = [pod for pod in started if not pod.is_ready and pod.is_running]
    readiness = await asyncio.gather(*map(agents.ready, unready))
    readings = await asyncio.gather(*(agents.read(pod) for pod in started if pod.is_ready))
    published = cluster.running.published
    release = published.version if published else ""
    return [
        *findings,
        *node_findings(cluster.nodes, with_agent, daemon_sets),
        *pod_findings(pods, readiness, now),
        *response_findings(readings, now),
        *attribution_findings(readings),
        *release_findings(pods, cluster.webhook_pods.items, release, version()),
    ]


def _no_agents(namespace: str, *, has_gpus: bool) -> CheckResult:
    make = problem if has_gpus else unknown
    return make(
        AGENTS,
        f"no agent found in namespace {namespace}; the usage of GPUs is unknown",
        "install the chart with agent.enabled, or name the namespace with --agent-namespace",
    )


def with_link(finding: CheckResult, section: str = "") -> CheckResult:
    """Return a finding with the place that describes it, unless it is `ok`.

    Args:
        finding: the finding.
        section: heading of the place; empty for the name of the check.
    """
    if finding.state is State.OK:
        return finding
    return replace(finding, docs=f"{_PAGE}#{anchor(section or finding.check)}")


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
