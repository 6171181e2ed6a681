"""Checks of namespaces: their policy labels and LimitRanges, and whether the webhook is called. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Final

from console.doctor.admission_policies import PolicySelectors
from console.doctor.api_reader import ApiReader, ListOutcome, ListSpec
from console.doctor.check_results import CheckResult, ok, problem, warning
from console.doctor.cluster_state import Cluster, Namespace
from kai import keys
from kai.kaishare_keys import INJECT, MODE
from kube.kinds import LIMIT_RANGES
from kube.metadata import NAME_LABEL
from service.text import MOST_LINES, counted, listed, one_line
from webhook.policy.labels import Mode, idle_labels, label_problems
from webhook.policy.sizes import selector_overlaps
from webhook.registration.configuration_objects import Webhook

_CHECK: Final = "limit ranges"
_LIMIT_RANGES: Final = ListSpec(
    resource="limitranges",
    without=f"LimitRanges with a default for {keys.GPU_RESOURCE} were not checked",
    is_namespaced=True,
)


async def limit_range_findings(reader: ApiReader, cluster: Cluster) -> list[CheckResult]:
    """Return a warning about LimitRanges with a default for nvidia.com/gpu in managed namespaces."""
    if not cluster.acting:
        return []
    limit_ranges = await reader.list(_LIMIT_RANGES, partial(_with_gpu_default, managed=cluster.acting))
    if limit_ranges.items:
        finding = warning(
            _CHECK,
            f"{counted(len(limit_ranges.items), 'LimitRange')} with a default for {keys.GPU_RESOURCE}:"
            f" {listed(limit_ranges.items)}. Every container gets a GPU request, which kaishare removes only"
            " from pods with the policy's share",
            f"remove {keys.GPU_RESOURCE} from default and defaultRequest",
        )
        return [finding]
    if limit_ranges.outcome is ListOutcome.WHOLE:
        return [ok(_CHECK, f"no default for {keys.GPU_RESOURCE} in managed namespaces")]
    return []


def _with_gpu_default(item: bytes, managed: Collection[str]) -> str | None:
    """Return a LimitRange's name if it has a default for GPUs and its namespace is managed."""
    limit_range = LIMIT_RANGES.decode(item)
    namespace, name = limit_range.metadata.key
    has_default = any(keys.GPU_RESOURCE in amounts for amounts in limit_range.container_defaults())
    return f"{namespace}/{name}" if has_default and namespace in managed else None


_POLICIES: Final = "policies"
_MANAGED: Final = "managed namespaces"
_ENFORCE: Final = "enforce"
_OWN_KEYS: Final = frozenset({keys.QUEUE_LABEL, MODE, NAME_LABEL})
"""Keys of the chart's namespaceSelector."""
_PLATFORM: Final = "; if a platform adds it again, see docs/doctor.md"


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
            f"{cluster.namespace} lacks the label {keys.QUEUE_LABEL}: kaishare leaves its pods alone"
            if cluster.namespace
            else f"none: no namespace has the label {keys.QUEUE_LABEL}",
            f"kubectl label namespace {cluster.namespace or 'NAME'} {keys.QUEUE_LABEL}=QUEUE",
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
            f"{listed(excluded)}: labelled, but excluded by the"
            f" {'admission policy' if cluster.is_by_policies else 'webhook configuration'}",
            "remove the labels, or remove the namespace from the excluded ones",
        )
    if off:
        yield warning(
            _MANAGED,
            f"{listed(off)}: switched off by {MODE}=off",
            "remove the label if the namespace is to be managed again",
        )
    if by_default and cluster.default_mode is not Mode.DEFAULT:
        make = warning if cluster.default_mode is Mode.OFF else ok
        message = f"{listed(by_default)}: mode {cluster.default_mode}, by --default-mode of the webhook"
        yield make(_MANAGED, message)
    yield from _not_selected(cluster)


def _not_selected(cluster: Cluster) -> Iterator[CheckResult]:
    """Yield problems for managed namespaces that the webhooks or admission policies do not select."""
    enforced, policies = cluster.enforced, cluster.policies
    if cluster.mutate is not None:
        yield from _hidden(_MANAGED, cluster.mutate, cluster, cluster.managed)
    elif policies is not None:
        yield from _hidden(_MANAGED, policies.mutate, cluster, cluster.acting)
    if cluster.validating.is_known and enforced:
        hook: Webhook | PolicySelectors | None = cluster.validate_pods
        if hook is None and (policies is not None or not cluster.knows_policies):
            hook = policies.validate_pods if policies else None
            if hook is None:
                return  # other findings say that the policy is missing, or was not read
        if hook is None:
            what = f"{listed(enforced)}: {MODE}=enforce, but no validating webhook exists"
            yield problem(_ENFORCE, what, "upgrade the chart to this version")
            return
        hidden = list(_hidden(_ENFORCE, hook, cluster, enforced))
        yield from hidden
        if not hidden:
            yield ok(_ENFORCE, f"{counted(len(enforced), 'namespace')}: {listed(enforced)}")


def _hidden(
    check: str, hook: Webhook | PolicySelectors, cluster: Cluster, namespaces: Collection[str]
) -> Iterator[CheckResult]:
    """Yield a problem for each requirement that keeps namespaces, or all pods, from a webhook."""
    by_requirement: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name in namespaces:
        for requirement in hook.namespace_selector.unmet(cluster.labels[name]):
            by_requirement[requirement.key, str(requirement)].append(name)
    for (key, wanted), names in sorted(by_requirement.items()):
        labels = {cluster.labels[name][key] for name in names if key in cluster.labels[name]}
        has = f"have the label {key}={listed(labels)}" if labels else f"lack the label {key}"
        yield problem(
            check,
            f"{listed(names)}: hidden from {hook.name}, whose namespaceSelector requires {one_line(wanted)};"
            f" they {one_line(has)}",
            _advice(key, hook, is_present=bool(labels)),
        )
    foreign = [line for line in hook.object_selector.unmet({}) if line.key != INJECT]
    if foreign and namespaces:
        wanted = listed(list(map(str, foreign)))
        yield problem(
            check,
            f"pods are hidden from {hook.name}: its objectSelector requires {wanted}",
            f"remove the requirement from the configuration, or label the pods{_PLATFORM}",
        )


def _advice(key: str, hook: Webhook | PolicySelectors, *, is_present: bool) -> str:
    if key in _OWN_KEYS:
        return "upgrade the chart to this version"
    do = f"remove the label {key} from" if is_present else f"set the label {key} on"
    place = "webhook configuration" if isinstance(hook, Webhook) else "admission policy"
    return f"{do} the namespaces, or remove the requirement from the {place}{_PLATFORM}"


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
