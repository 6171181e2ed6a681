"""Computes what the webhooks would do to each pod of a manifest, with the same code as the server."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Final

from kai import keys
from kai.pod import MalformedPod, Owner, PodView, decode_pod
from service.documents import DocumentError
from service.text import one_line, quoted
from webhook.explain.kinds import is_kustomization, kind_problem, makes_no_pods, workload_kind
from webhook.explain.manifests import (
    FoundPod,
    TemplateError,
    as_json,
    find_pods,
    gpu_requests,
    list_items,
)
from webhook.explain.sources import ManifestSource, SourceDocument
from webhook.policy.checks import cluster_scoped_owners, reserved_owner_keys
from webhook.policy.decide import MOST_WARNINGS, Rules, exempt, malformed
from webhook.policy.labels import NamespacePolicy
from webhook.policy.mutate import Mutation, mutate
from webhook.policy.patch import Operation, apply_to_document, operations
from webhook.policy.reasons import Action, Finding, Reason
from webhook.policy.verify import Requester, Verification, verify

_DAEMON_SET_CONTROLLER: Final = Requester("system:serviceaccount:kube-system:daemon-set-controller")
_USER: Final = Requester("")
_NAME_SHOWN: Final = 63


@dataclass(frozen=True, kw_only=True)
class ExplainedPod:
    """One pod of a manifest, with the decision and verdict about it."""

    pod: FoundPod
    namespace: str
    policy: NamespacePolicy | None
    mutation: Mutation
    verdict: Verification | None
    """The verdict of the validating webhook about the patched pod; None if the pod cannot be read."""
    warnings: tuple[Finding, ...]

    @cached_property
    def planned(self) -> Sequence[Operation]:
        """The patch of the pod or template as written; mode observe does not send it."""
        if not self.mutation.planned:
            return ()
        return tuple(operations(self.mutation.decision.changes, _decoded(self.pod.template)))

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
        decision = self.mutation.decision
        is_malformed = decision.reason is Reason.MALFORMED_POD
        return self.is_denied or is_malformed or decision.action is Action.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class UnexplainedObject:
    """An object of a manifest about whose pods nothing can be said, or only a part."""

    kind: str
    name: str
    namespace: str
    code: str
    """`no-pods`, `pods-not-predictable` or `kustomize-file`."""
    message: str
    gpu_requests: Sequence[str] = field(default_factory=list)
    """Paths outside of pod templates that name a GPU resource."""

    @property
    def title(self) -> str:
        """The title in reports: kind and name."""
        return f"{one_line(self.kind, _NAME_SHOWN)} {one_line(self.name, _NAME_SHOWN) or '(no name)'}"


@dataclass(frozen=True, slots=True)
class ExplainedDocument:
    """One document of an input, with its pods and the objects whose pods are not known, in order."""

    source: ManifestSource
    document: SourceDocument
    items: Sequence[ExplainedPod | UnexplainedObject]

    @property
    def pods(self) -> Iterator[ExplainedPod]:
        """The explained pods."""
        return (item for item in self.items if isinstance(item, ExplainedPod))


def explain(
    sources: Iterable[ManifestSource],
    *,
    namespace: str,
    policies: Mapping[str, NamespacePolicy],
    rules: Rules,
) -> Iterator[ExplainedDocument]:
    """Decide about every pod of the documents as the server would.

    Args:
        sources: the manifests.
        namespace: the namespace of objects that name none.
        policies: policies by namespace.
        rules: the administrator's settings.

    Raises:
        DocumentError: a document is no Kubernetes object, is a workload without a readable pod template, or
            contains a value that JSON cannot represent.
    """
    explainer = _Explainer(namespace, policies, rules)
    for source in sources:
        for document in source.documents:
            try:
                items = [
                    item
                    for value, place in list_items(document.value)
                    for item in explainer.explain(value, place)
                ]
            except TemplateError as error:
                line = source.line_of(document, error.place)
                raise DocumentError(f"{source.name}, line {line}: {error}") from None
            yield ExplainedDocument(source, document, items)


@dataclass(frozen=True, slots=True)
class _Explainer:
    namespace: str
    policies: Mapping[str, NamespacePolicy]
    rules: Rules

    def explain(
        self, document: Any, place: tuple[str | int, ...]
    ) -> Iterator[ExplainedPod | UnexplainedObject]:
        """Yield the pods of one object, and the object itself if it may make others.

        Raises:
            TemplateError: the object is no Kubernetes object, or has no readable pod template.
        """
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            raise TemplateError("not a Kubernetes object: it has no kind", place)
        kind, api_version = document["kind"], str(document.get("apiVersion") or "")
        problem = kind_problem(api_version, kind)
        if problem is not None:
            raise TemplateError(problem, (*place, "kind"))
        try:
            pods = [] if makes_no_pods(api_version, kind) else find_pods(document, place)
        except TemplateError as error:
            raise TemplateError(str(error), (*place, *error.place)) from None
        for pod in pods:
            yield self._explain_pod(pod)
        if workload_kind(api_version, kind) is None:
            unexplained = self._unexplained(document, place, pods)
            if unexplained is not None:
                yield unexplained

    def _unexplained(
        self, document: dict[str, Any], place: tuple[str | int, ...], pods: list[FoundPod]
    ) -> UnexplainedObject | None:
        """Return an object that has no pods, or that requests GPUs outside of its pod templates."""
        kind, api_version = document["kind"], str(document.get("apiVersion") or "")
        metadata = document.get("metadata")
        names = metadata if isinstance(metadata, dict) else {}
        paths: Sequence[str] = ()
        if makes_no_pods(api_version, kind):
            code, message = "no-pods", "nothing to do with pods"
        elif is_kustomization(api_version, kind):
            code = "kustomize-file"
            message = "a file of kustomize, which is not applied: explain the output of kubectl kustomize DIR"
        else:
            paths = gpu_requests(document, pods, place)
            if pods and not paths:
                return None
            code = "pods-not-predictable"
            message = "its controller may create pods, which cannot be predicted from the manifest"
            if paths:
                listed = "; ".join(one_line(path, 120) for path in paths)
                message = (
                    f"its controller creates pods that cannot be predicted; it requests GPUs at {listed}"
                )
        return UnexplainedObject(
            kind=kind,
            name=str(names.get("name") or names.get("generateName") or ""),
            namespace=str(names.get("namespace") or self.namespace),
            code=code,
            message=message,
            gpu_requests=list(paths),
        )

    def _explain_pod(self, pod: FoundPod) -> ExplainedPod:
        namespace = pod.namespace or self.namespace
        policy = self.policies.get(namespace)
        created = pod.as_created(namespace)
        mutation, problem = mutate(policy, as_json(created), self.rules), _problem_of_template(pod)
        if mutation.planned and problem is not None:
            mutation = Mutation(decision=malformed(problem))
        after = apply_to_document(mutation.sent, created)
        requester = _DAEMON_SET_CONTROLLER if pod.kind == "DaemonSet" else _USER
        owners = pod.owners_above
        try:
            if problem is not None:
                raise problem
            patched = _decoded(after)
            verdict = verify(policy, patched, self.rules, requester)
        except MalformedPod:
            verdict = None  # the API server refuses the pod; `mutation` has the reason
        else:
            owners = (*patched.owners, *owners)
        denials = verdict.denials if verdict else ()
        above = _cluster_scoped(policy, owners, self.rules)
        return ExplainedPod(
            pod=pod,
            namespace=namespace,
            policy=policy,
            mutation=mutation,
            verdict=verdict,
            warnings=(
                *mutation.decision.warnings,
                *_owner_warnings(pod, policy, after),
                *(finding for finding in above if finding not in denials),
            ),
        )


def _decoded(pod: Mapping[str, object]) -> PodView:
    return decode_pod(as_json(pod))


def _problem_of_template(pod: FoundPod) -> MalformedPod | None:
    """Return why the API server cannot read the pod or template as written; None if it can.

    The pod as created may be readable all the same: a controller replaces fields such as the namespace.
    """
    try:
        _decoded(pod.template)
    except MalformedPod as error:
        return error
    return None


def _cluster_scoped(
    policy: NamespacePolicy | None, owners: Iterable[Owner], rules: Rules
) -> Iterator[Finding]:
    """Yield a finding for each owner of a pod or its workload that is not namespaced, in every mode."""
    if policy is not None and exempt(policy, rules) is None:
        yield from islice(cluster_scoped_owners(owners, rules.cluster_scoped), MOST_WARNINGS)


def _owner_warnings(
    pod: FoundPod, policy: NamespacePolicy | None, after: Mapping[str, object]
) -> Iterator[Finding]:
    """Yield warnings about labels and annotations of the workload itself, which KAI reads for its pods.

    KAI's pod grouper uses the owner's queue label first, and copies all labels and annotations to the
    PodGroup (default_grouper.go, all releases). The guard refuses the keys that only KAI may write.
    """
    if policy is None or not pod.path:
        return
    yield from islice(reserved_owner_keys(pod.kind, pod.owner_labels, pod.owner_annotations), MOST_WARNINGS)
    owner_queue = pod.owner_labels.get(keys.QUEUE_LABEL)
    if not owner_queue:
        return
    metadata = after.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    queue = labels.get(keys.QUEUE_LABEL) if isinstance(labels, dict) else None
    if owner_queue != queue:
        details = {"owner": pod.kind, "queue": quoted(owner_queue), "pods": quoted(queue)}
        yield Finding(Reason.OWNER_QUEUE, details)
