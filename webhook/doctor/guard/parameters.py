"""Checks of the guard's parameters: the variables of its policies that an administrator may set. Pure."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import Final

from kai import keys
from service.check_results import CheckResult, problem, warning
from service.text import listed, one_line, quoted
from webhook.doctor.api_reader import ListOutcome
from webhook.doctor.cluster import Cluster
from webhook.doctor.guard.objects import Guard
from webhook.doctor.kai import matched_schedulers

_CHECK: Final = "guard"
_KAI_NAMESPACES: Final = "kaiNamespaces"
_SCHEDULER: Final = "schedulerName"
_CLASSES: Final = "preemptibleClasses"
_LISTS: Final = (_KAI_NAMESPACES, _SCHEDULER, _CLASSES)
_PREEMPTIBLE_BELOW: Final = 100
"""Value of a PriorityClass from which KAI's pods are not preemptible (`constants.go`, v0.9.8 to v0.17.0)."""
_STRING: Final = re.compile(r"'([A-Za-z0-9._-]*)'|\"([A-Za-z0-9._-]*)\"")


def parameter_findings(guard: Guard, cluster: Cluster, hosts: Collection[str]) -> Iterator[CheckResult]:
    """Yield findings about parameters that weaken the guard or refuse honest requests.

    Args:
        guard: the guard of the cluster.
        cluster: state of the cluster.
        hosts: namespaces with pods of vClusters.
    """
    for name in _LISTS:
        unreadable = [policy for policy, values in _values(guard, name).items() if values is None]
        if unreadable:
            yield _result(guard, unreadable)(
                _CHECK,
                f"{listed(unreadable)}: the variable {name} is not a list of names in quotes",
                f"set guard.{name} of the chart",
            )
    yield from _kai_namespaces(guard, cluster, hosts)
    yield from _scheduler(guard, cluster)
    yield from _preemptible_classes(guard, cluster)


def parameters_text(guard: Guard, policies: Collection[str]) -> str:
    """Return the parameters of some policies with their values, such as `kaiNamespaces: kai-scheduler`."""
    texts = []
    for name in _LISTS:
        by_policy = _values(guard, name).items()
        names = {value for policy, values in by_policy if policy in policies for value in values or ()}
        if names:
            texts.append(f"{name}: {listed(names)}")
    return "; ".join(texts)


def exempt_namespaces(guard: Guard) -> frozenset[str]:
    """Return the namespaces whose service accounts a policy exempts."""
    by_policy = _values(guard, _KAI_NAMESPACES)
    return frozenset(name for names in by_policy.values() for name in names or ())


def values_of(expression: str) -> tuple[str, ...] | None:
    """Return the strings of a CEL string or list of strings; None for any other expression."""
    text = expression.strip()
    items = [text]
    if text.startswith("[") and text.endswith("]"):
        items = text[1:-1].split(",")
        if not items[-1].strip():  # an empty list, or a comma at the end
            items.pop()
    matches = [_STRING.fullmatch(item.strip()) for item in items]
    return tuple(match[1] or match[2] or "" for match in matches if match) if all(matches) else None


def _values(guard: Guard, name: str) -> dict[str, tuple[str, ...] | None]:
    """Return the values of a parameter (`values_of`) by policy, for the policies that have it."""
    expressions = {policy.name: policy.variable(name) for policy in guard.policies.values()}
    return {policy: values_of(text) for policy, text in expressions.items() if text is not None}


def _kai_namespaces(guard: Guard, cluster: Cluster, hosts: Collection[str]) -> Iterator[CheckResult]:
    others: defaultdict[str, list[str]] = defaultdict(list)
    lacking = []
    for policy, names in _values(guard, _KAI_NAMESPACES).items():
        if names is None:
            continue
        if cluster.kai_mutating and cluster.kai_namespace not in names:
            lacking.append(policy)
        for name in names:
            if name != cluster.kai_namespace:
                others[name].append(policy)
    if lacking:
        yield _result(guard, lacking)(
            _CHECK,
            f"{listed(lacking)}: kaiNamespaces lacks {one_line(cluster.kai_namespace)}, where KAI's webhook"
            " runs: KAI's own requests are refused",
            f"add the namespace to guard.{_KAI_NAMESPACES} of the chart",
        )
    tenants = {
        namespace.name
        for namespace in cluster.namespaces.items
        if namespace.policy and namespace.name not in cluster.excluded
    }
    for name, policies in others.items():
        is_tenant = name in tenants or name in hosts
        title = f"tenant's namespace {one_line(name)}" if is_tenant else f"namespace {one_line(name)}"
        make = _result(guard, policies) if is_tenant else warning
        yield make(
            _CHECK,
            f"{listed(policies)}: kaiNamespaces has {one_line(name)}: the accounts of the {title} may write"
            " KAI's keys",
            f"unless KAI runs there, remove the namespace from guard.{_KAI_NAMESPACES} of the chart",
        )


def _scheduler(guard: Guard, cluster: Cluster) -> Iterator[CheckResult]:
    used = {policy.scheduler for policy in cluster.managed.values()}
    used |= matched_schedulers(cluster)
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for policy, names in _values(guard, _SCHEDULER).items():
        for name in names or ():
            by_name[name].append(policy)
    for name, policies in by_name.items():
        if name == keys.DEFAULT_SCHEDULER:
            yield _result(guard, policies)(
                _CHECK,
                f"{listed(policies)}: schedulerName is {name}: pods of vClusters get GPUs without KAI",
                f"set guard.{_SCHEDULER} of the chart",
            )
        elif used and name not in used:
            yield warning(
                _CHECK,
                f"{listed(policies)}: schedulerName is {quoted(name)}, but pods of KAI use {listed(used)}",
                f"set guard.{_SCHEDULER} of the chart",
            )


def _preemptible_classes(guard: Guard, cluster: Cluster) -> Iterator[CheckResult]:
    """Compare the list with the PriorityClasses, which an admission policy cannot read."""
    by_policy = _values(guard, _CLASSES)
    listed_classes = {name for names in by_policy.values() for name in names or ()}
    if not listed_classes or cluster.priorities.outcome is not ListOutcome.WHOLE:
        return
    values = {each.name: each.value for each in cluster.priorities.items}
    wrong = sorted(name for name in listed_classes if values.get(name, 0) >= _PREEMPTIBLE_BELOW)
    if wrong:
        yield _result(guard, by_policy)(
            _CHECK,
            f"preemptibleClasses has {listed(wrong)}, whose value is {_PREEMPTIBLE_BELOW} or more: pods that"
            " started as preemptible can move there, and KAI never reclaims their GPUs",
            f"remove these classes from guard.{_CLASSES} of the chart",
        )
    missing = sorted(
        name for name, value in values.items() if value < _PREEMPTIBLE_BELOW and name not in listed_classes
    )
    if missing:
        yield warning(
            _CHECK,
            f"preemptibleClasses lacks {listed(missing)}, whose value is below {_PREEMPTIBLE_BELOW}: a"
            " workload with pods cannot change to them",
            f"add these classes to guard.{_CLASSES} of the chart",
        )


def _result(guard: Guard, policies: Collection[str]) -> Callable[[str, str, str], CheckResult]:
    """Return `problem` if one of the policies refuses, else `warning`."""
    return problem if any(map(guard.refuses, policies)) else warning
