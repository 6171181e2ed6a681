"""`kaishare-webhook explain`: what the webhooks would do to a manifest, pod by pod, and why."""

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
_SOMEBODY = Requester("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One pod of a manifest and what becomes of it."""

    pod: FoundPod
    namespace: str
    policy: NamespacePolicy | None
    mutation: Mutation
    verdict: Verification | None
    """What the validating webhook would say of the result; None if the pod cannot be read."""
    warnings: tuple[Finding, ...]
    before: Mapping[str, object]
    """The pod as its creation would ask for it."""

    @property
    def after(self) -> Mapping[str, object]:
        """The pod that comes out; in mode observe, the one that would."""
        return apply_to_document(self.mutation.planned, self.before)

    @property
    def is_denied(self) -> bool:
        """Whether the pod would not get in."""
        return self.verdict is not None and not self.verdict.is_allowed


def explain(
    documents: list[object], *, namespace: str, policies: Mapping[str, NamespacePolicy], rules: Rules
) -> Iterator[Explained]:
    """Run every pod of the documents through the server's own path.

    Args:
        documents: what was read from manifests.
        namespace: for whatever names no namespace itself.
        policies: by namespace.
        rules: the administrator's settings.

    Raises:
        DocumentError: a manifest allows something JSON has no form for.
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
    requester = _DAEMON_SET_CONTROLLER if pod.kind == "DaemonSet" else _SOMEBODY
    owners = pod.owners_above
    try:
        result = decode_pod(as_json(after))
        verdict = verify(policy, result, rules, requester)
    except MalformedPod:
        verdict = None  # the API server refuses it, and `mutation` says why
    else:
        owners = (*result.owners, *owners)
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
    """Name the owners of a pod and of its workload that are not namespaced, in every mode."""
    if policy is not None and exempt(policy, rules) is None:
        yield from islice(cluster_scoped_owners(owners, rules.cluster_scoped), MOST_WARNINGS)


def _owner_warnings(
    pod: FoundPod, policy: NamespacePolicy | None, after: Mapping[str, object]
) -> Iterator[Finding]:
    """Say where the workload's own queue label would beat the one its pods end with.

    KAI's pod grouper looks at the owner's label first (default_grouper.go, all releases).
    """
    owners = pod.owner_labels.get(keys.QUEUE_LABEL)
    if policy is None or not pod.path or not owners:
        return
    metadata = after.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    queue = labels.get(keys.QUEUE_LABEL) if isinstance(labels, dict) else None
    if owners != queue:
        yield Finding(Reason.OWNER_QUEUE, {"owner": pod.kind, "queue": quoted(owners), "pods": quoted(queue)})
