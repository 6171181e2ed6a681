"""What the labels of namespaces say, and which namespaces the webhook is called for. Pure."""

from collections.abc import Iterator
from typing import Final

from kai import keys
from service.check_results import CheckResult, ok, problem, warning
from service.text import MOST_LINES, counted, listed, one_line
from webhook.doctor.cluster import Cluster, Namespace
from webhook.policy.labels import Mode, idle_labels, label_problems, own_labels

_POLICIES: Final = "policies"
_MANAGED: Final = "managed namespaces"


def namespace_findings(cluster: Cluster) -> Iterator[CheckResult]:
    """Go through every namespace that has a label of ours."""
    if cluster.namespaces.is_known:
        yield from _managed(cluster)
        yield from _invalid(cluster)


def _managed(cluster: Cluster) -> Iterator[CheckResult]:
    with_policy = [one for one in cluster.namespaces.items if one.policy]
    if not with_policy:
        yield warning(
            _MANAGED,
            f"none: no namespace carries the label {keys.QUEUE_LABEL}",
            f"label one: kubectl label namespace NAME {keys.QUEUE_LABEL}=QUEUE",
        )
        return
    excluded = {one.name for one in with_policy if one.name in cluster.excluded}
    off = {one.name for one in with_policy if one.policy and one.policy.mode is Mode.OFF} - excluded
    managed = cluster.managed
    if managed:
        yield ok(_MANAGED, f"{len(managed)}: {listed(managed)}")
    if excluded:
        yield warning(
            _MANAGED,
            f"{listed(excluded)}: labelled, but excluded from all that kaishare does",
            "take the labels away, or the name from the excluded namespaces",
        )
    if off:
        yield warning(_MANAGED, f"{listed(off)}: switched off by {keys_mode('off')}", "is that still meant?")
    yield from _not_selected(cluster, managed)


def _not_selected(cluster: Cluster, managed: dict[str, Namespace]) -> Iterator[CheckResult]:
    """Namespaces that the API server does not send to us, though their labels ask for it."""
    if cluster.mutate is not None:
        selector = cluster.mutate.namespace_selector
        missed = [name for name, one in managed.items() if not selector.matches(one.labels)]
        if missed:
            yield problem(
                _MANAGED,
                f"{listed(missed)}: the namespaceSelector of {cluster.mutate.name} leaves them out",
                "install this version's chart again",
            )
    enforced = {name: one for name, one in managed.items() if one.policy and one.policy.mode is Mode.ENFORCE}
    hook = cluster.validate_pods
    if cluster.validating.is_known:
        missed = [
            name
            for name, one in enforced.items()
            if hook is None or not hook.namespace_selector.matches(one.labels)
        ]
        if missed:
            yield problem(
                "enforce",
                f"{listed(missed)}: {keys_mode('enforce')}, and no validating webhook sees their pods",
                "install this version's chart again",
            )
        elif enforced:
            yield ok("enforce", f"{counted(len(enforced), 'namespace')}: {listed(enforced)}")


def keys_mode(value: str) -> str:
    """A mode label as a person types it."""
    return f"kaishare.dev/mode={value}"


def _invalid(cluster: Cluster) -> Iterator[CheckResult]:
    """Labels that are not followed, one a line."""
    policy_labels = {one.name: own_labels(one.labels) for one in cluster.namespaces.items}
    problems = {name: label_problems(labels, labels.keys()) for name, labels in policy_labels.items()}
    wrong = sorted((name, str(label)) for name, labels in problems.items() for label in labels.shown)
    lines = wrong[:MOST_LINES]
    for name, what in lines:
        yield problem(_POLICIES, f"{one_line(name)}: {one_line(what)}")
    more = sum(labels.count for labels in problems.values()) - len(lines)
    if more:
        yield problem(_POLICIES, f"and {more} more labels that are not followed")
    idle = [one.name for one in cluster.namespaces.items if idle_labels(one.labels)]
    if idle:
        yield warning(
            _POLICIES,
            f"{listed(idle)}: labels of kaishare without {keys.QUEUE_LABEL} do nothing",
            f"set {keys.QUEUE_LABEL} too, or take them away",
        )
    if not wrong and any(one.policy for one in cluster.namespaces.items):
        yield ok(_POLICIES, "every label can be followed")
