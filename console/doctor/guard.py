"""Checks of the guard: its parameters, its difference from this release's, and whether it refuses."""

import re
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

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
    """Yield values that weaken the guard or do not fit the cluster; only warnings if it refuses nothing."""
    make = problem if any(map(guard.refuses, guard.policies)) else warning
    read = {name: [values_of(text) for text in guard.variables(name)] for name in _LISTS}
    for name in [name for name, lists in read.items() if None in lists]:
        what = f"the variable {name} is not a list of names in quotes"
        yield make(what, f"set guard.{name} of the chart")
    own, chart = cluster.kai_namespace, "guard.kaiNamespaces of the chart"
    if cluster.kai_mutating and any(own not in names for names in read["kaiNamespaces"] if names is not None):
        yield make(
            f"kaiNamespaces lacks {one_line(own)}, where KAI's webhook runs: KAI's own requests are refused",
            f"add the namespace to {chart}",
        )
    tenants = {name for name in cluster.policies if name not in cluster.excluded} | set(hosts(cluster))
    for name in sorted(exempt_namespaces(guard) - {own}):
        of, whose = (make, "tenant's namespace") if name in tenants else (warning, "namespace")
        yield of(
            f"kaiNamespaces has {one_line(name)}: the accounts of the {whose} may write KAI's keys",
            f"unless KAI runs there, remove the namespace from {chart}",
        )
    used = {policy.scheduler for policy in cluster.managed.values()} | cluster.matched_schedulers
    advice = "set guard.schedulerName of the chart"
    for name in sorted(_names(read["schedulerName"])):
        if name == keys.DEFAULT_SCHEDULER:
            yield make(f"schedulerName is {name}: pods of vClusters get GPUs without KAI", advice)
        elif used and name not in used:
            yield warning(f"schedulerName is {quoted(name)}, but pods of KAI use {listed(used)}", advice)
    preemptible, chart = _names(read["preemptibleClasses"]), "guard.preemptibleClasses of the chart"
    if not preemptible or not cluster.priorities.is_known:
        return  # an admission policy cannot read PriorityClasses, so that the names are compared here
    classes = {each.metadata.name: each.value for each in items(cluster.priorities)}
    if wrong := [name for name in preemptible if classes.get(name, 0) >= _PREEMPTIBLE_BELOW]:
        yield make(
            f"preemptibleClasses has {listed(wrong)}, whose value is {_PREEMPTIBLE_BELOW} or more: pods that"
            " started as preemptible can move there, and KAI never reclaims their GPUs",
            f"remove these classes from {chart}",
        )
    low = {name for name, value in classes.items() if value < _PREEMPTIBLE_BELOW}
    if missing := low - preemptible:
        yield warning(
            f"preemptibleClasses lacks {listed(missing)}, whose value is below {_PREEMPTIBLE_BELOW}: a"
            " workload with pods cannot change to them",
            f"add these classes to {chart}",
        )


def exempt_namespaces(guard: Guard) -> set[str]:
    """Return the namespaces whose accounts count as KAI's."""
    return _names(map(values_of, guard.variables("kaiNamespaces")))


def _names(lists: Iterable[tuple[str, ...] | None]) -> set[str]:
    return {name for names in lists for name in names or ()}


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


_APPLY: Final = "upgrade the chart with guard.enabled=true and guard.action=deny"
_INSTALL: Final = (
    f"{_APPLY}; until then users of these namespaces can use other queues, and change a pod's share and"
    " priority"
)
_ABSENT: Final = "the guard lacks"
_UNSELECTED: Final = "no binding selects their objects for"
_REPORTING: Final = "the guard only reports violations of"


class _Section(NamedTuple):
    """What the guard does in the namespaces that need it for one reason."""

    guarded: Guarded
    refusing: Mapping[str, Sequence[str]]  # the namespaces where a policy refuses, by policy
    gaps: Sequence[CheckResult]
    excluded: Collection[str]  # namespaces that the administrator excluded by name
    others: int  # number of the other namespaces


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
    exempt = exempt_namespaces(guard)
    trials = [
        await prove(reader.client, cluster.pod_groups, exempt, section.guarded, section.refusing)
        for section in sections
    ]
    findings = [
        *_changes(guard),
        *(gap for section in sections for gap in section.gaps),
        *parameter_findings(guard, cluster),
        *_proof_findings([*trials[0], *trials[1]]),
    ]
    installed = cluster.installation
    is_running = not installed or not installed.programs or "podgroupcontroller" in installed.ready
    if PODGROUPS in guard.policies and not is_running:
        what = "KAI's podgroup-controller is not running: the guard takes new PodGroups for empty, so that"
        advice = f"start it again: kubectl -n {cluster.kai_namespace} get pods"
        findings.append(problem(f"{what} they can be deleted under their pods, and keeps old ones", advice))
    for finding in findings:
        yield finding
    if all(each.is_answered for each in lists) and not exit_status(findings):
        for section, tried in zip(sections, trials, strict=True):
            if not section.gaps and section.others:
                yield _stands(section, tried)


def _changes(guard: Guard) -> Iterator[CheckResult]:
    for name, policy in sorted(guard.policies.items()):
        if is_changed(policy):
            make = problem if guard.refuses(name) or policy.spec.mutations else warning
            what = f"{one_line(name)} is not as its release made it: it may admit forbidden requests"
            yield make(what, _APPLY)
    releases = {name: each.metadata.labels.get(VERSION_LABEL, "") for name, each in guard.policies.items()}
    if others := [f"{name} ({each or 'unknown'})" for name, each in releases.items() if each != version()]:
        yield warning(f"of another release than this command, {version()}: {listed(others)}", _APPLY)


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
    return _Section(guarded, grouped(refusing), findings, excluded, len(namespaces) - len(excluded))


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


def _stands(section: _Section, trials: Sequence[Trial]) -> CheckResult:
    refused = [trial for trial in trials if trial.is_refused]
    is_host = section.guarded is Guarded.VCLUSTERS
    places = ("host namespace of vClusters", "host namespaces of vClusters") if is_host else ("namespace",)
    where, titles = listed({trial.namespace for trial in refused}), [trial.breach.title for trial in refused]
    proof = f"proved by dry runs in {where}: {', '.join(titles)}" if refused else "not proved"
    unguarded = f"; not guarded: {listed(section.excluded)}" if section.excluded else ""
    return ok(f"refuses in {counted(section.others, *places)}, as this release's; {proof}{unguarded}")
