"""Computes what the webhooks would do to each pod of a manifest, with the same code as the server."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final

from msgspec import Struct, structs

from console.explain.manifest_sources import Location, SourceObject
from console.explain.pod_documents import PodRequests, before_share
from kai import keys
from kai.kaishare_keys import REASON, SIZE
from kai.pod import MalformedPod
from kube.kinds import LimitRange
from service.documents import DocumentError
from service.text import one_line
from webhook.policy.decide import Decision
from webhook.policy.decide_share import GpuKey, has_policy_share
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.patch import Mutation, Operation, apply_to_document, operations
from webhook.policy.pod_parts import annotations_of, as_map, texts
from webhook.policy.preview import Preview, decoded, preview
from webhook.policy.reasons import Action, Finding, Reason
from webhook.policy.templates import (
    FoundPod,
    TemplateError,
    find_pods,
    gpu_requests,
    is_kustomization,
    kind_problem,
    makes_no_pods,
    workload_kind,
)

_NAME_SHOWN: Final = 63
_MOST_PATHS: Final = 5
_UNKNOWN: Final = "pods-not-predictable"
RBAC: Final = "RBAC"  # the author of a refusal because the right to create pods is missing


class AnswerDifference(Struct, frozen=True):
    """A field that kaishare decides, and that the API server answers differently than predicted."""

    field: str  # such as `annotation gpu-fraction`, `container main: limit nvidia.com/gpu` or `verdict`
    predicted: str | None  # the value by our own decision; None if the pod has none
    answered: str | None

    @property
    def sentence(self) -> str:
        """The difference in one line."""
        return f"{self.field}: {self.answered or 'none'} in the cluster, {self.predicted or 'none'} here"


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
        """The title in reports: kind and name, owner in a cluster, and path of the template."""
        if self.is_sample:
            return one_line(f"{self.owner}, by its newest pod {self.pod.name}")
        name = f"{self.pod.kind} {self.pod.name or '(no name)'}"
        of = f" of {self.owner}" if self.owner else ""
        return one_line(", ".join(filter(None, (name + of, self.pod.path))))

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
    def sent(self) -> Sequence[Operation]:
        """The patch of the pod or template as written; empty in mode observe."""
        return self.planned if self.mutation.decision.action is Action.INJECTED else ()

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
    gpu_requests: Sequence[str] = ()  # paths outside of pod templates that name a GPU resource

    @property
    def title(self) -> str:
        """The title in reports: kind and name."""
        return f"{one_line(self.kind, _NAME_SHOWN)} {one_line(self.name, _NAME_SHOWN) or '(no name)'}"


Item = ExplainedPod | UnexplainedObject


def explain(objects: Iterable[SourceObject], explainer: "Explainer") -> Iterator[Item]:
    """Decide about every pod of manifests as the server would.

    Raises DocumentError for a value that is no Kubernetes object, or has no readable pod template.
    """
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
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why the policy of a namespace could not be read, by namespace; its pods get no decision."""
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
        elif workload_kind(api_version, kind) is None:
            paths = list(islice(gpu_requests(document, pods), _MOST_PATHS))
            message = "its controller may create pods, which cannot be predicted from the manifest"
            if paths:
                message = "its controller creates pods that cannot be predicted; it requests GPUs at "
                message += "; ".join(one_line(path, 120) for path in paths)
            if paths or not pods:
                yield unexplained(_UNKNOWN, message, gpu_requests=paths)

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
        told = preview(pod, policy, namespace, self.rules, defaults=defaults, undecided=undecided)
        own: dict[str, Any] = {"namespace": namespace, "policy": policy, "earlier": earlier}
        return ExplainedPod(pod=pod, has_siblings=has_siblings, **own, **vars(told))


def _earlier_change(
    pod: FoundPod, policy: NamespacePolicy | None, rules: DecisionSettings
) -> EarlierChange | None:
    annotations, is_current = texts(annotations_of(pod.template)), False
    if pod.path or REASON not in annotations:
        return None
    with suppress(MalformedPod):
        is_current = policy is not None and has_policy_share(policy, decoded(pod.template), rules)
    return EarlierChange(annotations[REASON], annotations.get(SIZE), is_current)
