"""The command `doctor`: runs all checks with the caller's rights, once or until there is no problem."""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from inspect import isasyncgenfunction
from typing import Any, Final

from console.caller import (
    add_cluster_options,
    add_output,
    add_running_default_mode,
    parse_url,
    pod_or_cluster_access,
)
from console.cluster.agents import add_agent_options, parse_agent_options
from console.cluster.facts import Fact, FactReader, Why, not_visible_line
from console.doctor import (
    accounting,
    dry_run,
    gpu_supply,
    guard,
    kai_checks,
    node_checks,
    policy_checks,
    queues,
    registration,
    serving,
    sharing_checks,
)
from console.doctor.check_results import (
    CheckResult,
    State,
    exit_status,
    named,
    ok,
    problem,
    unknown,
    write_report,
)
from console.doctor.cluster_state import ClusterFacts, DoctorOptions, Scope, read_cluster
from console.help import anchor
from kube.access import Access, AccessError, InCluster
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from service.command import UsageError, add_namespace, read_by, write_warning
from service.log_writer import discard_library_logs
from service.text import MALFORMED, counted, listed, one_line
from service.units import parse_duration


@dataclass(frozen=True, slots=True)
class Check:
    """A check: a function over facts, which may ask the cluster for more: try, connect or read again."""

    name: str
    run: (
        Callable[[ClusterFacts], Iterator[CheckResult]]
        | Callable[[ClusterFacts, FactReader], AsyncIterator[CheckResult]]
    )
    scope: Scope = Scope.CLUSTER
    facts: tuple[str, ...] = ()  # the facts of `ClusterFacts` that the check cannot do without

    async def results(self, cluster: ClusterFacts, reader: FactReader) -> list[CheckResult]:
        """Return why the check could not run, and what it found."""
        found = []
        for name in self.facts:
            fact: Fact[object] = getattr(cluster, name)
            # What the caller may not see is one line of the report.
            is_needed = name in _NEEDED and fact.value is None
            if fact.line and fact.why is not Why.FORBIDDEN and (is_needed or fact.why is not Why.UNSERVED):
                found.append(problem(fact.line) if is_needed else unknown(fact.line))
        run: Callable[..., Any] = self.run
        if isasyncgenfunction(run):
            return [*found, *[result async for result in run(cluster, reader)]]
        return [*found, *run(cluster)]


_NEEDED: Final = ("mutating", "validating", "namespaces")
"""Facts without which the report means nothing: a request that fails is a problem, without an answer."""
_WHOLE, _PRE, _POLICY = Scope.CLUSTER, Scope.PRE, Scope.CLUSTER | Scope.NAMESPACE

_API_SERVER: Final = "API server"
_RIGHTS: Final = "rights"

CHECKS: Final[tuple[Check, ...]] = (
    Check(_API_SERVER, registration.kubernetes_is_supported, _PRE),
    Check(_RIGHTS, registration.caller_may_install, _PRE),
    Check("admission policies", registration.policies_stand, _POLICY),
    Check("installation", registration.webhook_exists, _POLICY),
    Check("mutating webhook", registration.mutating_as_shipped, _WHOLE, ("mutating",)),
    Check("validating webhooks", registration.validating_as_shipped, _WHOLE, ("validating",)),
    Check("order", registration.order_is_right),
    Check("webhook pods", serving.webhook_pods_are_ready, _WHOLE, ("webhook_pods",)),
    Check("certificate", serving.webhook_is_trusted),
    Check("settings", policy_checks.settings_are_published, _POLICY),
    Check("managed namespaces", policy_checks.namespaces_are_managed, _POLICY, ("namespaces",)),
    Check("enforce", policy_checks.enforce_is_enforced, _POLICY),
    Check("policies", policy_checks.labels_are_valid, _POLICY),
    Check("dry run of a pod", dry_run.pods_are_changed, _POLICY),
    Check("queues", queues.queues_are_usable, _POLICY | _PRE, ("queues",)),
    Check("queues", queues.waiting_pods_have_queues, _POLICY),
    Check("queues", queues.queues_can_be_named, _PRE),
    Check("priorities", queues.priorities_exist, _POLICY | _PRE, ("priorities",)),
    Check("PodGroups", queues.groups_are_in_their_queue, _POLICY, ("pod_groups",)),
    Check("limit ranges", policy_checks.no_gpu_by_default, _POLICY, ("limit_ranges",)),
    Check("vClusters", policy_checks.hosts_are_labelled, _WHOLE, ("synced",)),
    Check("vClusters", kai_checks.no_kai_inside_vclusters),
    Check("guard", guard.guard_stands),
    Check("KAI's version", kai_checks.release_fits, _WHOLE | _PRE),
    Check("KAI's GPU sharing", kai_checks.sharing_is_on, _WHOLE | _PRE),
    Check("NvFractions", sharing_checks.limits_can_hold),
    Check("Run:ai's keys", sharing_checks.run_ai_keys, _POLICY, ("waiting",)),
    Check("kai-resource-management", sharing_checks.resource_management, _WHOLE | _PRE),
    Check("KAI's queue label", kai_checks.label_is_read, _WHOLE | _PRE),
    Check("KAI's webhook", kai_checks.kai_sees_the_pods, _WHOLE | _PRE),
    Check("pods without KAI's webhook", kai_checks.kai_saw_the_pods),
    Check("RuntimeClass", kai_checks.runtime_classes_exist, _WHOLE | _PRE),
    Check("autoscaling", kai_checks.nodes_are_added),
    Check("accounting", accounting.requests_add_up),
    Check("distributed jobs", gpu_supply.ranks_are_apart, _WHOLE, ("notable",)),
    Check("pending pods", queues.pods_get_nodes, _POLICY, ("waiting",)),
    Check("node labels", node_checks.nodes_are_labelled, _WHOLE | _PRE, ("nodes",)),
    Check("plain GPUs", gpu_supply.gpus_are_plain, _WHOLE | _PRE, ("nodes",)),
    Check("resource claims", gpu_supply.devices_are_given_once),
    Check("agents", node_checks.agents_work),
    Check("managed namespaces", policy_checks.namespaces_would_be_managed, _PRE, ("namespaces",)),
)
"""All checks, in the order of the report."""

_EVERY_SECONDS: Final = 5.0  # pause between two rounds of `--wait`
_READ_SECONDS: Final = 60.0  # time limit of one request for facts; a list may have thousands of objects
_PAGE: Final = "docs/doctor.md"
_NOTHING_ELSE: Final = "nothing else was checked"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Checks webhook, policies, KAI and agents. Exits with 1 if there is a problem."
    add_cluster_options(command)
    command.add_argument(
        "--webhook-configuration",
        default=DoctorOptions().name,
        metavar="NAME",
        help="name of kaishare's webhook configurations (default %(default)s)",
    )
    add_running_default_mode(command)
    add_output(command, "text", "json")
    add_agent_options(command)
    command.add_argument(
        "--prometheus",
        type=read_by(parse_url),
        metavar="URL",
        help="address of the Prometheus that should scrape the agents (default: as for advise)",
    )
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
    scope = Scope.PRE if arguments.pre else Scope.CLUSTER if arguments.namespace is None else Scope.NAMESPACE
    options = DoctorOptions(
        name=arguments.webhook_configuration,
        default_mode=arguments.default_mode,
        scope=scope,
        namespace=arguments.namespace or "",
        is_inside=isinstance(access, InCluster),
        agents=parse_agent_options(arguments),
        prometheus=arguments.prometheus or "",
    )
    ends_at = time.monotonic() + (arguments.wait or 0.0)
    reported = ""
    while True:
        findings = await examine(access, options)
        remaining = ends_at - time.monotonic()
        if not exit_status(findings) or remaining <= 0:
            return access.server, findings
        checks = [finding.check for finding in findings if finding.state is State.PROBLEM]
        summary = f"{counted(len(checks), 'problem')}: {listed(set(checks))}"
        if summary != reported:
            reported = summary
            write_warning(f"{arguments.program}: waiting: {summary}")
        await asyncio.sleep(min(_EVERY_SECONDS, remaining))


async def examine(access: Access, options: DoctorOptions) -> list[CheckResult]:
    """Run all checks; each finding but `ok` has a link to the documentation."""
    async with KubeClient(access) as client:
        reached, release = await reach(client)
        results = [*named(_API_SERVER, [reached])]
        if reached.state is not State.PROBLEM:
            reader = FactReader(client, seconds=_READ_SECONDS)
            cluster = replace(await read_cluster(reader, options), release=release)
            results += await run_checks(cluster, reader)
        links = {each.check: f"{_PAGE}#{anchor(each.check)}" for each in results}
        return [each if each.state is State.OK else replace(each, docs=links[each.check]) for each in results]


async def run_checks(cluster: ClusterFacts, reader: FactReader) -> list[CheckResult]:
    """Run the checks of the cluster's scope, and say what could not be read."""
    results: list[CheckResult] = []
    for check in CHECKS:
        if cluster.options.scope in check.scope:
            results += named(check.name, await check.results(cluster, reader))
    reported = {result.what for result in results}
    results += named(_API_SERVER, (unknown(note) for note in reader.notes if note not in reported))
    if reader.missing_rights:
        rights = ", ".join(dict.fromkeys(missing.right for missing in reader.missing_rights))
        what = f"{not_visible_line(reader.not_visible)}; the checks of these objects did not run"
        advice = f"the rights to ask for: {rights}"
        if cluster.namespaces.why is Why.FORBIDDEN and not cluster.options.namespace:
            advice = f"kaishare doctor -n NAMESPACE checks one namespace with your rights; {advice}"
        results.append(unknown(what, advice, check=_RIGHTS))
    return results


async def reach(client: KubeClient) -> tuple[CheckResult, tuple[int, int] | None]:
    """Return whether the API server answers, and its release, such as (1, 30); None if it is not known.

    No other request is answered without accepted credentials, or by a proxy with a log-in page.
    """
    try:
        return ok(f"{client.server} answers"), await client.release()
    except ApiError as error:
        if error.is_unauthorized:
            refused = f"{client.server} does not accept your credentials: {error.status} {error.reason}"
            return problem(refused, f"log in again; {_NOTHING_ELSE}"), None
        if not 300 <= error.status < 400:  # other requests may still be allowed
            return ok(f"{client.server} answers (no version: {error})"), None
        answer = str(error)
    except (Unreachable, AccessError) as error:
        return problem(f"{client.server}: {error}", _NOTHING_ELSE), None
    except MALFORMED as error:
        answer = f"GET /version: {one_line(str(error))}"
    what = f"{client.server} answers, but not as an API server: {answer}"
    return problem(what, f"compare the address with that of your kubeconfig; {_NOTHING_ELSE}"), None
