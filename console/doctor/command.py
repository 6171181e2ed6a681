"""The command `doctor`: runs all checks with the caller's rights, once or until there is no problem."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from console.agent_options import AgentOptions
from console.agents import AGENT_SECONDS, AgentPod, Agents
from console.cluster import ClusterOptions
from console.doctor.agents import attribution_findings, pod_findings, response_findings
from console.doctor.installation import examine_before
from console.doctor.links import link_of
from console.doctor.nodes import AGENTS, node_findings, read_gpu_nodes
from console.doctor.releases import read_webhook_versions, release_findings
from kube.access import Access, AccessError
from kube.check import API_SERVER
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.check_results import CheckResult, State, exit_status, problem, unknown, write_report
from service.command import UsageError, write_note
from service.log import JsonLog
from service.log_capture import capture_libraries
from service.text import counted, listed, one_line
from service.version import version
from webhook.doctor.api_reader import ApiReader
from webhook.doctor.command import examine as examine_webhook
from webhook.policy.labels import Mode
from webhook.registration.configurations import CONFIGURATION_NAME

_EVERY_SECONDS: Final = 5.0
"""Pause between two rounds of `--wait`."""

_FORBIDDEN: Final = 403
_AGENTS: Final = AgentOptions()


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
    """The webhook's --default-mode; None reads it from the webhook's Deployment."""
    is_before: bool = False
    """Whether to check what an installation needs, before there is one."""
    wait_seconds: float | None = None
    """Time to repeat the checks until there is no problem; None to run them once."""


def run(settings: DoctorSettings) -> int:
    """Run all checks and print the findings; return 1 if there is a problem, else 0.

    Raises:
        UsageError: no access to a cluster is configured, or standard output cannot be written.
    """
    capture_libraries(JsonLog(io.BytesIO()))  # the checks report the errors that libraries would log
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
        findings = [finding async for finding in examine(access, settings)]
        remaining = ends_at - time.monotonic()
        if not exit_status(findings) or remaining <= 0:
            return access.server, findings
        summary = _summary(findings)
        if summary != reported:
            reported = summary
            write_note(f"{settings.program}: waiting: {summary}")
        await asyncio.sleep(min(_EVERY_SECONDS, remaining))


def _summary(findings: Sequence[CheckResult]) -> str:
    checks = [finding.check for finding in findings if finding.state is State.PROBLEM]
    return f"{counted(len(checks), 'problem')}: {listed(set(checks))}"


async def examine(access: Access, settings: DoctorSettings) -> AsyncIterator[CheckResult]:
    """Run all checks; each finding but `ok` has a link to the documentation.

    Args:
        access: the API server and the caller's credentials.
        settings: the settings of the command.
    """
    async for finding in _findings(access, settings):
        yield finding if finding.state is State.OK else replace(finding, docs=link_of(finding.check))


async def _findings(access: Access, settings: DoctorSettings) -> AsyncIterator[CheckResult]:
    if settings.is_before:
        async for finding in examine_before(access, settings.configuration, settings.default_mode):
            yield finding
        return
    async for finding in examine_webhook(access, settings.configuration, settings.default_mode):
        yield finding
        if finding.check == API_SERVER and finding.state is State.PROBLEM:
            return
    async with KubeClient(access) as client:
        reader = ApiReader(client)
        async for finding in _agent_findings(reader, settings):
            yield finding
        for finding in reader.missing:
            yield finding


async def _agent_findings(reader: ApiReader, settings: DoctorSettings) -> AsyncIterator[CheckResult]:
    agents = Agents(reader.client, options=settings.agents, seconds=settings.agent_seconds)
    nodes = await read_gpu_nodes(reader)
    pods: list[AgentPod] = []
    try:
        pods = await agents.list()
    except (ApiError, Unreachable, AccessError) as error:
        yield _not_listed(error, settings.agents.namespace)
        with_agent = None
    else:
        with_agent = frozenset(pod.node for pod in pods)
        if not pods:
            yield _no_agents(settings.agents.namespace, has_gpus=bool(nodes.items))
    for finding in node_findings(nodes, with_agent if pods else None):
        yield finding
    now = reader.client.server_time()
    started = [pod for pod in pods if pod.node and not pod.is_terminating]
    unready = [pod for pod in started if not pod.is_ready and pod.is_running]
    for finding in pod_findings(pods, await asyncio.gather(*map(agents.ready, unready)), now):
        yield finding
    readings = await asyncio.gather(*(agents.read(pod) for pod in started if pod.is_ready))
    for finding in (*response_findings(readings, now), *attribution_findings(readings)):
        yield finding
    webhooks = await read_webhook_versions(reader, settings.configuration)
    for finding in release_findings(pods, webhooks, version()):
        yield finding


def _no_agents(namespace: str, *, has_gpus: bool) -> CheckResult:
    make = problem if has_gpus else unknown
    return make(
        AGENTS,
        f"no agent found in namespace {namespace}; the usage of GPUs is unknown",
        "install the chart with agent.enabled, or name the namespace with --agent-namespace",
    )


def _not_listed(error: Exception, namespace: str) -> CheckResult:
    if isinstance(error, ApiError) and error.status == _FORBIDDEN:
        return unknown(
            AGENTS,
            f"not checked: the caller may not list pods in {namespace}",
            f"grant the rights to list pods and to get pods/proxy in {namespace}",
        )
    return unknown(AGENTS, f"not checked: {one_line(str(error))}")
