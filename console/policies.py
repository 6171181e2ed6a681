"""The command `policies`: the policy of each managed namespace, and where its pods are scheduled."""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import yaml

from console.caller import add_cluster_options, add_output, add_running_default_mode, cluster_access
from console.cluster.facts import FactReader
from console.cluster.webhook import (
    VIEW_IS_ENOUGH,
    does_not_exist,
    fetch_namespaces,
    may_not_get,
    may_not_list,
    pod_queues,
    read_scope,
)
from console.text_table import natural_widths, paint, shown_widths, table_lines
from kai import keys
from kube.answers import ApiError
from kube.client import KubeClient
from kube.kinds import PODS, Pod
from service.command import (
    DEFAULT_COLUMNS,
    add_namespace,
    columns_of,
    write_lines,
    write_output,
    write_warning,
)
from service.log_writer import discard_library_logs
from service.text import fold, one_line
from webhook.namespaces.file_policies import PoliciesError
from webhook.namespaces.policy_source import MANAGED
from webhook.policy.label_values import PolicyShare
from webhook.policy.labels import Mode, NamespacePolicy, PolicyMetadata, policy_json, with_queue_problem

_RUNNING: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
_LIST_SECONDS: Final = 120.0
_INSTEAD: Final = "policies -n NAMESPACE shows one namespace with your rights"


class PolicyRow(NamedTuple):
    """One managed namespace. Its policy has no effect if the webhook's configuration excludes it."""

    policy: NamespacePolicy
    is_excluded: bool
    pods: dict[str, int] | None  # that have not ended, with KAI and with others; None if they were not listed


async def read_policies(
    client: KubeClient, namespace: str | None, default_mode: Mode | None = None
) -> tuple[list[PolicyRow], list[str]]:
    """Read the policies of all managed namespaces, or of one, by name; return also notes, one line each."""
    scope = await read_scope(client, default_mode)
    without_effect = list[str]()
    labelled = sorted((await _namespaces(client, namespace, without_effect)).items())
    parsed = ((name, metadata.policy(name, scope.default_mode)) for name, metadata in labelled)
    queues = await pod_queues(FactReader(client))
    policies = {name: with_queue_problem(policy, queues) for name, policy in parsed if policy}
    counts = {name: {"inKai": 0, "notInKai": 0} for name in policies}

    def count(document: bytes) -> Pod | None:
        """Count a pod and keep none, so that memory holds one at a time."""
        pod = PODS.decode(document)
        if policy := policies.get(pod.metadata.namespace):
            is_in_kai = pod.spec.scheduler_name == policy.scheduler
            counts[policy.namespace]["inKai" if is_in_kai else "notInKai"] += 1
        return None

    notes, pods = [*scope.notes, *without_effect], None
    if policies:
        reader = FactReader(client, seconds=_LIST_SECONDS)
        pods = await reader.list(PODS, namespace or "", query=_RUNNING, decode=count)
        notes += [] if pods.is_known else [f"pods were not counted: {pods.line}"]
    is_counted = pods is not None and pods.is_known
    rows = [
        PolicyRow(policy, name in scope.excluded, counts[name] if is_counted else None)
        for name, policy in policies.items()
    ]
    return rows, notes


async def _namespaces(
    client: KubeClient, namespace: str | None, notes: list[str]
) -> Mapping[str, PolicyMetadata]:
    """Return the namespaces with the label of a queue, or one namespace."""
    try:
        return await fetch_namespaces(client, namespace, MANAGED, notes=notes)
    except ApiError as error:
        if error.is_forbidden and namespace:
            raise PoliciesError(f"{may_not_get(namespace)}: {VIEW_IS_ENOUGH}") from None
        if error.is_forbidden:
            raise PoliciesError(may_not_list(error, _INSTEAD)) from None
        if error.is_not_found and namespace:
            raise PoliciesError(does_not_exist(namespace)) from None
        raise


_NONE: Final = "-"
_LONGEST_CELL: Final = 2000  # characters; sixteen sizes have at most 1000
# Smallest width of a column (0: cells are not shortened) by the name of its values.
_COLUMNS: Final = {
    "namespace": 9, "queue": 6, "mode": 0, "share": 0, "sizes": 5, "caps": 0, "pods in KAI": 0, "problems": 0,
}  # fmt: skip


def _share(share: PolicyShare | None) -> str:
    if share is None:
        return _NONE
    return f"{share.value}MiB" if share.annotation == keys.GPU_MEMORY else share.value


def _sizes(policy: NamespacePolicy) -> list[str]:
    return [
        one_line(f"{size.name}={'invalid' if size.problem else _share(size.share) if size.share else '1'}")
        for _, size in sorted(policy.sizes.by_name.items())
    ]


def _cells(row: PolicyRow) -> dict[str, str]:
    policy, grace, pods = row.policy, row.policy.over_share_grace_seconds, row.pods
    fraction = [] if policy.max_fraction is None else [f"{policy.max_fraction:g}"]
    memory = [] if policy.max_memory_mib is None else [f"{policy.max_memory_mib}MiB"]
    values = {
        "namespace": policy.namespace,
        "queue": policy.queue or "invalid",
        "mode": "excluded" if row.is_excluded else policy.mode.value,
        "scheduler": policy.scheduler,
        "share": _share(policy.share),
        "share-for": policy.share_for.value,
        "sizes": ",".join(_sizes(policy)) or _NONE,
        "caps": ",".join([*fraction, *memory]) or _NONE,
        "distributed": policy.distributed.value,
        "priority": policy.priority or _NONE,
        "toleration": "inject" if policy.inject_toleration else _NONE,
        "over-share": policy.over_share.value,
        "grace": _NONE if grace is None else f"{grace}s",
        "pods in KAI": f"{pods['inKai']}/{sum(pods.values())}" if pods else "?",
        "problems": str(len(policy.problems) + policy.more_problems),
    }
    return {name: one_line(value, _LONGEST_CELL) for name, value in values.items()}


def as_table(
    rows: Sequence[PolicyRow], *, wide: bool = False, columns: int = DEFAULT_COLUMNS
) -> Iterator[str]:
    """Yield the lines of a table, cut to fit a terminal, and those of each problem; `wide` has all, whole."""
    if not rows:
        yield from fold(f"No namespace is managed: none has the label {keys.QUEUE_LABEL}.", columns)
        return
    cells = [_cells(row) for row in rows]
    names = list(cells[0] if wide else _COLUMNS)
    table = [[name.upper().replace(" ", "-") for name in names]]
    table += [[each[name] for name in names] for each in cells]
    widths = natural_widths(table) if wide else shown_widths(table, columns, list(_COLUMNS.values()))
    yield from table_lines(table, widths)
    for policy in (row.policy for row in rows):
        problems = [one_line(str(problem)) for problem in policy.problems]
        if policy.more_problems:
            problems.append(f"and {policy.more_problems} more invalid labels or selectors")
        for problem in problems:
            for line in fold(f"problem: {one_line(policy.namespace)}: {problem}", columns, indent="  "):
                yield paint(line, "-")


def as_document(rows: Sequence[PolicyRow], output: str) -> str:
    """Format the policies as a list in ASCII, `json` or `yaml`, as the webhook's `/policies`."""
    documents = []
    for row in rows:
        state = {"state": "excluded"} if row.is_excluded else {}
        more = {"moreProblems": row.policy.more_problems, "pods": row.pods}
        documents.append({**policy_json(row.policy), **state, **more})
    text = json.dumps(documents, indent=2) + "\n"
    # PyYAML represents no enums.
    return text if output == "json" else str(yaml.safe_dump(json.loads(text), sort_keys=False, width=1000))


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `policies`."""
    command.description = "Lists the policy of each managed namespace. Exits with 1 if a policy is invalid."
    add_cluster_options(command)
    add_namespace(command, "show this namespace only (default: all managed namespaces)")
    add_output(command, "table", "wide", "json", "yaml", note="; wide is a table of all values")
    add_running_default_mode(command)


def run(arguments: argparse.Namespace) -> int:
    """Print the policies; return 1 if one is invalid, else 0. Raises as `read_policies`."""
    discard_library_logs()
    rows, notes = asyncio.run(_read(arguments))
    columns = columns_of(sys.stdout)
    if arguments.output in ("json", "yaml"):
        write_output(as_document(rows, arguments.output))
    elif arguments.namespace is not None and not rows:
        sentence = f"Namespace {arguments.namespace} is not managed: no label {keys.QUEUE_LABEL}."
        write_lines(fold(sentence, columns))
    else:
        is_wide = arguments.output == "wide"
        write_lines(as_table(rows, wide=is_wide, columns=columns))
    for note in notes:
        write_warning(f"kaishare: warning: {note}")
    return int(any(row.policy.problems for row in rows))


async def _read(arguments: argparse.Namespace) -> tuple[list[PolicyRow], list[str]]:
    async with KubeClient(await cluster_access(arguments)) as client:
        return await read_policies(client, arguments.namespace, arguments.default_mode)
