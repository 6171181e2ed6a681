"""Checks of policies: the webhook's settings, the namespaces' labels, LimitRanges, vClusters' hosts. Pure."""

from collections.abc import Collection, Iterator
from typing import Final

from console.cluster.facts import items
from console.doctor.check_results import CheckResult, grouped, limited, ok, problem, unknown, warning
from console.doctor.cluster_state import ClusterFacts
from kai import keys
from kai.kaishare_keys import INJECT, MODE, VCLUSTER, VCLUSTER_HOST
from kube.metadata import NAME_LABEL
from service.text import MOST_LINES, counted, listed, one_line
from webhook.policy.labels import Mode, idle_labels, label_problems
from webhook.policy.sizes import selector_overlaps
from webhook.registration.configuration_objects import Webhook
from webhook.registration.configurations import MUTATE, VALIDATE_PODS


def settings_are_published(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.is_absent and not cluster.is_by_policies:
        return
    if cluster.running.published is None:
        yield unknown(
            f"the webhook's settings are not known: {one_line(cluster.running.unpublished)}",
            "give --default-mode, if the webhook has this option; its log says why it cannot write the"
            " ConfigMap",
        )
    else:
        yield ok(f"published by the {'chart' if cluster.is_by_policies else 'webhook'}")


_OWN_KEYS: Final = frozenset({keys.QUEUE_LABEL, MODE, NAME_LABEL})  # keys of the chart's namespaceSelector
_PLATFORM: Final = "; if a platform adds it again, see docs/doctor.md"


def namespaces_are_managed(cluster: ClusterFacts) -> Iterator[CheckResult]:
    policies = cluster.policies
    if cluster.namespaces.value is None:
        return
    if not policies:
        yield warning(
            f"{cluster.options.namespace} lacks the label {keys.QUEUE_LABEL}: kaishare leaves its pods alone"
            if cluster.options.namespace
            else f"none: no namespace has the label {keys.QUEUE_LABEL}",
            f"kubectl label namespace {cluster.options.namespace or 'NAME'} {keys.QUEUE_LABEL}=QUEUE",
        )
        return
    excluded, managed = policies.keys() & cluster.excluded, cluster.managed
    by_default = {name for name, policy in policies.items() if policy.has_default_mode} - excluded
    off = {name for name, policy in policies.items() if policy.mode is Mode.OFF} - excluded - by_default
    if managed:
        yield ok(f"{len(managed)}: {listed(managed)}")
    if excluded:
        yield warning(
            f"{listed(excluded)}: labelled, but excluded by the"
            f" {'admission policy' if cluster.is_by_policies else 'webhook configuration'}",
            "remove the labels, or remove the namespace from the excluded ones",
        )
    if off:
        yield warning(
            f"{listed(off)}: switched off by {MODE}=off",
            "remove the label if the namespace is to be managed again",
        )
    mode, hook = cluster.running.rules.default_mode, cluster.hook(MUTATE)
    if by_default and mode is not Mode.DEFAULT:
        make = warning if mode is Mode.OFF else ok
        yield make(f"{listed(by_default)}: mode {mode}, by --default-mode of the webhook")
    if hook is not None:
        yield from _hidden(hook, cluster, cluster.acting if cluster.is_by_policies else managed)


def enforce_is_enforced(cluster: ClusterFacts) -> Iterator[CheckResult]:
    enforced, hook = cluster.enforced, cluster.hook(VALIDATE_PODS)
    if cluster.validating.value is None or not enforced:
        return
    if hook is None:
        if cluster.admission.deciding is not None or not cluster.admission.is_known:
            return  # other findings say that the policy is missing, or was not read
        what = f"{listed(enforced)}: {MODE}=enforce, but no validating webhook exists"
        yield problem(what, "upgrade the chart to this version")
        return
    hidden = list(_hidden(hook, cluster, enforced))
    yield from hidden
    if not hidden:
        yield ok(f"{counted(len(enforced), 'namespace')}: {listed(enforced)}")


def namespaces_would_be_managed(cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Yield a finding about the namespaces that an installation would take over at once (`--pre`)."""
    if cluster.namespaces.value is None:
        return
    label, mode = keys.QUEUE_LABEL, cluster.running.rules.default_mode
    taken = [
        each.name
        for each in cluster.namespaces.value
        if each.policy and each.name not in cluster.excluded and not each.metadata.labels.keys() - {label}
    ]
    title = f"{counted(len(taken), 'namespace')} with {label} and no label of kaishare: {listed(taken)}"
    if not taken:
        yield ok(f"no namespace has the label {label} without a label of kaishare")
    elif mode is not Mode.DEFAULT:
        yield ok(f"{title}; their mode would be {mode}")
    else:
        yield warning(
            f"{title}; the webhook would change their new pods",
            "install with webhook.defaultMode=observe; then set kaishare.dev/mode=default on each in turn",
        )


def _hidden(hook: Webhook, cluster: ClusterFacts, namespaces: Collection[str]) -> Iterator[CheckResult]:
    """Yield a problem for each requirement that keeps namespaces, or all pods, from a webhook."""
    by_requirement = grouped(
        ((requirement.key, str(requirement)), name)
        for name in namespaces
        for requirement in hook.namespace_selector.unmet(cluster.labels[name])
    )
    place = "admission policy" if "AdmissionPolicy" in hook.name else "webhook configuration"
    for (key, wanted), names in sorted(by_requirement.items()):
        is_set = any(key in cluster.labels[name] for name in names)
        do = f"remove the label {key} from" if is_set else f"set the label {key} on"
        advice = f"{do} the namespaces, or remove the requirement from the {place}{_PLATFORM}"
        yield problem(
            f"{listed(names)}: hidden from {hook.name}, whose namespaceSelector requires {one_line(wanted)}",
            "upgrade the chart to this version" if key in _OWN_KEYS else advice,
        )
    foreign = [str(line) for line in hook.object_selector.unmet({}) if line.key != INJECT]
    if foreign and namespaces:
        yield problem(
            f"pods are hidden from {hook.name}: its objectSelector requires {listed(foreign)}",
            f"remove the requirement from the configuration, or label the pods{_PLATFORM}",
        )


def labels_are_valid(cluster: ClusterFacts) -> Iterator[CheckResult]:
    namespaces = items(cluster.namespaces)
    problems = {namespace.name: label_problems(namespace.metadata) for namespace in namespaces}
    invalid = sorted((name, str(label)) for name, labels in problems.items() for label in labels.first)
    for name, message in invalid[:MOST_LINES]:
        yield problem(f"{one_line(name)}: {one_line(message)}")
    more = sum(labels.count for labels in problems.values()) - min(len(invalid), MOST_LINES)
    if more:
        yield problem(f"and {more} more invalid labels or selectors")
    useless = sorted(line for namespace in namespaces for line in namespace.without_effect)
    yield from limited(list(map(warning, useless)), "more key without effect", "more keys without effect")
    idle = [namespace.name for namespace in namespaces if idle_labels(namespace.labels)]
    if idle:
        yield warning(
            f"{listed(idle)}: kaishare labels have no effect without {keys.QUEUE_LABEL}",
            f"add {keys.QUEUE_LABEL}, or remove the labels",
        )
    overlaps = [
        f"{one_line(namespace)} ({first.name} and {second.name}: {what})"
        for namespace, policy in cluster.policies.items()
        for first, second, what in selector_overlaps(policy.sizes)
    ]
    if overlaps:
        yield warning(
            f"{listed(overlaps)}: a pod that both sizes select gets no share",
            "make the selectors exclude each other",
        )
    if not invalid and cluster.policies:
        yield ok("all labels are valid")


def no_gpu_by_default(cluster: ClusterFacts) -> Iterator[CheckResult]:
    named = [
        "/".join(each.metadata.key)
        for each in items(cluster.limit_ranges)
        if each.metadata.namespace in cluster.acting
        if any(keys.GPU_RESOURCE in defaults for defaults in each.container_defaults())
    ]
    if named:
        yield warning(
            f"{counted(len(named), 'LimitRange')} with a default for {keys.GPU_RESOURCE}: {listed(named)}."
            " Every container gets a GPU request, which kaishare removes only from pods with the policy's"
            " share",
            f"remove {keys.GPU_RESOURCE} from default and defaultRequest",
        )
    elif cluster.limit_ranges.is_known:
        yield ok(f"no default for {keys.GPU_RESOURCE} in managed namespaces")


_MOST_IN_COMMAND: Final = 20  # namespaces in the command that labels them


def labelled_hosts(cluster: ClusterFacts) -> set[str]:
    """Return the namespaces that the administrator labelled as hosts of vClusters."""
    return {name for name, labels in cluster.labels.items() if labels.get(VCLUSTER) == VCLUSTER_HOST}


def hosts(cluster: ClusterFacts) -> list[str]:
    """Return the namespaces that are hosts of vClusters, or have pods with the label of vCluster's syncer."""
    with_pods = {pod.metadata.namespace for pod in items(cluster.synced)}
    return sorted(labelled_hosts(cluster) | with_pods)


def hosts_are_labelled(cluster: ClusterFacts) -> Iterator[CheckResult]:
    labelled = labelled_hosts(cluster)
    unlabelled = [name for name in hosts(cluster) if name not in labelled]
    enforced = [name for name in unlabelled if name in cluster.enforced]
    denied = f"; mode enforce denies such pods in {listed(enforced)}" if enforced else ""
    if unlabelled:
        yield (problem if enforced else warning)(
            f"pods of {listed(unlabelled)} have vCluster's keys, which count as a tenant's own words without"
            f" the label {VCLUSTER}{denied}",
            "if a vCluster runs there: kubectl label namespace"
            f" {' '.join(unlabelled[:_MOST_IN_COMMAND])} {VCLUSTER}=true",
        )
