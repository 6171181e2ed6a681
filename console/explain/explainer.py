"""Computes what the webhooks would do to each pod of a manifest, with the same code as the server."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import add
from typing import Any, Final

from msgspec import Struct, structs
from msgspec.structs import astuple

from console.explain.manifest_sources import Location, SourceObject
from kai import keys
from kai.kaishare_keys import REASON, SIZE
from kai.key_classes import is_written_by_kai_only
from kai.pod import MalformedPod, PodView, decode_pod
from kube.kinds import LimitRange
from service.documents import DocumentError
from service.text import counted, one_line
from webhook.policy.checks import readable, whole_gpus
from webhook.policy.decide import Decision
from webhook.policy.decide_share import GpuKey, has_policy_share
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.patch import Mutation, Operation, apply_to_document, operations
from webhook.policy.pod_parts import annotations_of, as_map, as_maps, texts, with_containers
from webhook.policy.preview import Preview, decoded, preview
from webhook.policy.reasons import Action, Finding, Reason
from webhook.policy.templates import (
    FoundPod,
    TemplateError,
    find_pods,
    is_kustomization,
    kind_problem,
    makes_no_pods,
)

_NAME_SHOWN: Final = 63
_UNKNOWN: Final = "pods-not-predictable"
SERVER_METADATA: Final = frozenset({
    "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "managedFields", "selfLink",
})  # fmt: skip
"""Metadata that only an API server writes. `kubectl get -o yaml` shows it."""
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_CREATED_METADATA: Final = ("name", "generateName", "namespace", "labels", "annotations", "ownerReferences")
_NOT_CREATED: Final = ("nodeName", "priority", "ephemeralContainers")
_GAVE_SHARE: Final = frozenset({Reason.WHOLE_GPU_CONVERTED.code, Reason.SHARE_INJECTED.code})
RBAC: Final = "RBAC"  # the author of a refusal because the right to create pods is missing


class PodRequests(Struct, frozen=True, rename={"memory_mib": "memoryMiB", "uncounted": "notCounted"}):
    """What a number of pods ask for."""

    pods: int = 0
    gpus: float = 0.0  # whole GPUs and fractions, as KAI counts them: a share of 0.25 on two devices is 0.5
    memory_mib: int = 0  # shares in MiB, which are a part of a GPU that depends on its model
    uncounted: int = 0  # requests of MIG devices or claims, or with a value that KAI refuses

    def __add__(self, other: "PodRequests") -> "PodRequests":
        return PodRequests(*map(add, astuple(self), astuple(other)))

    def times(self, count: int) -> "PodRequests":
        """Return what several times as many pods ask for."""
        return PodRequests(*(amount * count for amount in astuple(self)))

    def __str__(self) -> str:
        """Return the GPUs in words, such as `2.5 GPUs and 4000 MiB of GPU memory`."""
        parts = [f"{round(self.gpus, 2):g} GPU{'' if self.gpus == 1 else 's'}"]
        parts += [f"{self.memory_mib} MiB of GPU memory"] if self.memory_mib else []
        parts += [f"{counted(self.uncounted, 'request')} not counted"] if self.uncounted else []
        return " and ".join(parts)


class AnswerDifference(Struct, frozen=True):
    """A field that kaishare decides, and that the API server answers differently than predicted."""

    field: str  # such as `annotation gpu-fraction`, `container main: limit nvidia.com/gpu` or `verdict`
    predicted: str | None  # the value by our own decision; None if the pod has none
    answered: str | None


class ServerAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The API server's answer to a pod that is created by dry run. Every text is one printable line."""

    is_admitted: bool | None  # None if there is no answer; then `problem` has the reason
    problem: str = ""
    refused_by: str = ""  # such as `quota gpu-quota`; empty if the pod is admitted, or if this is not known
    refusal: str = ""  # the API server's whole message; empty if the pod is admitted
    warnings: Sequence[str] = ()
    fields: Mapping[str, str] = {}  # what was admitted in the fields that kaishare writes, by their names
    differences: Sequence[AnswerDifference] = ()
    causes: Sequence[str] = ()  # known causes of the differences and of a refusal, as sentences
    notes: Sequence[str] = ()  # how the answer was got, where the pod sent is not as its controller's


class EarlierChange(Struct, frozen=True, rename="camel"):
    """The change that the webhook made to a live pod at its creation, as the pod's annotations tell it."""

    reason: str  # the annotation kaishare.dev/reason, which the pod's author may have written
    size: str | None  # the annotation kaishare.dev/size; None if there is none
    is_current: bool  # whether the pod's share is the one that the policy gives now


@dataclass(frozen=True, kw_only=True)
class ExplainedPod(Preview):
    """One pod of a manifest, with the decision and verdict about it."""

    pod: FoundPod
    has_siblings: bool = False  # whether the object has other templates
    location: Location | None = None  # None for an object of a cluster
    namespace: str
    policy: NamespacePolicy | None
    earlier: EarlierChange | None = None  # of a live pod; None for a template, and for a pod without one
    server: ServerAnswer | None = None  # to a creation by dry run; None if the API server was not asked
    owner: str = ""  # kind and name of a live object's owner, if no template of that owner was explained
    is_sample: bool = False  # whether a live pod stands for all pods of `owner`, as the newest of them
    running: PodRequests | None = None  # the workload's pods in the cluster; None if they were not counted

    @property
    def title(self) -> str:
        """The title in reports: kind and name, path of the template, and owner in a cluster."""
        if self.is_sample:
            return one_line(f"{self.owner}, by its newest pod {self.pod.name}")
        return one_line(self.pod.title + (f", of {self.owner}" if self.owner else ""))

    @cached_property
    def planned(self) -> Sequence[Operation]:
        """The patch of the pod or template as written; mode observe does not send it."""
        if not self.mutation.planned:
            return ()
        changes, pod = self.mutation.decision.changes, decoded(self.pod.template)

        def is_written(key: GpuKey) -> bool:  # the API server fills in others, which cannot be removed
            container = (pod.containers if key.containers == "containers" else pod.init_containers)[key.index]
            return keys.GPU_RESOURCE in (container.limits if key.kind == "limits" else container.requests)

        written = tuple(filter(is_written, changes.removed_gpu_keys))
        return tuple(operations(structs.replace(changes, removed_gpu_keys=written), pod))

    @property
    def after(self) -> Mapping[str, object]:
        """The pod or template with its patch; in mode observe, with the patch that is held back."""
        return apply_to_document(self.planned, self.pod.template)

    @property
    def is_denied(self) -> bool:
        """Whether the validating webhook would deny the pod."""
        return self.verdict is not None and not self.verdict.is_allowed

    @property
    def is_refused(self) -> bool:
        """Whether the pod cannot be created as written, or its decision failed its own check."""
        has_failed = self.mutation.decision.action is Action.ERROR and self.is_decided
        return self.is_denied or has_failed or self.mutation.decision.reason is Reason.MALFORMED_POD

    @property
    def is_decided(self) -> bool:
        """Whether there is a decision: the policy of the pod's namespace could be read."""
        return self.mutation.decision.reason is not Reason.POLICY_UNKNOWN


@dataclass(frozen=True, slots=True)
class UnexplainedObject:
    """An object of a manifest about whose pods nothing can be said, or only a part."""

    kind: str
    name: str
    namespace: str
    code: str  # `no-pods`, `pods-not-predictable`, `kustomize-file`; `unreadable` for one of a cluster
    message: str
    location: Location | None = None  # None for an object of a cluster

    @property
    def title(self) -> str:
        """The title in reports: kind and name."""
        return f"{one_line(self.kind, _NAME_SHOWN)} {one_line(self.name, _NAME_SHOWN) or '(no name)'}"


Item = ExplainedPod | UnexplainedObject


def explain(objects: Iterable[SourceObject], explainer: "Explainer") -> Iterator[Item]:
    """Decide about every pod of manifests as the server would; DocumentError for an unusable object."""
    for value, location in objects:
        try:
            items = list(explainer.explain(value))
        except TemplateError as error:
            raise DocumentError(f"{location.file}, line {location.line}: {error}") from None
        yield from (replace(item, location=location) for item in items)


@dataclass(frozen=True, slots=True)
class Explainer:
    """Decides about the pods of objects."""

    namespace: str  # the namespace of objects that name none
    policies: Mapping[str, NamespacePolicy]
    rules: DecisionSettings
    defaults: Mapping[str, Sequence[LimitRange]] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)  # why policies could not be read, by namespace
    is_live: bool = False  # whether pods exist: a share that the policy does not give now is taken away first

    def explain(self, document: Any) -> Iterator[Item]:
        """Yield the pods of one object, and the object itself if it may make others.

        Raises TemplateError for what is no Kubernetes object, or has no readable pod template.
        """
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            raise TemplateError("not a Kubernetes object: it has no kind")
        kind, api_version = document["kind"], str(document.get("apiVersion") or "")
        problem = kind_problem(api_version, kind)
        if problem is not None:
            raise TemplateError(problem)
        metadata = as_map(document.get("metadata"))
        name = str(metadata.get("name") or metadata.get("generateName") or "")
        namespace = str(metadata.get("namespace") or "")
        if makes_no_pods(api_version, kind):
            yield UnexplainedObject(kind, name, namespace, "no-pods", "makes no pods")
            return
        unexplained = partial(UnexplainedObject, kind, name, namespace or self.namespace)
        pods = find_pods(document)
        for pod in pods:
            if pod.has_unknown_names:
                message = f"{pod.path} has a container without a name, which its controller may name"
                yield UnexplainedObject(pod.kind, pod.name, namespace or self.namespace, _UNKNOWN, message)
            else:
                yield self._explain_pod(pod, has_siblings=len(pods) > 1)
        if is_kustomization(api_version, kind):
            message = "a file of kustomize, which is not applied: explain the output of kubectl kustomize DIR"
            yield unexplained("kustomize-file", message)
        elif not pods:
            message = "its controller may create pods, which cannot be predicted from the manifest"
            yield unexplained(_UNKNOWN, message)

    def _explain_pod(self, pod: FoundPod, *, has_siblings: bool) -> ExplainedPod:
        namespace = pod.namespace or self.namespace
        policy, undecided = self.policies.get(namespace), None
        earlier = _earlier_change(pod, policy, self.rules)
        if self.is_live and earlier is not None and not earlier.is_current:
            pod = replace(pod, template=before_share(pod.template))
        if namespace in self.unread:
            finding = Finding(Reason.POLICY_UNKNOWN, {"problem": self.unread[namespace]})
            undecided = Mutation(decision=Decision(action=Action.ERROR, finding=finding))
        defaults = self.defaults.get(namespace, ())
        told = vars(preview(pod, policy, namespace, self.rules, defaults=defaults, undecided=undecided))
        of_pod: dict[str, Any] = {"namespace": namespace, "policy": policy, "earlier": earlier}
        return ExplainedPod(pod=pod, has_siblings=has_siblings, **of_pod, **told)


def _earlier_change(
    pod: FoundPod, policy: NamespacePolicy | None, rules: DecisionSettings
) -> EarlierChange | None:
    annotations, is_current = texts(annotations_of(pod.template)), False
    if pod.path or REASON not in annotations:
        return None
    with suppress(MalformedPod):
        is_current = policy is not None and has_policy_share(policy, decoded(pod.template), rules)
    return EarlierChange(annotations[REASON], annotations.get(SIZE), is_current)


def as_new(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a live pod as its creator would send it again: without what only the cluster can have written.

    A node that the creator wrote stays: `managedFields` record it for the creator, and not for a scheduler's
    binding (seen on Kubernetes 1.36.3). So does what an earlier change by the webhook wrote.
    """
    metadata, spec = as_map(pod.get("metadata")), as_map(pod.get("spec"))
    created: dict[str, Any] = {key: metadata[key] for key in _CREATED_METADATA if key in metadata}
    for part in ("labels", "annotations"):
        if isinstance(entries := created.get(part), dict):
            own = (key for key in entries if key != _APPLIED and not is_written_by_kai_only(key))
            created[part] = {key: entries[key] for key in own}
    prefix = created.get("generateName")
    if prefix and isinstance(prefix, str) and str(created.get("name")).startswith(prefix):
        del created["name"]
    new_spec = {key: value for key, value in spec.items() if key not in _NOT_CREATED}
    if "nodeName" in spec and any(
        "f:nodeName" in as_map(as_map(entry.get("fieldsV1")).get("f:spec")) and not entry.get("subresource")
        for entry in as_maps(metadata.get("managedFields"))
    ):
        new_spec["nodeName"] = spec["nodeName"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": created, "spec": new_spec}


def before_share(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod as it was before kaishare gave it a share at its creation, by the reason on it.

    A converted pod requested one whole GPU in the container of the share.
    """
    annotations = annotations_of(pod)
    if annotations.get(REASON) not in _GAVE_SHARE:
        return pod
    written = {keys.GPU_FRACTION, keys.GPU_MEMORY, keys.CONTAINER_NAME, REASON, SIZE}
    metadata = {**pod["metadata"], "annotations": {k: v for k, v in annotations.items() if k not in written}}
    spec = pod.get("spec")
    if annotations[REASON] == Reason.WHOLE_GPU_CONVERTED.code:
        containers = as_maps(as_map(spec).get("containers"))
        first = containers[0].get("name") if containers else None
        named = annotations.get(keys.CONTAINER_NAME, first)

        def whole(container: dict[str, Any]) -> dict[str, Any]:
            resources, gpu = as_map(container.get("resources")), {keys.GPU_RESOURCE: "1"}
            amounts = {part: as_map(resources.get(part)) | gpu for part in ("limits", "requests")}
            return container | ({"resources": resources | amounts} if container.get("name") == named else {})

        spec = with_containers(spec, whole, ("containers",))
    return {**pod, "metadata": metadata, "spec": spec}


def asked_by(pod: PodView) -> PodRequests:
    """Return what a pod asks for; a share in a form that KAI refuses is not counted."""
    share = readable(lambda: pod.share_request)
    whole = readable(lambda: whole_gpus(pod))
    has_others = any(name != keys.GPU_RESOURCE for name in pod.gpu_resources)
    is_unread = any(key in pod.annotations for key in (keys.GPU_FRACTION, keys.GPU_MEMORY)) and share is None
    is_uncounted = is_unread or whole is None or has_others or pod.uses_mig or pod.uses_claims
    return PodRequests(
        pods=1,
        gpus=(whole or 0) + ((share.counted_gpus or 0.0) if share else 0.0),
        memory_mib=(share.memory_mib or 0) * share.devices if share else 0,
        uncounted=int(is_uncounted),
    )


def asked_now(pod: bytes) -> PodRequests:
    """Return what a pod in JSON asks for; one that cannot be read counts as a request that is not counted."""
    try:
        return asked_by(decode_pod(pod))
    except MalformedPod:
        return PodRequests(pods=1, uncounted=1)
