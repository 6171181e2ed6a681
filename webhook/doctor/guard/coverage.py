"""Checks in which namespaces the bindings of the guard refuse. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from service.check_results import CheckResult, problem, warning
from service.text import joined, listed, one_line
from webhook.doctor.guard.comparison import Coverage, candidates, coverage, differences, weakening
from webhook.doctor.guard.objects import Binding, Guard, Guarded, excluded_names, shipped_guard

_CHECK: Final = "guard"
APPLY: Final = "apply this release's guard (chart: guard.action=deny; or kubectl apply -k deploy/guard/deny)"
_INSTALL: Final[Mapping[Guarded, str]] = {
    Guarded.ENFORCE: (
        "install the guard with guard.action=deny; until then users of these namespaces can change the share"
        " and queue of a pod after its creation, and choose a queue by an owner"
    ),
    Guarded.VCLUSTERS: (
        "install the guard with guard.action=deny; until then tenants can change the share and queue of a"
        " pod, and use any queue"
    ),
}
_SUBJECTS: Final[Mapping[Guarded, str]] = {
    Guarded.ENFORCE: "kaishare.dev/mode=enforce",
    Guarded.VCLUSTERS: "pods of vClusters",
}


@dataclass(slots=True)
class GuardSection:
    """The bindings for one purpose, and what they do in the namespaces that need them."""

    guarded: Guarded
    namespaces: Collection[str]
    """The namespaces that need the bindings."""
    findings: list[CheckResult] = field(default_factory=list)
    refusing: dict[str, list[str]] = field(default_factory=dict)
    """The namespaces in which a policy should refuse, by policy."""
    lenient: set[str] = field(default_factory=set)
    """Policies whose bindings refuse nothing."""
    unguarded: set[str] = field(default_factory=set)
    """Host namespaces that the administrator excluded."""
    is_complete: bool = False
    """Whether every policy refuses in every namespace."""


def guards_vclusters(guard: Guard) -> bool:
    """Whether a part of the guard of vClusters is installed."""
    shipped = shipped_guard().shipped_for(Guarded.VCLUSTERS)
    return any(candidates(guard, binding) for binding in shipped)


def changed_policies(guard: Guard) -> Iterator[CheckResult]:
    """Yield findings about policies that differ from those of this release."""
    for name, policy in guard.policies.items():
        paths = differences(policy, shipped_guard().policies[name])
        yield from _difference(name, paths, refuses=guard.refuses(name))


def assess(guard: Guard, guarded: Guarded, namespaces: Mapping[str, Mapping[str, str]]) -> GuardSection:
    """Check the bindings for one purpose.

    Args:
        guard: the guard of the cluster.
        guarded: the purpose.
        namespaces: labels of the namespaces that need the bindings, by name.
    """
    section = GuardSection(guarded, namespaces.keys())
    policies: defaultdict[str, defaultdict[Coverage, list[str]]] = defaultdict(lambda: defaultdict(list))
    section.is_complete = True
    for shipped in shipped_guard().shipped_for(guarded):
        states: set[Coverage] = set()
        places = _places(guard, shipped, section, namespaces)
        for name, labels in places.items():
            state, refuses = coverage(guard, shipped, labels)
            states.add(state)
            policies[name][state].append(shipped.policy)
            if refuses:
                section.refusing.setdefault(shipped.policy, []).append(name)
            elif state in (Coverage.CHANGED, Coverage.REPORTS):
                section.lenient.add(shipped.policy)
        if not places:
            states.add(coverage(guard, shipped, None)[0])
        for binding in candidates(guard, shipped):
            paths = differences(binding, shipped)
            if Coverage.CHANGED in states or not weakening(paths):
                section.findings.extend(_difference(binding.name, paths, refuses=binding.refuses))
        if states != {Coverage.REFUSES}:
            section.is_complete = False
    section.findings.extend(_gaps(guard, guarded, policies))
    return section


def _gaps(
    guard: Guard, guarded: Guarded, policies: Mapping[str, Mapping[Coverage, list[str]]]
) -> Iterator[CheckResult]:
    """Yield findings about namespaces where policies refuse nothing.

    Args:
        guard: the guard of the cluster.
        guarded: the purpose of the bindings.
        policies: policies by namespace and by what they do there.
    """
    names_by_gap: defaultdict[tuple[str, bool], list[str]] = defaultdict(list)
    for name, by_state in policies.items():
        absent, unselected, reports = (
            ", ".join(by_state.get(state, ()))
            for state in (Coverage.ABSENT, Coverage.UNSELECTED, Coverage.REPORTS)
        )
        if by_state.keys() == {Coverage.ABSENT}:
            absent, gaps = "", ["the guard is not installed"]
        else:
            gaps = []
        if absent:
            gaps.append(f"the guard lacks {absent}")
        if unselected:
            gaps.append(f"no binding selects them for {unselected}")
        if reports:
            gaps.append(f"the guard only reports violations of {reports}")
        # A guard that denies elsewhere looks complete.
        is_problem = any(map(guard.refuses, by_state.get(Coverage.UNSELECTED, ())))
        if gaps:
            names_by_gap[joined(gaps), is_problem].append(name)
    for (gap, is_problem), names in names_by_gap.items():
        make = problem if is_problem else warning
        yield make(_CHECK, f"{listed(names)}: {_SUBJECTS[guarded]}, but {gap}", _INSTALL[guarded])


def _places(
    guard: Guard, shipped: Binding, section: GuardSection, namespaces: Mapping[str, Mapping[str, str]]
) -> Mapping[str, Mapping[str, str]]:
    """Return the namespaces that need a binding; an administrator may exclude hosts of vClusters by name."""
    if section.guarded is Guarded.ENFORCE:
        return namespaces
    exclusions = {binding.name: excluded_names(binding) for binding in candidates(guard, shipped)}
    others = [name for name, names in exclusions.items() if names is None]
    if others:
        what = f"{listed(others)} selects host namespaces by more than their names: compared, not proved"
        advice = "exclude host namespaces by name (guard.unguardedNamespaces); new ones are then guarded"
        section.findings.append(warning(_CHECK, what, advice))
        section.is_complete = False
        return {}
    excluded = {name for names in exclusions.values() for name in names or ()}
    section.unguarded |= excluded
    return {name: labels for name, labels in namespaces.items() if name not in excluded}


def _difference(name: str, paths: Sequence[str], *, refuses: bool) -> Iterator[CheckResult]:
    """Yield a finding about a policy or binding that differs from this release's."""
    serious = weakening(paths)
    if serious:
        make = problem if refuses else warning
        fields = listed(serious)
        yield make(
            _CHECK,
            f"{one_line(name)} differs from this release's in {fields}: it may admit forbidden edits",
            APPLY,
        )
    elif paths:
        fields = listed(paths)
        yield warning(
            _CHECK,
            f"{one_line(name)} differs from this release's in {fields}, but refuses the same requests",
            APPLY,
        )
