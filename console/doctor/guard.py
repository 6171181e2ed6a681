"""Checks of the guard: its parameters, its difference from this release's, and whether it refuses."""

import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from console.cluster.agents import VERSION_LABEL
from console.cluster.facts import FactReader, Listing, Why, items
from console.doctor.admission import (
    OPTIONAL,
    PARAMETERS,
    PODGROUPS,
    REPLACED,
    Guard,
    Guarded,
    covers_objects,
    is_changed,
    refuses,
)
from console.doctor.check_results import CheckResult, exit_status, grouped, ok, problem, unknown, warning
from console.doctor.cluster_state import ClusterFacts
from console.doctor.guard_proof import Trial, prove
from console.doctor.policy_checks import hosts
from kai import keys
from kube.metadata import NAME_LABEL
from service.text import counted, joined, listed, one_line, quoted
from service.version import version

_LISTS: Final = PARAMETERS[:3]  # the variables with names, as the chart's values of the guard
_PREEMPTIBLE_BELOW: Final = 100
"""Value of a PriorityClass from which KAI's pods are not preemptible (`constants.go`, v0.9.8 to v0.17.0)."""
_STRING: Final = re.compile(r"'([A-Za-z0-9._-]*)'|\"([A-Za-z0-9._-]*)\"")


def parameter_findings(guard: Guard, cluster: ClusterFacts) -> Iterator[CheckResult]:
    for name in _LISTS:
        if unreadable := [policy for policy, values in _values(guard, name).items() if values is None]:
            yield _result(guard, unreadable)(
                f"{listed(unreadable)}: the variable {name} is not a list of names in quotes",
                f"set guard.{name} of the chart",
            )
    own, values = cluster.kai_namespace, _values(guard, "kaiNamespaces").items()
    lacking = [policy for policy, names in values if names is not None and own not in names]
    if lacking and cluster.kai_mutating:
        yield _result(guard, lacking)(
            f"{listed(lacking)}: kaiNamespaces lacks {one_line(own)}, where KAI's webhook runs: KAI's own"
            " requests are refused",
            "add the namespace to guard.kaiNamespaces of the chart",
        )
    tenants = {name for name in cluster.policies if name not in cluster.excluded} | set(hosts(cluster))
    for name, policies in _by_value(guard, "kaiNamespaces").items():
        if name != own:
            make: Callable[[str, str], CheckResult] = warning
            whose = "namespace"
            if name in tenants:
                make, whose = _result(guard, policies), "tenant's namespace"
            yield make(
                f"{listed(policies)}: kaiNamespaces has {one_line(name)}: the accounts of the {whose}"
                f" {one_line(name)} may write KAI's keys",
                "unless KAI runs there, remove the namespace from guard.kaiNamespaces of the chart",
            )
    used = {policy.scheduler for policy in cluster.managed.values()} | cluster.matched_schedulers
    advice = "set guard.schedulerName of the chart"
    for name, policies in _by_value(guard, "schedulerName").items():
        title = f"{listed(policies)}: schedulerName is"
        if name == keys.DEFAULT_SCHEDULER:
            yield _result(guard, policies)(f"{title} {name}: pods of vClusters get GPUs without KAI", advice)
        elif used and name not in used:
            yield warning(f"{title} {quoted(name)}, but pods of KAI use {listed(used)}", advice)
    yield from _preemptible_classes(guard, cluster)


def parameters_text(guard: Guard, policies: Collection[str]) -> str:
    """Return the parameters of some policies with their values, such as `kaiNamespaces: kai-scheduler`."""
    of = {name: _by_value(guard, name).items() for name in _LISTS}
    values = {name: [value for value, by in of[name] if not set(by).isdisjoint(policies)] for name in of}
    return joined(f"{name}: {listed(names)}" for name, names in values.items() if names)


def values_of(expression: str) -> tuple[str, ...] | None:
    """Return the strings of a CEL string or list of strings; None for any other expression."""
    text = expression.strip()
    parts = [text]
    if text.startswith("[") and text.endswith("]"):
        parts = text[1:-1].split(",")
        if not parts[-1].strip():  # an empty list, or a comma at the end
            parts.pop()
    matches = [_STRING.fullmatch(part.strip()) for part in parts]
    return tuple(match[1] or match[2] or "" for match in matches if match) if all(matches) else None


def _values(guard: Guard, name: str) -> dict[str, tuple[str, ...] | None]:
    """Return the values of a parameter (`values_of`) by policy, for the policies that have it."""
    return {
        policy.name: values_of(variable.expression)
        for policy in guard.policies.values()
        for variable in policy.spec.variables or ()
        if variable.name == name
    }


def _by_value(guard: Guard, name: str) -> Mapping[str, list[str]]:
    """Return the policies that have a value in a parameter, by value."""
    by_policy = _values(guard, name).items()
    return grouped((value, policy) for policy, values in by_policy for value in values or ())


def _preemptible_classes(guard: Guard, cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Compare the list with the PriorityClasses, which an admission policy cannot read."""
    named = _by_value(guard, "preemptibleClasses")
    if not named or not cluster.priorities.is_known:
        return
    values = {each.metadata.name: each.value for each in items(cluster.priorities)}
    wrong = [name for name in named if values.get(name, 0) >= _PREEMPTIBLE_BELOW]
    missing = [name for name, value in values.items() if value < _PREEMPTIBLE_BELOW and name not in named]
    if wrong:
        yield _result(guard, _values(guard, "preemptibleClasses"))(
            f"preemptibleClasses has {listed(wrong)}, whose value is {_PREEMPTIBLE_BELOW} or more: pods that"
            " started as preemptible can move there, and KAI never reclaims their GPUs",
            "remove these classes from guard.preemptibleClasses of the chart",
        )
    if missing:
        yield warning(
            f"preemptibleClasses lacks {listed(missing)}, whose value is below {_PREEMPTIBLE_BELOW}: a"
            " workload with pods cannot change to them",
            "add these classes to guard.preemptibleClasses of the chart",
        )


def _result(guard: Guard, policies: Collection[str]) -> Callable[[str, str], CheckResult]:
    """Return `problem` if one of the policies refuses, else `warning`."""
    return problem if any(map(guard.refuses, policies)) else warning


_APPLY: Final = "upgrade the chart with guard.enabled=true and guard.action=deny"
_INSTALL: Final = (
    f"{_APPLY}; until then users of these namespaces can use other queues, and change a pod's share and"
    " priority"
)
_ABSENT: Final = "the guard lacks"
_UNSELECTED: Final = "no binding selects their objects for"
_REPORTING: Final = "the guard only reports violations of"


@dataclass(frozen=True, slots=True)
class _Section:
    """What the guard does in the namespaces that need it for one reason."""

    guarded: Guarded
    namespaces: Collection[str]
    refusing: Mapping[str, Sequence[str]]  # the namespaces where a policy refuses, by policy
    findings: Sequence[CheckResult]
    excluded: Collection[str]  # namespaces that the administrator excluded by name


async def guard_stands(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    """Yield findings about the guard: its gaps, its changes, its surroundings, and the proof.

    A missing guard is a warning, since a cluster whose users may not change pods or owners needs none.
    """
    lists: tuple[Listing[Any], ...] = (cluster.admission.validating, cluster.admission.validating_bindings)
    if any(each.value is None and each.why is not Why.UNSERVED for each in lists):
        return
    guard = Guard.of(cluster.admission)
    if replaced := guard.policies.keys() & REPLACED:
        what = f"the guard is of an earlier form, which judges what tenants write: {listed(replaced)}"
        yield problem(what, f"{_APPLY}; it replaces these policies")
        return
    sections = [
        _assess(guard, Guarded.ENFORCE, {name: cluster.labels[name] for name in cluster.enforced}),
        _assess(guard, Guarded.VCLUSTERS, {name: cluster.labels.get(name, {}) for name in hosts(cluster)}),
    ]
    exempt = _by_value(guard, "kaiNamespaces").keys()
    trials = [
        await prove(reader.client, cluster.pod_groups, exempt, section.guarded, section.refusing)
        for section in sections
    ]
    findings = [
        *_changes(guard),
        *(finding for section in sections for finding in section.findings),
        *parameter_findings(guard, cluster),
        *_surroundings(guard, cluster),
        *_proof_findings([*trials[0], *trials[1]]),
    ]
    for finding in findings:
        yield finding
    if all(each.is_answered for each in lists) and not exit_status(findings):
        for section, tried in zip(sections, trials, strict=True):
            if not section.findings and len(section.namespaces) > len(section.excluded):
                yield _stands(guard, section, tried)


def _changes(guard: Guard) -> Iterator[CheckResult]:
    for name, policy in sorted(guard.policies.items()):
        if is_changed(policy):
            make = problem if guard.refuses(name) or policy.spec.mutations else warning
            what = f"{one_line(name)} is not as its release made it: it may admit forbidden requests"
            yield make(what, _APPLY)
    releases = grouped(
        (policy.metadata.labels.get(VERSION_LABEL, ""), name) for name, policy in guard.policies.items()
    )
    for release, names in sorted(releases.items()):
        if release != version():
            of = one_line(release) if release else "an unknown release"
            yield warning(f"{listed(names)}: of {of}; this is {version()}", _APPLY)


def _assess(guard: Guard, guarded: Guarded, namespaces: Mapping[str, Mapping[str, str]]) -> _Section:
    """Check the bindings in the namespaces that need them, by their labels."""
    gaps: list[tuple[tuple[str, bool], str]] = []
    refusing, excluded = [], []
    needed = (*guarded.policies, *(name for name in OPTIONAL if name in guard.policies))
    for name, labels in namespaces.items():
        by_state = grouped((_state(guard, guarded, policy, name, labels), policy) for policy in needed)
        refusing += [(policy, name) for policy in by_state.get("", ())]
        unselected = by_state.get(_UNSELECTED, ())
        if unselected and all(guard.excludes(policy, name) for policy in unselected):
            excluded.append(name)
            continue
        gap = joined(
            f"{state} {', '.join(by_state[state])}"
            for state in (_ABSENT, _UNSELECTED, _REPORTING)
            if state in by_state
        )
        if len(by_state.get(_ABSENT, ())) == len(needed):
            gap = "the guard is not installed"
        if gap:  # a guard that denies elsewhere looks complete
            gaps.append(((gap, any(map(guard.refuses, unselected))), name))
    findings = [
        (problem if is_problem else warning)(f"{listed(names)}: {guarded}, but {gap}", _INSTALL)
        for (gap, is_problem), names in grouped(gaps).items()
    ]
    return _Section(guarded, namespaces, grouped(refusing), findings, excluded)


def _state(guard: Guard, guarded: Guarded, policy: str, name: str, labels: Mapping[str, str]) -> str:
    """Return what keeps a policy from refusing in a namespace; empty if it refuses."""
    bindings = guard.bindings_of(policy)
    if not bindings:
        return _ABSENT
    labels = {NAME_LABEL: name, **labels}
    selecting = [each for each in bindings if each.spec.match_resources.namespace_selector.matches(labels)]
    covering = [binding for binding in selecting if covers_objects(binding, guarded)]
    if any(map(refuses, covering)):
        return ""
    return _REPORTING if covering else _UNSELECTED


def _surroundings(guard: Guard, cluster: ClusterFacts) -> Iterator[CheckResult]:
    if PODGROUPS not in guard.policies:
        return
    installation = cluster.installation
    if installation and installation.programs and "podgroupcontroller" not in installation.ready:
        yield problem(
            "KAI's podgroup-controller is not running: the guard takes new PodGroups for empty, so that they"
            " can be deleted under their pods, and keeps old ones",
            f"start it again: kubectl -n {cluster.kai_namespace} get pods",
        )


def _proof_findings(trials: Sequence[Trial]) -> Iterator[CheckResult]:
    subjects = [(trial, f"{trial.breach.title} ({trial.breach.policy})") for trial in trials]
    admitted = grouped((trial.namespace, subject) for trial, subject in subjects if trial.is_admitted)
    for namespace, names in admitted.items():
        yield problem(
            f"a dry run of a forbidden request was admitted in namespace {one_line(namespace)}:"
            f" the guard does not act: {', '.join(names)}",
            _APPLY,
        )
    for why, names in grouped((trial.why, subject) for trial, subject in subjects if trial.why).items():
        yield unknown(f"not proved: {', '.join(names)}: {why}")


def _stands(guard: Guard, section: _Section, trials: Sequence[Trial]) -> CheckResult:
    refused = [trial for trial in trials if trial.is_refused]
    count = len(section.namespaces) - len(section.excluded)
    is_host = section.guarded is Guarded.VCLUSTERS
    places = ("host namespace of vClusters", "host namespaces of vClusters") if is_host else ("namespace",)
    where, titles = listed({trial.namespace for trial in refused}), [trial.breach.title for trial in refused]
    parts = (
        f"refuses in {counted(count, *places)}, as this release's",
        f"proved by dry runs in {where}: {', '.join(titles)}" if refused else "not proved",
        parameters_text(guard, section.guarded.policies),
        f"not guarded: {listed(section.excluded)}" if section.excluded else "",
    )
    return ok(joined(filter(None, parts)))
