"""Checks of namespaces: their policy labels, and whether the API server calls the webhook for them. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from kai import keys
from service.check_results import CheckResult, ok, problem, warning
from service.text import MOST_LINES, counted, listed, one_line
from webhook.doctor.cluster import Cluster, Namespace
from webhook.policy.labels import Mode, idle_labels, label_problems
from webhook.policy.sizes import selector_overlaps

_POLICIES: Final = "policies"
_MANAGED: Final = "managed namespaces"


def namespace_findings(cluster: Cluster) -> Iterator[CheckResult]:
    """Yield findings about every namespace that has policy labels."""
    if cluster.namespaces.is_known:
        yield from _managed(cluster)
        yield from _invalid(cluster)


def _managed(cluster: Cluster) -> Iterator[CheckResult]:
    policies = {
        namespace.name: namespace.policy for namespace in cluster.namespaces.items if namespace.policy
    }
    if not policies:
        yield warning(
            _MANAGED,
            f"none: no namespace has the label {keys.QUEUE_LABEL}",
            f"label a namespace: kubectl label namespace NAME {keys.QUEUE_LABEL}=QUEUE",
        )
        return
    excluded = policies.keys() & cluster.excluded
    by_default = {name for name, policy in policies.items() if policy.has_default_mode} - excluded
    off = {name for name, policy in policies.items() if policy.mode is Mode.OFF} - excluded - by_default
    managed = cluster.managed
    if managed:
        yield ok(_MANAGED, f"{len(managed)}: {listed(managed)}")
    if excluded:
        yield warning(
            _MANAGED,
            f"{listed(excluded)}: labelled, but excluded by the webhook configuration",
            "remove the labels, or remove the namespace from the excluded ones",
        )
    if off:
        yield warning(
            _MANAGED,
            f"{listed(off)}: switched off by {keys_mode('off')}",
            "remove the label if the namespace is to be managed again",
        )
    if by_default and cluster.default_mode is not Mode.DEFAULT:
        make = warning if cluster.default_mode is Mode.OFF else ok
        message = f"{listed(by_default)}: mode {cluster.default_mode}, by --default-mode of the webhook"
        yield make(_MANAGED, message)
    yield from _not_selected(cluster, managed)


def _not_selected(cluster: Cluster, managed: dict[str, Namespace]) -> Iterator[CheckResult]:
    """Yield problems for managed namespaces that the webhook configurations do not select."""
    if cluster.mutate is not None:
        selector = cluster.mutate.namespace_selector
        missed = [name for name, namespace in managed.items() if not selector.matches(namespace.labels)]
        if missed:
            yield problem(
                _MANAGED,
                f"{listed(missed)}: not selected by the namespaceSelector of {cluster.mutate.name}",
                "upgrade the chart to this version",
            )
    enforced, hook = cluster.enforced, cluster.validate_pods
    if cluster.validating.is_known:
        missed = [
            name
            for name, namespace in enforced.items()
            if hook is None or not hook.namespace_selector.matches(namespace.labels)
        ]
        if missed:
            yield problem(
                "enforce",
                f"{listed(missed)}: {keys_mode('enforce')}, but no validating webhook selects them",
                "upgrade the chart to this version",
            )
        elif enforced:
            yield ok("enforce", f"{counted(len(enforced), 'namespace')}: {listed(enforced)}")


def keys_mode(value: str) -> str:
    """Return the mode label in the form KEY=VALUE."""
    return f"kaishare.dev/mode={value}"


def _invalid(cluster: Cluster) -> Iterator[CheckResult]:
    """Yield a problem for each invalid label, and a warning for labels without effect."""
    namespaces = cluster.namespaces.items
    problems = {namespace.name: label_problems(namespace.metadata) for namespace in namespaces}
    invalid = sorted((name, str(label)) for name, labels in problems.items() for label in labels.first)
    lines = invalid[:MOST_LINES]
    for name, message in lines:
        yield problem(_POLICIES, f"{one_line(name)}: {one_line(message)}")
    more = sum(labels.count for labels in problems.values()) - len(lines)
    if more:
        yield problem(_POLICIES, f"and {more} more invalid labels or selectors")
    idle = [namespace.name for namespace in namespaces if idle_labels(namespace.labels)]
    if idle:
        yield warning(
            _POLICIES,
            f"{listed(idle)}: kaishare labels have no effect without {keys.QUEUE_LABEL}",
            f"add {keys.QUEUE_LABEL}, or remove the labels",
        )
    yield from _overlaps(namespaces)
    if not invalid and any(namespace.policy for namespace in namespaces):
        yield ok(_POLICIES, "all labels are valid")


def _overlaps(namespaces: Sequence[Namespace]) -> Iterator[CheckResult]:
    """Yield a warning about sizes whose selectors probably select the same pods."""
    overlaps = [
        f"{one_line(namespace.name)} ({first.name} and {second.name}: {what})"
        for namespace in namespaces
        if namespace.policy is not None
        for first, second, what in selector_overlaps(namespace.policy.sizes)
    ]
    if overlaps:
        yield warning(
            _POLICIES,
            f"{listed(overlaps)}: a pod that both sizes select gets no share",
            "make the selectors exclude each other",
        )
