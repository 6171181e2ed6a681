"""The facts of a cluster that the checks of `doctor` judge, and how they are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Flag, auto
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import msgspec

from console.cluster.agents import AgentOptions
from console.cluster.facts import NOT_READ, Fact, FactReader, Listing, Why, items
from console.cluster.rules import QueueTree
from console.cluster.webhook import (
    MUTATING,
    UNKNOWN_SETTINGS,
    VALIDATING,
    WEBHOOK_LABELS,
    RunningSettings,
    excluded_namespaces,
    keys_without_effect,
    read_running_settings,
    webhook_namespace,
)
from console.doctor.admission import AdmissionObjects
from console.render.policy_manifests import NAME
from kai import keys
from kai.gpu_resources import NVIDIA_PREFIX, is_nothing, names_gpu
from kai.installation import CONFIG_NAME, NAMESPACE, Installation, SharingMode, configured_modes
from kai.kaishare_keys import REASON
from kai.pod import MalformedPod, decode_pod, gpu_groups
from kai.queue import Queue
from kai.releases import Version
from kube import kinds
from kube.device_kinds import DeviceClass
from kube.kinds import Kind, PartialObject, gpu_amount
from kube.metadata import METADATA_ONLY
from service.command import UsageError
from webhook.policy.distributed import evidence_of, evidence_of_share
from webhook.policy.labels import Distributed, Mode, NamespacePolicy, PolicyMetadata
from webhook.policy.plain_gpu import not_plain
from webhook.policy.reasons import Reason
from webhook.registration.configuration_objects import (
    Webhook,
    WebhookConfiguration,
    is_of_kai,
    kai_schedulers,
)
from webhook.registration.configurations import CONFIGURATION_NAME, MUTATE, VALIDATE_NAMESPACES, VALIDATE_PODS

PRESENT_LABEL: Final = "nvidia.com/gpu.present"
"""Label of GPU feature discovery. The chart's DaemonSet selects nodes with the value `true`."""

_SYNCED: Final = Kind("", "v1", "pods", "Pod", PartialObject)
_PENDING: Final = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
_LABELLED: Final = {
    "labelSelector": keys.QUEUE_LABEL, "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed",
}  # fmt: skip
_GIVEN: Final = (Reason.WHOLE_GPU_CONVERTED.code, Reason.SHARE_INJECTED.code)
_NO_POLICIES: Final = AdmissionObjects(mutating=Fact(()))


class Scope(Flag):
    """What `doctor` checks."""

    CLUSTER = auto()
    NAMESPACE = auto()  # one namespace, with rights in it (`-n`)
    PRE = auto()  # what an installation needs (`--pre`)


class NotablePod(NamedTuple):
    """A pod whose share a new pod like it would not get, or a rank of a distributed job."""

    name: str  # namespace and name
    kept_whole: str = ""  # why a new pod would keep its whole GPU by the rules of this release
    evidence: str = ""  # that the pod is a rank of a distributed job, such as `a PyTorchJob of 4 ranks`
    job: tuple[str, str] = ("", "")  # namespace and name of the PodGroup
    gpu_groups: tuple[str, ...] = ()  # the GPUs that the pod shares


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace with policy labels, selectors of sizes, or keys that were meant as such."""

    name: str
    labels: Mapping[str, str]
    metadata: PolicyMetadata
    policy: NamespacePolicy | None  # the parsed policy; None if the namespace is not managed
    without_effect: tuple[str, ...] = ()  # a line for each of the first keys that are misplaced or misspelt


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A node with GPUs, by its capacity or its labels."""

    name: str
    gpus: float | None = None
    """`nvidia.com/gpu` of the node, replicas of time-slicing included; None if the quantity cannot be read.

    The larger one of allocatable and capacity: a GPU that fails leaves allocatable while its pods run on.
    """
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[kinds.Taint, ...] = ()
    conditions: frozenset[str] = frozenset()  # the types of the conditions that are True, not Unknown

    @property
    def is_labelled(self) -> bool:
        """Whether the label `PRESENT_LABEL` has the value `true`."""
        return self.labels.get(PRESENT_LABEL) == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """The options of `doctor`."""

    name: str = CONFIGURATION_NAME  # expected name of kaishare's webhook configurations
    default_mode: Mode | None = None  # the webhook's --default-mode; None reads it from the cluster
    scope: Scope = Scope.CLUSTER
    namespace: str = ""  # the only namespace to read; empty for all
    is_inside: bool = False  # whether doctor runs in the cluster, where pod addresses lead to the pods
    agents: AgentOptions = field(default_factory=AgentOptions)
    prometheus: str = ""  # address of the Prometheus; empty to look for it


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """What is known of a cluster, as far as the caller may read it."""

    options: DoctorOptions
    release: tuple[int, int] | None = None  # the API server's release, such as (1, 30); None if unknown
    now: datetime | None = None  # the API server's time; None if unknown
    mutating: Listing[WebhookConfiguration]
    validating: Listing[WebhookConfiguration]
    namespaces: Listing[Namespace] = NOT_READ
    queues: Listing[Queue] = NOT_READ
    pod_groups: Listing[kinds.PodGroup] = NOT_READ
    priorities: Listing[kinds.PriorityClass] = NOT_READ
    limit_ranges: Listing[kinds.LimitRange] = NOT_READ
    device_classes: Listing[DeviceClass] = NOT_READ
    notable: Listing[NotablePod] = NOT_READ
    nodes: Listing[ClusterNode] = NOT_READ  # those with GPUs
    waiting: Listing[kinds.Pod] = NOT_READ  # the pods without a node, with their documents
    synced: Listing[PartialObject] = NOT_READ
    """The metadata of pods with the label of vCluster's syncer. A tenant can write it, too."""
    installation: Installation | None = None
    """The installation of KAI; None if KAI's pods could not be listed."""
    configured_modes: Fact[frozenset[SharingMode]] = NOT_READ  # by KAI's object Config
    kai_namespace: str = NAMESPACE
    running: RunningSettings = UNKNOWN_SETTINGS  # the settings of the running webhook
    admission: AdmissionObjects = _NO_POLICIES
    webhook_pods: Listing[kinds.Pod] = NOT_READ
    """The webhook's pods, in the namespace that the API server calls."""

    @property
    def is_absent(self) -> bool:
        """Whether kaishare's webhook is certainly not installed: neither configuration exists."""
        is_known = self.mutating.value is not None and self.validating.value is not None
        return is_known and not (self.our_mutating or self.our_validating)

    @property
    def is_by_policies(self) -> bool:
        """Whether admission policies alone decide about pods."""
        return self.admission.deciding is not None and self.is_absent

    @property
    def versions(self) -> tuple[Version, ...]:
        """The installed releases of KAI; empty if unknown."""
        return self.installation.versions if self.installation else ()

    @property
    def sharing_modes(self) -> frozenset[SharingMode]:
        """KAI's sharing mode by its Config, else by the flags of its pods; several if they contradict."""
        by_flags = self.installation.sharing_modes if self.installation else frozenset[SharingMode]()
        return self.configured_modes.known or by_flags

    @property
    def sharing_mode(self) -> SharingMode | None:
        """KAI's sharing mode; None if it is unknown."""
        return next(iter(self.sharing_modes)) if len(self.sharing_modes) == 1 else None

    @property
    def our_mutating(self) -> WebhookConfiguration | None:
        """kaishare's mutating configuration, under any name."""
        return _ours(self.mutating, self.options.name, MUTATE)

    @property
    def our_validating(self) -> WebhookConfiguration | None:
        """kaishare's validating configuration, under any name."""
        return _ours(self.validating, self.options.name, VALIDATE_PODS, VALIDATE_NAMESPACES)

    def hook(self, name: str) -> Webhook | None:
        """Return a webhook for pods, such as `MUTATE`; without it the admission policy in its place."""
        ours = filter(None, (self.our_mutating, self.our_validating))
        own = next((hook for each in ours for hook in each.hooks if hook.name == name), None)
        return own or self.admission.stand_in(NAME if name == MUTATE else f"{NAME}-pods")

    @property
    def excluded(self) -> frozenset[str]:
        """Namespaces that kaishare's webhook configuration or the running webhook excludes by name."""
        return excluded_namespaces(self.running, self.hook(MUTATE))

    @cached_property
    def policies(self) -> dict[str, NamespacePolicy]:
        """The policies of all labelled namespaces by name."""
        return {each.name: each.policy for each in items(self.namespaces) if each.policy}

    def _in_modes(self, *modes: Mode) -> dict[str, NamespacePolicy]:
        excluded = self.excluded
        policies = self.policies.items()
        return {name: each for name, each in policies if each.mode in modes and name not in excluded}

    @cached_property
    def managed(self) -> dict[str, NamespacePolicy]:
        """Policies of namespaces by name, if they are neither off nor excluded."""
        return self._in_modes(Mode.DEFAULT, Mode.OBSERVE, Mode.ENFORCE)

    @cached_property
    def acting(self) -> dict[str, NamespacePolicy]:
        """Policies of managed namespaces whose pods are changed, by name."""
        return self._in_modes(Mode.DEFAULT, Mode.ENFORCE)

    @cached_property
    def enforced(self) -> dict[str, NamespacePolicy]:
        """Policies of managed namespaces with the mode enforce, by name."""
        return self._in_modes(Mode.ENFORCE)

    @cached_property
    def labels(self) -> dict[str, Mapping[str, str]]:
        """Labels of the namespaces by name."""
        return {namespace.name: namespace.labels for namespace in items(self.namespaces)}

    @cached_property
    def queue_tree(self) -> QueueTree:
        """The queues as far as they were read."""
        return QueueTree(items(self.queues), is_whole=self.queues.is_known)

    @cached_property
    def kai_schedulers(self) -> frozenset[str]:
        """The names of KAI's schedulers."""
        of_policies = {policy.scheduler for policy in self.policies.values()}
        return kai_schedulers([*items(self.mutating), *items(self.validating)], of_policies)

    @property
    def kai_mutating(self) -> list[WebhookConfiguration]:
        """KAI's mutating configurations, under any name."""
        return [each for each in items(self.mutating) if is_of_kai(each, self.kai_schedulers)]

    @property
    def kai_validating(self) -> list[WebhookConfiguration]:
        """KAI's validating configurations, under any name."""
        return [each for each in items(self.validating) if is_of_kai(each, self.kai_schedulers)]

    @property
    def matched_schedulers(self) -> set[str]:
        """The schedulers that KAI's webhook matches; empty before v0.13.0, which has no match."""
        return {name for configuration in self.kai_mutating for name in configuration.scheduler_names}


def _ours(listed: Listing[WebhookConfiguration], name: str, *hooks: str) -> WebhookConfiguration | None:
    ours = [each for each in items(listed) if any(hook.name in hooks for hook in each.hooks)]
    return next((each for each in items(listed) if each.name == name), ours[0] if ours else None)


async def read_cluster(reader: FactReader, options: DoctorOptions) -> ClusterFacts:
    """Read what the checks of a scope need; what was refused is recorded in the reader.

    Raises:
        UsageError: the namespace does not exist.
    """
    scope, namespace = options.scope, options.namespace
    cluster = ClusterFacts(
        options=options,
        mutating=await reader.list(MUTATING),
        validating=await reader.list(VALIDATING),
        queues=await reader.list(kinds.QUEUES),
        priorities=await reader.list(kinds.PRIORITY_CLASSES),
        admission=await _read_admission(reader, scope),
        running=RunningSettings(default_mode=options.default_mode),
    )
    home = webhook_namespace(cluster.our_mutating)
    facts: dict[str, Any] = {}
    if not cluster.is_absent or cluster.is_by_policies:
        facts["running"] = await read_running_settings(reader.client, home, options.default_mode)
    if not cluster.is_absent:
        query, what = {"labelSelector": WEBHOOK_LABELS}, f"the webhook's pods in {home}"
        facts["webhook_pods"] = await reader.list(kinds.PODS, home, query=query, what=what)
    cluster = replace(cluster, **facts)
    mode = cluster.running.rules.default_mode
    cluster = replace(cluster, namespaces=await _read_namespaces(reader, namespace, mode))
    # KAI's Service, or that of a webhook that matches KAI's schedulers.
    of_kai = sorted(cluster.kai_mutating, key=lambda item: not item.is_served_by_kai)
    home = next(filter(None, (item.service_namespace for item in of_kai)), NAMESPACE)
    programs = await reader.list(kinds.PODS, home)
    configs: Kind[Any] = kinds.KAI_CONFIGS
    facts = {
        "kai_namespace": home,
        "configured_modes": await reader.get(configs, CONFIG_NAME, decode=configured_modes),
        "installation": None
        if programs.value is None
        else Installation.seen_in(
            (each, pod.status.is_ready) for pod in programs.value for each in pod.spec.containers or ()
        ),
    }
    if scope is not Scope.PRE:
        facts["pod_groups"] = await reader.list(kinds.POD_GROUPS, namespace)
        facts["waiting"] = await reader.list(kinds.PODS, namespace, query=_PENDING, decode=_waiting)
    if cluster.acting:
        facts["limit_ranges"] = await reader.list(kinds.LIMIT_RANGES, namespace)
    if scope is not Scope.NAMESPACE:
        nodes: Kind[Any] = kinds.NODES
        facts["nodes"] = await reader.list(nodes, decode=read_gpu_node)
        query = {"labelSelector": keys.VCLUSTER_MANAGED_BY}
        facts["synced"] = await reader.list(
            _SYNCED, query=query, accept=METADATA_ONLY, what="pods of vClusters"
        )
        if cluster.acting:
            classes = await reader.list(kinds.DEVICE_CLASSES)
            facts["device_classes"] = NOT_READ if classes.why is Why.UNSERVED else classes
            facts["notable"] = await reader.list(
                kinds.PODS, query=_LABELLED, decode=partial(_notable, cluster), what="pods with shares",
                keeps_little=True,
            )  # fmt: skip
    return replace(cluster, **facts, now=reader.client.server_time())


def read_gpu_node(document: bytes) -> ClusterNode | None:
    """Read a node; None without GPUs."""
    node = kinds.NODES.decode(document)
    labels, capacity = node.metadata.labels, node.status.capacity or {}
    is_labelled = labels.get(PRESENT_LABEL) == "true" or keys.NODE_GPU_MEMORY in labels
    if not is_labelled and not any(
        name.startswith(NVIDIA_PREFIX) and names_gpu(name) and not is_nothing(amount)
        for name, amount in capacity.items()
    ):
        return None
    offered, installed = gpu_amount(node.status.allocatable), gpu_amount(capacity)
    return ClusterNode(
        name=node.metadata.name,
        gpus=None if offered is None or installed is None else max(offered, installed),
        labels=labels,
        taints=node.taints,
        conditions=frozenset(each.type for each in node.status.conditions or () if each.status == "True"),
    )


async def _read_admission(reader: FactReader, scope: Scope) -> AdmissionObjects:
    """Read kaishare's admission policies; the guard's for the whole cluster only."""

    async def own(kind: Kind[Any]) -> Listing[Any]:
        return await reader.list(kind, decode=partial(_own, kind))

    read = AdmissionObjects(mutating=await own(kinds.MUTATING_POLICIES))
    if read.deciding is not None:
        read = replace(read, mutating_bindings=await own(kinds.MUTATING_BINDINGS))
    if read.deciding is not None or scope is Scope.CLUSTER:
        policies, bindings = await own(kinds.VALIDATING_POLICIES), await own(kinds.VALIDATING_BINDINGS)
        read = replace(read, validating=policies, validating_bindings=bindings)
    return read


def _own(kind: Kind[Any], document: bytes) -> Any:
    """Read a policy or a binding of kaishare; None for another one."""
    item = kind.decode(document)
    policy = getattr(item.spec, "policy_name", item.metadata.name)
    return item if policy.startswith(NAME) else None


def _notable(cluster: ClusterFacts, document: bytes) -> NotablePod | None:
    try:
        pod = decode_pod(document)
    except MalformedPod:
        return None
    policy = cluster.acting.get(pod.namespace)
    if policy is None:
        return None
    kept = evidence = None
    if pod.annotations.get(REASON) in _GIVEN:
        kept = not_plain(pod.namespace, pod, cluster.running.rules)
    groups = tuple(dict.fromkeys(gpu_groups(pod.labels)))
    if policy.distributed is Distributed.KEEP and pod.scheduler_name == policy.scheduler and pod.node_name:
        whole = next((each for each in pod.containers if each.asks(keys.GPU_RESOURCE)), None)
        evidence = evidence_of(pod, whole) if whole else evidence_of_share(pod) if groups else None
    if kept is None and evidence is None:
        return None
    name = f"{pod.namespace}/{pod.name}"
    job = (pod.namespace, pod.annotations.get(keys.POD_GROUP_NAME, ""))
    return NotablePod(name, kept.reason.code if kept else "", str(evidence or ""), job, groups)


def _waiting(document: bytes) -> kinds.Pod | None:
    pod = kinds.PODS.decode(document)
    is_gone = pod.is_bound or pod.metadata.deletion_timestamp
    return None if is_gone else msgspec.structs.replace(pod, document=document)


async def _read_namespaces(reader: FactReader, only: str, default_mode: Mode) -> Listing[Namespace]:
    """List the namespaces with policy labels; a single namespace is fetched by its name.

    Raises:
        UsageError: the single namespace does not exist.
    """
    kind: Kind[Any] = kinds.NAMESPACES
    if not only:
        return await reader.list(kind, decode=partial(read_namespace, default_mode), accept=METADATA_ONLY)
    fact = await reader.get(kind, only, decode=lambda document: read_namespace(default_mode, document) or ())
    if fact.is_missing:
        raise UsageError(f"namespace {only} does not exist")
    return fact if fact.value is None else Fact((fact.value,) if fact.value else ())


def read_namespace(default_mode: Mode, document: bytes) -> Namespace | None:
    """Read a namespace; None if it is being deleted, or has no key of a policy or like one."""
    metadata = kinds.decode_partial_object(document).metadata
    own = PolicyMetadata.select(metadata.labels, metadata.annotations)
    without_effect = keys_without_effect(metadata)
    if metadata.deletion_timestamp or not (own or without_effect):
        return None
    policy = own.policy(metadata.name, default_mode)
    return Namespace(metadata.name, metadata.labels, own, policy, without_effect)
