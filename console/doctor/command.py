"""The command `doctor`: runs all checks with the caller's rights, once or until there is no problem."""

import argparse
import asyncio
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from console.agents import AgentOptions, AgentPod, Agents, add_agent_options, parse_agent_options
from console.caller import add_cluster_options, add_running_default_mode, pod_or_cluster_access
from console.doctor.agent_checks import (
    AgentDaemonSet,
    attribution_findings,
    list_agent_daemon_sets,
    pod_findings,
    release_findings,
    response_findings,
)
from console.doctor.api_reader import ApiReader, ListSpec
from console.doctor.check_results import CheckResult, State, exit_status, problem, unknown, write_report
from console.doctor.cluster_checks import policy_findings, webhook_findings
from console.doctor.cluster_state import Cluster, read_cluster
from console.doctor.gpu_nodes import AGENTS, node_findings
from console.doctor.pending_pods import pending_findings
from console.doctor.prerequisites import installation_findings, release_finding, right_finding
from console.doctor.registration_checks import registration_findings
from console.doctor.shared_checks import reach
from kube.access import Access, AccessError, InCluster
from kube.answers import REQUEST_ERRORS, ApiError
from kube.client import KubeClient
from service.command import UsageError, add_namespace, read_by, write_warning
from service.log_writer import discard_library_logs
from service.text import counted, listed, one_line
from service.units import parse_duration
from service.version import version
from webhook.registration.configurations import CONFIGURATION_NAME

_EVERY_SECONDS: Final = 5.0
"""Pause between two rounds of `--wait`."""

_PAGE: Final = "docs/doctor.md"
FAILED_REQUESTS: Final = "rights"
"""Section for findings about requests that failed, which are named after a resource."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `doctor`."""
    command.description = "Checks webhook, policies, KAI and agents. Exits with 1 if there is a problem."
    add_cluster_options(command)
    command.add_argument(
        "--webhook-configuration",
        default=CONFIGURATION_NAME,
        metavar="NAME",
        help="name of kaishare's webhook configurations (default %(default)s)",
    )
    add_running_default_mode(command)
    command.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format (default %(default)s)"
    )
    add_agent_options(command)
    command.add_argument(
        "--wait",
        nargs="?",
        const="5m",
        type=read_by(parse_duration),
        metavar="DURATION",
        help="repeat the checks until there is no problem, for at most this time (default without a value:"
        " 5m)",
    )
    add_namespace(
        command, "check the policy of this namespace only, with rights in it (default: the whole cluster)"
    )
    command.add_argument(
        "--pre",
        action="store_true",
        help="check what an installation of kaishare needs and would change, before there is one",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run all checks and print the findings; return 1 if there is a problem, else 0.

    Raises:
        UsageError: two options exclude each other, no access to a cluster is configured, or standard output
            cannot be written.
    """
    if arguments.pre and arguments.namespace is not None:
        raise UsageError("give --pre or --namespace, not both")
    discard_library_logs()
    server, findings = asyncio.run(_run(arguments))
    about = {
        "server": server,
        "configuration": arguments.webhook_configuration,
        "agentNamespace": arguments.agent_namespace,
    }
    return write_report(findings, output=arguments.output, about=about)


async def _run(arguments: argparse.Namespace) -> tuple[str, list[CheckResult]]:
    try:
        access = await pod_or_cluster_access(arguments)
    except AccessError as error:
        raise UsageError(f"no cluster: {error}") from None
    ends_at = time.monotonic() + (arguments.wait or 0.0)
    reported = ""
    while True:
        findings = await examine(access, arguments)
        remaining = ends_at - time.monotonic()
        if not exit_status(findings) or remaining <= 0:
            return access.server, findings
        summary = _summary(findings)
        if summary != reported:
            reported = summary
            write_warning(f"{arguments.program}: waiting: {summary}")
        await asyncio.sleep(min(_EVERY_SECONDS, remaining))


def _summary(findings: Sequence[CheckResult]) -> str:
    checks = [finding.check for finding in findings if finding.state is State.PROBLEM]
    return f"{counted(len(checks), 'problem')}: {listed(set(checks))}"


async def examine(access: Access, arguments: argparse.Namespace) -> list[CheckResult]:
    """Run all checks; each finding but `ok` has a link to the documentation.

    Args:
        access: the API server and the caller's credentials.
        arguments: the options of the command.
    """
    async with KubeClient(access) as client:
        reached, release = await reach(client, without="nothing else was checked")
        if reached.state is State.PROBLEM:
            return [with_link(reached)]
        findings = [reached]
        if arguments.pre:
            findings += [release_finding(release), await right_finding(client)]
        reader = ApiReader(client, arguments.namespace)
        cluster = await read_cluster(reader, arguments.webhook_configuration, arguments.default_mode)
        if arguments.pre:
            findings += await installation_findings(reader, cluster)
        elif arguments.namespace is not None:
            findings += registration_findings(cluster) if cluster.is_absent else ()
            findings += await policy_findings(reader, cluster)
            findings += await pending_findings(reader, cluster)
        else:
            findings += await webhook_findings(reader, cluster, is_inside=isinstance(access, InCluster))
            findings += await pending_findings(reader, cluster)
            findings += await _agent_findings(reader, cluster, parse_agent_options(arguments))
        failed = (with_link(finding, FAILED_REQUESTS) for finding in reader.missing)
        return [*map(with_link, findings), *failed]


async def _agent_findings(reader: ApiReader, cluster: Cluster, options: AgentOptions) -> list[CheckResult]:
    findings: list[CheckResult] = []
    agents = Agents(reader.client, options=options)
    namespace = options.namespace
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
        elif not cluster.is_absent or cluster.is_by_policies:
            findings.append(_no_agents(namespace, has_gpus=has_gpus))
        if daemon_sets and not pods and not has_gpus:
            findings.append(unknown(AGENTS, f"DaemonSet {daemon_sets[0].metadata.name} selects no node"))
    now = reader.client.server_time()
    started = [pod for pod in pods if pod.node and not pod.is_terminating]
    unready = [pod for pod in started if not pod.is_ready and pod.is_running]
    readiness = await asyncio.gather(*map(agents.ready, unready))
    readings = await asyncio.gather(*(agents.read(pod) for pod in started if pod.is_ready))
    of_unready = await asyncio.gather(*map(agents.read, unready))
    published = cluster.running.published
    release = published.version if published else ""
    return [
        *findings,
        *node_findings(cluster.nodes, with_agent, daemon_sets),
        *pod_findings(pods, readiness, now),
        *response_findings(readings, now),
        *attribution_findings([*readings, *of_unready]),
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
