"""`kaishare-webhook explain`: what the webhook would do to a manifest, pod by pod, and why."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from service.documents import unlisted
from webhook.decide import Rules
from webhook.manifests import FoundPod, as_json, find_pods
from webhook.mutation import Mutation, mutate
from webhook.patch import apply_to_document
from webhook.policy import NamespacePolicy
from webhook.reasons import Action, clean
from webhook.render import diff, paint


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One pod of a manifest and what becomes of it."""

    pod: FoundPod
    namespace: str
    policy: NamespacePolicy | None
    mutation: Mutation
    before: Mapping[str, object]
    """The pod as its creation would ask for it."""

    @property
    def after(self) -> Mapping[str, object]:
        """The pod that comes out; in mode observe, the one that would."""
        return apply_to_document(self.mutation.planned, self.before)


def explain(
    documents: list[object], *, namespace: str, policies: Mapping[str, NamespacePolicy], rules: Rules
) -> list[Explained]:
    """Run every pod of the documents through the server's own path.

    Args:
        documents: what was read from manifests.
        namespace: for whatever names no namespace itself.
        policies: by namespace.
        rules: the administrator's settings.
    """
    explained = []
    for document in unlisted(documents):
        for pod in find_pods(document):
            own = pod.namespace or namespace
            policy = policies.get(own)
            created = pod.as_created(own)
            mutation = mutate(policy, as_json(created), rules)
            explained.append(
                Explained(pod=pod, namespace=own, policy=policy, mutation=mutation, before=created)
            )
    return explained


def as_text(explained: list[Explained], *, colour: bool) -> Iterator[str]:
    """Yield the lines of a report: per pod a title, what and why, warnings, and the diff."""
    for item in explained:
        decision = item.mutation.decision
        yield paint(f"{clean(item.pod.title)} in namespace {clean(item.namespace)}", "@", colour=colour)
        yield f"  {_verb(item)}: {decision.finding.sentence} ({decision.reason.code})"
        for finding in decision.warnings:
            yield f"  warning: {finding.sentence} ({finding.reason.code})"
        for problem in item.policy.problems if item.policy else ():
            yield f"  policy: {problem}"
        if item.mutation.planned:
            before, after = _shown(item.before, item.pod), _shown(item.after, item.pod)
            yield from (f"  {line}" for line in diff(before, after, colour=colour))
        yield ""


def _shown(pod: Mapping[str, object], found: FoundPod) -> dict[str, object]:
    """Leave out what the manifest's author did not write: names and owners that a controller adds."""
    metadata = pod.get("metadata")
    written = found.template.get("metadata") or {}
    if not isinstance(metadata, dict) or not isinstance(written, dict):
        return dict(pod)
    added = {"generateName", "ownerReferences", "namespace"} - set(written)
    kept = {key: value for key, value in metadata.items() if key not in added}
    return {"metadata": kept, "spec": pod.get("spec")}


def _verb(item: Explained) -> str:
    match item.mutation.decision.action:
        case Action.INJECTED:
            return "changed, share"
        case Action.OBSERVED:
            return "would be changed (mode observe), share"
        case Action.UNCHANGED:
            return "nothing to change, share"
        case Action.ERROR:
            return "error, left alone"
        case _:
            return "left alone"
