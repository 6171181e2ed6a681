"""The command `policies`: the policy of each managed namespace, and where its pods are scheduled."""

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct

from console.caller import add_cluster_options, add_running_default_mode, cluster_access
from console.cluster.facts import FactReader
from console.cluster.webhook import (
    MUTATING,
    VIEW_IS_ENOUGH,
    RunningSettings,
    does_not_exist,
    fetch_namespaces,
    may_not_get,
    may_not_list,
    read_running_settings,
    webhook_namespace,
)
from console.text_table import GAP, column_widths, table_lines
from kai import keys
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from kube.answers import ApiError, Unreachable, decode_answer
from kube.client import KubeClient
from kube.metadata import ObjectMeta
from service.command import (
    DEFAULT_COLUMNS,
    add_namespace,
    columns_of,
    output_has_colour,
    write_lines,
    write_output,
    write_warning,
)
from service.log_writer import discard_library_logs
from service.text import counted, fold, one_line, width
from webhook.namespaces.file_policies import PoliciesError
from webhook.namespaces.policy_source import MANAGED
from webhook.policy.label_values import PolicyShare
from webhook.policy.labels import Mode, NamespacePolicy, PolicyMetadata, policy_json
from webhook.policy.sizes import Size
from webhook.registration.configuration_objects import WebhookConfiguration
from webhook.registration.configurations import CONFIGURATION_NAME, MUTATE

_RUNNING: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
_INSTEAD: Final = "policies -n NAMESPACE shows one namespace with your rights"


class _PodSpec(Struct, rename="camel", frozen=True):
    scheduler_name: str = ""


class _Pod(Struct, frozen=True):
    metadata: ObjectMeta
    spec: _PodSpec = _PodSpec()


_pod = msgspec.json.Decoder(_Pod)


@dataclass(frozen=True, slots=True)
class PodCounts:
    """The pods of one namespace that have not ended."""

    in_kai: int
    """Pods with the policy's scheduler."""
    others: int
    """Pods with another scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """One managed namespace."""

    policy: NamespacePolicy
    is_excluded: bool
    """Whether the webhook configuration excludes the namespace, so that the policy has no effect."""
    pods: PodCounts | None
    """None if the pods could not be listed."""

    @property
    def state(self) -> str:
        """`excluded`, `off`, `invalid` or `valid`."""
        return "excluded" if self.is_excluded else self.policy.state


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTable:
    """The managed namespaces, sorted by name."""

    rows: tuple[PolicyRow, ...]
    notes: tuple[str, ...] = field(default=())
    """What could not be read, one line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookScope:
    """The namespaces whose labels change pods, by the settings of the running webhook."""

    default_mode: Mode = Mode.DEFAULT
    excluded: Collection[str] = EXCLUDED_NAMESPACES
    reads_labels: bool = True
    """Whether the policies are the labels of the namespaces, and not files."""
    notes: tuple[str, ...] = ()
    """What could not be read, one line each."""


async def read_scope(client: KubeClient, default_mode: Mode | None = None) -> WebhookScope:
    """Read which namespaces the webhook serves; what cannot be read has its default, and a note.

    Args:
        client: for the API server, with the caller's rights.
        default_mode: the webhook's --default-mode; None reads it from the cluster.

    Raises:
        kube.access.AccessError: the login fails.
    """
    reader = FactReader(client)
    webhooks = await reader.get(MUTATING, CONFIGURATION_NAME)
    configuration = webhooks.value
    running = await read_running_settings(reader, webhook_namespace(configuration), default_mode)
    source = running.published or running.deployed
    return WebhookScope(
        default_mode=running.rules.default_mode,
        excluded=_excluded(running, configuration),
        reads_labels=source is None or source.policies != "files",
        notes=() if webhooks.is_missing else tuple(_notes(running, configuration)),
    )


async def read_policies(
    client: KubeClient, namespace: str | None, default_mode: Mode | None = None
) -> PolicyTable:
    """Read the policies of all managed namespaces, or of one namespace.

    Args:
        client: for the API server, with the caller's rights.
        namespace: the only namespace to read; None for all.
        default_mode: the webhook's --default-mode; None reads it from the cluster.

    Raises:
        PoliciesError: the caller may not read the namespaces, or the one does not exist.
        ApiError, Unreachable, kube.access.AccessError: the namespaces cannot be read.
    """
    scope = await read_scope(client, default_mode)
    mode = scope.default_mode
    namespaces = (await _namespaces(client, namespace)).items()
    policies = {name: policy for name, metadata in namespaces if (policy := metadata.policy(name, mode))}
    notes = list(scope.notes)
    try:
        counts = await _count_pods(client, policies, namespace) if policies else {}
    except (ApiError, Unreachable) as error:
        counts = None
        notes.append(f"pods were not counted: {_reason(error)}")
    rows = [
        PolicyRow(
            policy=policy, is_excluded=name in scope.excluded, pods=None if counts is None else counts[name]
        )
        for name, policy in sorted(policies.items())
    ]
    return PolicyTable(rows=tuple(rows), notes=tuple(notes))


def _reason(error: Exception) -> str:
    if isinstance(error, ApiError) and error.is_forbidden:
        return "the caller may not list pods"
    return one_line(str(error))


async def _namespaces(client: KubeClient, namespace: str | None) -> Mapping[str, PolicyMetadata]:
    """Return the namespaces with the label of a queue, or one namespace."""
    try:
        return await fetch_namespaces(client, namespace, MANAGED)
    except ApiError as error:
        if namespace is None:
            if error.is_forbidden:
                raise PoliciesError(may_not_list(error, _INSTEAD)) from None
        elif error.is_forbidden:
            raise PoliciesError(f"{may_not_get(namespace)}: {VIEW_IS_ENOUGH}") from None
        elif error.is_not_found:
            raise PoliciesError(does_not_exist(namespace)) from None
        raise


def _excluded(running: RunningSettings, configuration: WebhookConfiguration | None) -> Collection[str]:
    """Return the excluded namespaces; the defaults if none could be read."""
    known = [running.rules.excluded_namespaces] if running.knows("excluded_namespaces") else []
    hooks = configuration.hooks if configuration else ()
    known += [hook.namespace_selector.excluded_namespaces for hook in hooks if hook.name == MUTATE]
    return frozenset[str]().union(*known) if known else EXCLUDED_NAMESPACES


def _notes(running: RunningSettings, configuration: WebhookConfiguration | None) -> Iterator[str]:
    """Yield a sentence for each setting of the webhook that is not known."""
    reason = one_line(running.unpublished)
    if configuration is None and not running.knows("excluded_namespaces"):
        yield f"the excluded namespaces are not known: {reason}"
    if not running.knows("default_mode"):
        yield "the webhook's default mode is not known; give --default-mode (assumed: default)"


async def _count_pods(
    client: KubeClient, policies: Mapping[str, NamespacePolicy], namespace: str | None
) -> dict[str, PodCounts]:
    """Count the pods that have not ended; memory holds one pod at a time.

    Raises:
        ApiError, Unreachable, kube.access.AccessError: the pods cannot be listed.
    """
    path = "/api/v1/pods" if namespace is None else f"/api/v1/namespaces/{namespace}/pods"
    in_kai: Counter[str] = Counter()
    others: Counter[str] = Counter()
    async with client.list_objects(path, params=_RUNNING) as pods:
        async for item in pods:
            pod = decode_answer(_pod, item, f"GET {path}", expected="a pod")
            policy = policies.get(pod.metadata.namespace)
            if policy is not None:
                counter = in_kai if pod.spec.scheduler_name == policy.scheduler else others
                counter[pod.metadata.namespace] += 1
    return {name: PodCounts(in_kai[name], others[name]) for name in policies}


_NONE: Final = "-"
_UNKNOWN: Final = "?"
_LONGEST_CELL: Final = 2000
"""Longest cell in characters; sixteen sizes have at most 1000."""
_RED, _RESET = "\033[31m", "\033[0m"

_SIZES_COLUMN: Final = 4

_Cell = Callable[[PolicyRow], str]


def _share(share: PolicyShare | None) -> str:
    if share is None:
        return _NONE
    return f"{share.value}MiB" if share.annotation == keys.GPU_MEMORY else share.value


def _size(size: Size) -> str:
    if size.problem is not None:
        return f"{size.name}=invalid"
    return f"{size.name}={_share(size.share) if size.share else '1'}"


def _sizes(policy: NamespacePolicy) -> list[str]:
    return [_size(size) for _, size in sorted(policy.sizes.by_name.items())]


def _some_sizes(sizes: Sequence[str], columns: int) -> str:
    """Return as many sizes as fit into a cell, and the number of the others."""
    for count in range(len(sizes), 0, -1):
        more = f",+{len(sizes) - count}" if count < len(sizes) else ""
        cell = ",".join(sizes[:count]) + more
        if width(cell) <= columns:
            return cell
    if not sizes:
        return _NONE
    number = counted(len(sizes), "size")
    return number if width(number) <= columns else str(len(sizes))


def _caps(policy: NamespacePolicy) -> str:
    caps = [] if policy.max_fraction is None else [f"{policy.max_fraction:g}"]
    if policy.max_memory_mib is not None:
        caps.append(f"{policy.max_memory_mib}MiB")
    return ",".join(caps) or _NONE


def _in_kai(row: PolicyRow) -> str:
    """Return the pods with the policy's scheduler and all pods, such as `2/3`."""
    return _UNKNOWN if row.pods is None else f"{row.pods.in_kai}/{row.pods.in_kai + row.pods.others}"


def _mode(row: PolicyRow) -> str:
    return "excluded" if row.is_excluded else row.policy.mode.value


_COLUMNS: Final[Sequence[tuple[str, int, _Cell]]] = (
    ("NAMESPACE", 9, lambda row: row.policy.namespace),
    ("QUEUE", 6, lambda row: row.policy.queue or "invalid"),
    ("MODE", 0, _mode),
    ("SHARE", 0, lambda row: _share(row.policy.share)),
    ("SIZES", 5, lambda row: ",".join(_sizes(row.policy)) or _NONE),
    ("CAPS", 0, lambda row: _caps(row.policy)),
    ("IN-KAI", 0, _in_kai),
    ("PROBLEMS", 0, lambda row: str(_problems(row.policy))),
)
"""Heading, smallest width (0: cells are not shortened) and cell of each column."""

_DETAILS: Final[Sequence[tuple[str, _Cell]]] = (
    ("queue", lambda row: row.policy.queue or "invalid"),
    ("mode", _mode),
    ("scheduler", lambda row: row.policy.scheduler),
    ("share", lambda row: _share(row.policy.share)),
    ("share-for", lambda row: row.policy.share_for.value),
    ("sizes", lambda row: ", ".join(_sizes(row.policy)) or _NONE),
    ("caps", lambda row: _caps(row.policy)),
    ("distributed", lambda row: row.policy.distributed.value),
    ("priority", lambda row: row.policy.priority or _NONE),
    ("toleration", lambda row: "inject" if row.policy.inject_toleration else _NONE),
    ("over-share", lambda row: row.policy.over_share.value),
    ("grace", lambda row: _grace(row.policy)),
    ("pods in KAI", _in_kai),
)
_INDENT: Final = "  "
_NAME_WIDTH: Final = max(len(name) for name, _ in _DETAILS)


def _grace(policy: NamespacePolicy) -> str:
    return _NONE if policy.over_share_grace_seconds is None else f"{policy.over_share_grace_seconds}s"


def _problems(policy: NamespacePolicy) -> int:
    return len(policy.problems) + policy.more_problems


def as_table(
    table: PolicyTable, *, wide: bool = False, colour: bool = False, columns: int = DEFAULT_COLUMNS
) -> Iterator[str]:
    """Yield the lines of a table, and lines for each problem below it.

    Args:
        table: the policies.
        wide: whether to print every value whole, one below the other.
        colour: whether to print problems in red.
        columns: largest width of a line. Where no table fits, all values are below each other, too.
    """
    if not table.rows:
        yield from fold(f"No namespace is managed: none has the label {keys.QUEUE_LABEL}.", columns)
        return
    rows = [[title for title, _, _ in _COLUMNS], *map(_cells, table.rows)]
    widths = column_widths(rows, columns, [least for _, least, _ in _COLUMNS])
    if wide or widths is None:
        for index, row in enumerate(table.rows):
            yield from [""] * bool(index)
            yield from _block(row, columns)
            yield from _problem_lines(row, columns, "problem: ", indent=_INDENT, colour=colour)
        return
    for cells, row in zip(rows[1:], table.rows, strict=True):
        sizes = [one_line(size) for size in _sizes(row.policy)]
        cells[_SIZES_COLUMN] = _some_sizes(sizes, widths[_SIZES_COLUMN])
    yield from table_lines(rows, widths)
    for row in table.rows:
        yield from _problem_lines(row, columns, f"problem: {one_line(row.policy.namespace)}: ", colour=colour)


def _cells(row: PolicyRow) -> list[str]:
    return [one_line(read(row), _LONGEST_CELL) for _, _, read in _COLUMNS]


def _block(row: PolicyRow, columns: int) -> Iterator[str]:
    """Yield the name of a namespace, and a line for each of its values."""
    yield from fold(one_line(row.policy.namespace), columns)
    for name, read in _DETAILS:
        head = f"{_INDENT}{name:<{_NAME_WIDTH}}{GAP}"
        yield from fold(one_line(read(row), _LONGEST_CELL), columns, head=head, indent=" " * len(head))


def _problem_lines(
    row: PolicyRow, columns: int, beginning: str, *, indent: str = "", colour: bool
) -> Iterator[str]:
    problems = [one_line(str(problem)) for problem in row.policy.problems]
    if row.policy.more_problems:
        problems.append(f"and {row.policy.more_problems} more invalid labels or selectors")
    for problem in problems:
        lines = fold(beginning + problem, columns, head=indent, indent=f"{indent}{_INDENT}")
        yield from (f"{_RED}{line}{_RESET}" if colour else line for line in lines)


def as_json(table: PolicyTable) -> str:
    """Format the policies as a JSON array in ASCII."""
    return json.dumps([_document(row) for row in table.rows], indent=2) + "\n"


def as_yaml(table: PolicyTable) -> str:
    """Format the policies as a YAML list in ASCII."""
    # JSON's types only: PyYAML has no representation of enums.
    documents = json.loads(json.dumps([_document(row) for row in table.rows]))
    return str(yaml.safe_dump(documents, sort_keys=False, width=1000))


def _document(row: PolicyRow) -> dict[str, Any]:
    """Return the keys of the webhook's `/policies`, with the namespace's pods; unknown values are null."""
    return {
        **policy_json(row.policy),
        "state": row.state,
        "moreProblems": row.policy.more_problems,
        "pods": {"inKai": row.pods.in_kai, "notInKai": row.pods.others} if row.pods else None,
    }


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `policies`."""
    command.description = "Lists the policy of each managed namespace. Exits with 1 if a policy is invalid."
    add_cluster_options(command)
    add_namespace(command, "show this namespace only (default: all managed namespaces)")
    command.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json", "yaml"),
        default="table",
        help="output format; wide has every value, one below the other (default %(default)s)",
    )
    add_running_default_mode(command)


def run(arguments: argparse.Namespace) -> int:
    """Print the policies; return 1 if one is invalid, else 0.

    Raises:
        AccessError: the kubeconfig cannot be read.
        PoliciesError: the caller may not read the namespaces, or the one does not exist.
        ApiError, Unreachable: the namespaces cannot be read.
        UsageError: standard output cannot be written.
    """
    discard_library_logs()
    table = asyncio.run(_read(arguments))
    if arguments.output == "json":
        write_output(as_json(table))
    elif arguments.output == "yaml":
        write_output(as_yaml(table))
    elif arguments.namespace is not None and not table.rows:
        sentence = f"Namespace {arguments.namespace} is not managed: no label {keys.QUEUE_LABEL}."
        write_lines(fold(sentence, columns_of(sys.stdout)))
    else:
        is_wide, columns = arguments.output == "wide", columns_of(sys.stdout)
        write_lines(as_table(table, wide=is_wide, colour=output_has_colour(), columns=columns))
    for note in table.notes:
        write_warning(f"kaishare: warning: {note}")
    return int(any(row.policy.problems for row in table.rows))


async def _read(arguments: argparse.Namespace) -> PolicyTable:
    async with KubeClient(await cluster_access(arguments)) as client:
        return await read_policies(client, arguments.namespace, arguments.default_mode)
