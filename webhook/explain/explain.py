"""Computes what the webhooks would do to each pod of a manifest, with the same code as the server."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from kai import keys
from kai.pod import MalformedPod, Owner, decode_pod
from service.documents import flatten_lists
from service.text import quoted
from webhook.explain.manifests import FoundPod, as_json, find_pods
from webhook.policy.checks import cluster_scoped_owners
from webhook.policy.decide import MOST_WARNINGS, Rules, exempt
from webhook.policy.labels import NamespacePolicy
from webhook.policy.mutate import Mutation, mutate
from webhook.policy.patch import apply_to_document
from webhook.policy.reasons import Finding, Reason
from webhook.policy.verify import Requester, Verification, verify

_DAEMON_SET_CONTROLLER = Requester("system:serviceaccount:kube-system:daemon-set-controller")
_USER = Requester("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One pod of a manifest, with the decision and verdict about it."""

    pod: FoundPod
    namespace: str
    policy: NamespacePolicy | None
    mutation: Mutation
    verdict: Verification | None
    """The verdict of the validating webhook about the patched pod; None if the pod cannot be read."""
    warnings: tuple[Finding, ...]
    before: Mapping[str, object]
    """The pod as its controller would create it."""

    @property
    def after(self) -> Mapping[str, object]:
        """The patched pod; in mode observe, the pod with the patch that is held back."""
        return apply_to_document(self.mutation.planned, self.before)

    @property
    def is_denied(self) -> bool:
        """Whether the validating webhook would deny the pod."""
        return self.verdict is not None and not self.verdict.is_allowed


def explain(
    documents: list[object], *, namespace: str, policies: Mapping[str, NamespacePolicy], rules: Rules
) -> Iterator[Explained]:
    """Decide about every pod of the documents as the server would.

    Args:
        documents: the parsed manifests.
        namespace: the namespace of objects that name none.
        policies: policies by namespace.
        rules: the administrator's settings.

    Raises:
        DocumentError: a manifest contains a value that JSON cannot represent.
    """
    for document in flatten_lists(documents):
        for pod in find_pods(document):
            yield _explain(pod, pod.namespace or namespace, policies, rules)


def _explain(
    pod: FoundPod, namespace: str, policies: Mapping[str, NamespacePolicy], rules: Rules
) -> Explained:
    policy = policies.get(namespace)
    created = pod.as_created(namespace)
    mutation = mutate(policy, as_json(created), rules)
    after = apply_to_document(mutation.sent, created)
    requester = _DAEMON_SET_CONTROLLER if pod.kind == "DaemonSet" else _USER
    owners = pod.owners_above
    try:
        patched = decode_pod(as_json(after))
        verdict = verify(policy, patched, rules, requester)
    except MalformedPod:
        verdict = None  # the API server refuses the pod; `mutation` has the reason
    else:
        owners = (*patched.owners, *owners)
    denials = verdict.denials if verdict else ()
    return Explained(
        pod=pod,
        namespace=namespace,
        policy=policy,
        mutation=mutation,
        verdict=verdict,
        warnings=(
            *mutation.decision.warnings,
            *_owner_warnings(pod, policy, after),
            *(finding for finding in _cluster_scoped(policy, owners, rules) if finding not in denials),
        ),
        before=created,
    )


def _cluster_scoped(
    policy: NamespacePolicy | None, owners: Iterable[Owner], rules: Rules
) -> Iterator[Finding]:
    """Yield a finding for each owner of a pod or its workload that is not namespaced, in every mode."""
    if policy is not None and exempt(policy, rules) is None:
        yield from islice(cluster_scoped_owners(owners, rules.cluster_scoped), MOST_WARNINGS)


def _owner_warnings(
    pod: FoundPod, policy: NamespacePolicy | None, after: Mapping[str, object]
) -> Iterator[Finding]:
    """Yield a warning if the workload's queue label differs from that of its pods.

    KAI's pod grouper uses the owner's label first (default_grouper.go, all releases).
    """
    owner_queue = pod.owner_labels.get(keys.QUEUE_LABEL)
    if policy is None or not pod.path or not owner_queue:
        return
    metadata = after.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    queue = labels.get(keys.QUEUE_LABEL) if isinstance(labels, dict) else None
    if owner_queue != queue:
        details = {"owner": pod.kind, "queue": quoted(owner_queue), "pods": quoted(queue)}
        yield Finding(Reason.OWNER_QUEUE, details)
