"""Checks the guard (docs/guard.md): its release, where it refuses, and its effect by dry runs."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from service.check_results import CheckResult, exit_status, ok, problem, unknown, warning
from service.text import counted, joined, listed, one_line
from service.version import version
from webhook.doctor.api_reader import ApiReader, ListOutcome, ListSpec
from webhook.doctor.cluster import Cluster
from webhook.doctor.guard.objects import (
    PODGROUPS,
    REPLACED,
    Guard,
    Guarded,
    Policy,
    read_binding,
    read_policy,
)
from webhook.doctor.guard.parameters import exempt_namespaces, parameter_findings, parameters_text
from webhook.doctor.guard.proof import Breach, Prover, Trial, TrialOutcome
from webhook.doctor.vclusters import VclusterHosts
from webhook.registration.objects import NAME_LABEL

_CHECK: Final = "guard"
_GROUP: Final = "admissionregistration.k8s.io"
_WITHOUT: Final = "the guard was not checked"
_POLICIES: Final = ListSpec(resource="validatingadmissionpolicies", group=_GROUP, without=_WITHOUT)
_BINDINGS: Final = ListSpec(resource="validatingadmissionpolicybindings", group=_GROUP, without=_WITHOUT)
_OPTIONAL: Final = ListSpec(
    resource="mutatingadmissionpolicies",
    group=_GROUP,
    without="the guard's optional policies were not checked",
)
_APPLY: Final = "upgrade the chart with guard.enabled=true and guard.action=deny"
_INSTALL: Final = (
    f"{_APPLY}; until then users of these namespaces can use other queues, and change a pod's share and"
    " priority"
)
_CONTROLLER: Final = "podgroupcontroller"
_ASSIGNER: Final = "kai-pod-group-mutation"
"""Webhook configuration of kai-resource-management (v0.18.8), which writes queues on PodGroups."""


@dataclass(slots=True)
class _Section:
    """What the guard does in the namespaces that need it for one reason."""

    guarded: Guarded
    namespaces: Collection[str]
    refusing: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The namespaces where a policy refuses, by policy."""
    findings: list[CheckResult] = field(default_factory=list)
    excluded: set[str] = field(default_factory=set)
    """Namespaces that the administrator excluded by name."""

    @property
    def is_complete(self) -> bool:
        """Whether every policy refuses in every namespace that is not excluded."""
        return not self.findings and len(self.namespaces) > len(self.excluded)


async def guard_findings(reader: ApiReader, cluster: Cluster, hosts: VclusterHosts) -> list[CheckResult]:
    """Return findings about the guard: its gaps, its changes, its surroundings, and the proof.

    A missing guard is a warning, since a cluster whose users may not change pods or owners needs none.
    """
    policies = await reader.list(_POLICIES, read_policy)
    bindings = await reader.list(_BINDINGS, read_binding)
    optional = await reader.list(_OPTIONAL, read_policy)
    if ListOutcome.UNREAD in (policies.outcome, bindings.outcome):
        return []
    policies_by_name = {policy.name: policy for policy in (*policies.items, *optional.items)}
    guard = Guard(policies_by_name, bindings.items)
    replaced = sorted(guard.policies.keys() & REPLACED)
    if replaced:
        what = f"the guard is of an earlier form, which judges what tenants write: {listed(replaced)}"
        return [problem(_CHECK, what, f"{_APPLY}; it replaces these policies")]
    sections = [
        _assess(guard, Guarded.ENFORCE, {name: cluster.labels[name] for name in cluster.enforced}),
        _assess(guard, Guarded.VCLUSTERS, {name: cluster.labels.get(name, {}) for name in hosts.names}),
    ]
    prover = Prover(reader, cluster, exempt_namespaces(guard))
    trials = {section.guarded: await _proved(prover, section) for section in sections}
    findings = [
        *_changes(guard),
        *(finding for section in sections for finding in section.findings),
        *parameter_findings(guard, cluster, hosts.names),
        *_surroundings(guard, cluster),
        *_proof_findings([trial for tried in trials.values() for trial in tried]),
    ]
    is_known = ListOutcome.PART not in (policies.outcome, bindings.outcome)
    if is_known and not exit_status(findings):
        findings += [
            _stands(guard, section, trials[section.guarded]) for section in sections if section.is_complete
        ]
    return findings


def _changes(guard: Guard) -> Iterator[CheckResult]:
    """Yield findings about policies that are not as this release has them."""
    older: defaultdict[str, list[str]] = defaultdict(list)
    for name, policy in sorted(guard.policies.items()):
        if policy.release != version():
            older[policy.release].append(name)
        if policy.is_changed:
            make = problem if _acts(guard, policy) else warning
            what = f"{one_line(name)} is not as its release made it: it may admit forbidden requests"
            yield make(_CHECK, what, _APPLY)
    for release, names in sorted(older.items()):
        of = one_line(release) if release else "an unknown release"
        yield warning(_CHECK, f"{listed(names)}: of {of}; this is {version()}", _APPLY)


def _acts(guard: Guard, policy: Policy) -> bool:
    return guard.refuses(policy.name) or "mutations" in policy.spec


def _assess(guard: Guard, guarded: Guarded, namespaces: Mapping[str, Mapping[str, str]]) -> _Section:
    """Check the bindings in the namespaces that need them, by their labels."""
    section = _Section(guarded, namespaces)
    gaps: defaultdict[tuple[str, bool], list[str]] = defaultdict(list)
    for name, labels in namespaces.items():
        absent, unselected, reporting = [], [], []
        for policy in guarded.policies:
            bindings = guard.bindings_of(policy)
            covering = [
                binding
                for binding in bindings
                if binding.covers_objects(guarded)
                and binding.namespaces.matches({NAME_LABEL: name, **labels})
            ]
            if any(binding.refuses for binding in covering):
                section.refusing[policy].append(name)
            elif covering:
                reporting.append(policy)
            elif bindings:
                unselected.append(policy)
            else:
                absent.append(policy)
        if unselected and all(
            any(binding.excludes(name) for binding in guard.bindings_of(policy)) for policy in unselected
        ):
            section.excluded.add(name)
            continue
        if len(absent) == len(guarded.policies):
            gap = "the guard is not installed"
        else:
            gap = joined(
                f"{words} {', '.join(policies)}"
                for words, policies in (
                    ("the guard lacks", absent),
                    ("no binding selects their objects for", unselected),
                    ("the guard only reports violations of", reporting),
                )
                if policies
            )
        if gap:  # a guard that denies elsewhere looks complete
            gaps[gap, any(map(guard.refuses, unselected))].append(name)
    for (gap, is_problem), names in gaps.items():
        make = problem if is_problem else warning
        section.findings.append(make(_CHECK, f"{listed(names)}: {guarded}, but {gap}", _INSTALL))
    return section


def _surroundings(guard: Guard, cluster: Cluster) -> Iterator[CheckResult]:
    """Yield findings about programs by which the guard's rules hold, or fail."""
    if PODGROUPS not in guard.policies:
        return
    if any(configuration.name == _ASSIGNER for configuration in cluster.mutating.items):
        yield problem(
            _CHECK,
            "kai-resource-management writes queues on PodGroups, which the guard refuses",
            "remove the guard (guard.enabled=false): it is not for clusters with kai-resource-management",
        )
    installation = cluster.installation
    if installation and installation.programs and _CONTROLLER not in installation.ready:
        yield problem(
            _CHECK,
            "KAI's podgroup-controller is not running: the guard takes new PodGroups for empty, so that they"
            " can be deleted under their pods, and keeps old ones",
            f"start it again: kubectl -n {cluster.kai_namespace} get pods",
        )


async def _proved(prover: Prover, section: _Section) -> list[Trial]:
    """Try the forbidden requests where a binding refuses them; say which ones only a report would follow."""
    plan = [
        (breach, sorted(section.refusing[breach.policy]))
        for breach in Breach
        if section.refusing.get(breach.policy)
    ]
    return await prover.prove(section.guarded, plan)


def _proof_findings(trials: Sequence[Trial]) -> Iterator[CheckResult]:
    admitted: defaultdict[str, list[str]] = defaultdict(list)
    unproved: defaultdict[str, list[str]] = defaultdict(list)
    for trial in trials:
        subject = f"{trial.breach.title} ({trial.breach.policy})"
        if trial.outcome is TrialOutcome.ADMITTED:
            admitted[trial.namespace].append(subject)
        elif trial.outcome is TrialOutcome.UNPROVED:
            unproved[trial.why].append(subject)
    for namespace, subjects in admitted.items():
        yield problem(
            _CHECK,
            f"a dry run of a forbidden request was admitted in namespace {one_line(namespace)}:"
            f" the guard does not act: {', '.join(subjects)}",
            _APPLY,
        )
    for why, subjects in unproved.items():
        yield unknown(_CHECK, f"not proved: {', '.join(subjects)}: {why}")


def _stands(guard: Guard, section: _Section, trials: Sequence[Trial]) -> CheckResult:
    refused = [trial for trial in trials if trial.outcome is TrialOutcome.REFUSED]
    count = len(section.namespaces) - len(section.excluded)
    place = "namespace" if section.guarded is Guarded.ENFORCE else "host namespace of vClusters"
    parts = (
        f"refuses in {counted(count, place, place.replace('namespace', 'namespaces', 1))}, as this release's",
        f"proved by dry runs in {listed({trial.namespace for trial in refused})}:"
        f" {', '.join(trial.breach.title for trial in refused)}"
        if refused
        else "not proved",
        parameters_text(guard, section.guarded.policies),
        f"not guarded: {listed(section.excluded)}" if section.excluded else "",
    )
    return ok(_CHECK, joined(filter(None, parts)))
