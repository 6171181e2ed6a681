"""Checks the guard (deploy/guard): compares it with the guard of this release, and proves that it refuses."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kai import keys
from kube.objects import decode_partial_object
from kube.watch import METADATA_ONLY
from service.check_results import CheckResult, exit_status, ok, problem, unknown
from service.text import counted, joined, listed, one_line
from webhook.doctor.api_reader import ApiReader, ListOutcome, ListSpec
from webhook.doctor.cluster import Cluster
from webhook.doctor.guard.coverage import APPLY, GuardSection, assess, changed_policies, guards_vclusters
from webhook.doctor.guard.objects import Guard, Guarded, read_binding, read_policy
from webhook.doctor.guard.parameters import exempt_namespaces, parameter_findings, parameters_text
from webhook.doctor.guard.proof import (
    ENFORCE_EDITS,
    VCLUSTER_EDITS,
    ForbiddenEdit,
    Trial,
    TrialOutcome,
    prove,
)
from webhook.registration.objects import NAME_LABEL

_CHECK: Final = "guard"
_GROUP: Final = "admissionregistration.k8s.io"
_WITHOUT: Final = "the guard was not checked"
_POLICIES: Final = ListSpec(resource="validatingadmissionpolicies", group=_GROUP, without=_WITHOUT)
_BINDINGS: Final = ListSpec(resource="validatingadmissionpolicybindings", group=_GROUP, without=_WITHOUT)
_SYNCED_PODS: Final = ListSpec(
    resource="pods",
    params={"labelSelector": keys.VCLUSTER_MANAGED_BY},
    accept=METADATA_ONLY,
    without="the guard was not checked for pods of vClusters",
)
_EDITS: Final[Mapping[Guarded, Sequence[ForbiddenEdit]]] = {
    Guarded.ENFORCE: ENFORCE_EDITS,
    Guarded.VCLUSTERS: VCLUSTER_EDITS,
}


async def guard_findings(reader: ApiReader, cluster: Cluster) -> list[CheckResult]:
    """Return findings about the guard: its gaps, its differences from this release's, and the proof.

    A missing guard is a warning, since a cluster whose users may not change pods or owners needs none.
    """
    policies = await reader.list(_POLICIES, read_policy)
    bindings = await reader.list(_BINDINGS, read_binding)
    if ListOutcome.UNREAD in (policies.outcome, bindings.outcome):
        return []
    guard = Guard({policy.name: policy for policy in policies.items}, bindings.items)
    sections = []
    if cluster.enforced or guard.policies:
        enforced = {name: cluster.labels[name] for name in cluster.enforced}
        sections.append(assess(guard, Guarded.ENFORCE, enforced))
    hosts: dict[str, Mapping[str, str]] = {}
    if guards_vclusters(guard):
        hosts = await _hosts(reader, cluster)
        sections.append(assess(guard, Guarded.VCLUSTERS, hosts))
    trials = [trial for section in sections for trial in await _proved(reader, guard, section)]
    findings = [
        *changed_policies(guard),
        *(finding for section in sections for finding in section.findings),
        *parameter_findings(guard, cluster, hosts),
        *_proof_findings(trials),
    ]
    is_known = ListOutcome.PART not in (policies.outcome, bindings.outcome)
    if is_known and not exit_status(findings):
        findings += [
            _stands(guard, section, trials)
            for section in sections
            if section.is_complete and (section.namespaces or section.guarded is Guarded.VCLUSTERS)
        ]
    return findings


async def _hosts(reader: ApiReader, cluster: Cluster) -> dict[str, Mapping[str, str]]:
    """Return the namespaces with pods of vClusters, with the labels that are known."""
    pods = await reader.list(_SYNCED_PODS, lambda item: decode_partial_object(item).metadata.namespace)
    return {name: {NAME_LABEL: name, **cluster.labels.get(name, {})} for name in sorted(set(pods.items))}


async def _proved(reader: ApiReader, guard: Guard, section: GuardSection) -> list[Trial]:
    """Try the forbidden edits of a section where a binding denies; the others are not proved."""
    edits, refusing = _EDITS[section.guarded], section.refusing
    plan = [(edit, sorted(refusing[edit.policy])) for edit in edits if edit.policy in refusing]
    return [
        *await prove(reader, plan, exempt_namespaces(guard)),
        *(
            Trial(edit, TrialOutcome.UNPROVED, why="the binding does not deny")
            for edit in edits
            if edit.policy in section.lenient and edit.policy not in refusing
        ),
    ]


def _proof_findings(trials: Sequence[Trial]) -> Iterator[CheckResult]:
    admitted: defaultdict[str, list[str]] = defaultdict(list)
    unproved: defaultdict[str, list[str]] = defaultdict(list)
    for trial in trials:
        subject = f"{trial.edit.policy} ({trial.edit.target.value})"
        if trial.outcome is TrialOutcome.ADMITTED:
            admitted[trial.namespace].append(subject)
        elif trial.outcome is TrialOutcome.UNPROVED:
            unproved[trial.why].append(subject)
    for namespace, subjects in admitted.items():
        yield problem(
            _CHECK,
            f"a dry run of a forbidden edit was admitted in namespace {one_line(namespace)}:"
            f" the guard does not act: {', '.join(subjects)}",
            APPLY,
        )
    for why, subjects in unproved.items():
        yield unknown(_CHECK, f"compared, not proved: {', '.join(subjects)}: {why}")


def _stands(guard: Guard, section: GuardSection, trials: Sequence[Trial]) -> CheckResult:
    edits, count = _EDITS[section.guarded], len(section.namespaces)
    refused = [trial for trial in trials if trial.edit in edits and trial.outcome is TrialOutcome.REFUSED]
    policies = sorted({trial.edit.policy for trial in refused})
    if section.guarded is Guarded.ENFORCE:
        subject = f"refuses ways past the webhook in {counted(count, 'namespace')}"
    else:
        subject = f"refuses forbidden edits of vClusters in {counted(count, 'host namespace')}"
    parts = (
        f"{subject if count else 'ready for vClusters'}, the same as this release's",
        f"proved by dry runs in {listed({trial.namespace for trial in refused})}: {', '.join(policies)}"
        if refused
        else "compared, not proved",
        parameters_text(guard, {edit.policy for edit in edits}),
        f"not guarded: {listed(section.unguarded)}" if section.unguarded else "",
    )
    return ok(_CHECK, joined(filter(None, parts)))
