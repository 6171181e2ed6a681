"""Reads the policies of a cluster and counts the pods of their namespaces, object by object."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Struct

from kai.own_labels import EXCLUDED_NAMESPACES
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable, decode_answer
from kube.objects import ObjectMeta
from service.text import one_line
from webhook.doctor.api_reader import ApiReader, ListSpec
from webhook.doctor.settings import RunningSettings, read_running_settings, webhook_namespace
from webhook.namespaces.decode import MANAGED
from webhook.namespaces.documents import PoliciesError
from webhook.namespaces.reading import (
    VIEW_IS_ENOUGH,
    does_not_exist,
    fetch_namespaces,
    may_not_get,
    may_not_list,
)
from webhook.policy.labels import Mode, NamespacePolicy, PolicyMetadata
from webhook.registration.configurations import CONFIGURATION_NAME, MUTATE
from webhook.registration.objects import WebhookConfiguration, read_configuration

_CONFIGURATIONS: Final = ListSpec(
    resource="mutatingwebhookconfigurations",
    group="admissionregistration.k8s.io",
    verb="get",
    without="the excluded namespaces are not known",
)
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
    reader = ApiReader(client)
    webhooks = await reader.get(_CONFIGURATIONS, CONFIGURATION_NAME, read_configuration)
    configuration = webhooks if isinstance(webhooks, WebhookConfiguration) else None
    running = await read_running_settings(reader, webhook_namespace(configuration), default_mode)
    source = running.published or running.deployed
    return WebhookScope(
        default_mode=running.rules.default_mode,
        excluded=_excluded(running, configuration),
        reads_labels=source is None or source.policies != "files",
        notes=() if webhooks is None else tuple(_notes(running, configuration)),
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
