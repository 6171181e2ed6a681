"""Checks of the installation: webhook configurations, their order, and admission policies. Pure."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final

import msgspec

from console.cluster.facts import FactReader, items
from console.cluster.webhook import MUTATING, VALIDATING
from console.doctor.check_results import CheckResult, ok, problem, unknown, warning
from console.doctor.cluster_state import ClusterFacts
from kube.answers import REQUEST_ERRORS
from kube.metadata import LabelSelector
from kube.tokens import review_right
from service.text import joined, listed, one_line
from webhook.registration.call_order import called_before_us
from webhook.registration.configuration_objects import Webhook, WebhookConfiguration
from webhook.registration.configurations import (
    CONFIGURATION_NAME,
    PATHS,
    WARN_WORKLOADS,
    mutating_configuration,
    sorts_behind,
    validating_configuration,
)

OLDEST_KUBERNETES: Final = (1, 30)
"""The oldest release that the chart accepts: ValidatingAdmissionPolicy and matchConditions are v1 there."""
_NEIGHBOURS: Final = ("kai-pod-mutation", "kai-resource-isolator-mutating")
"""Configurations of projects around KAI (KRM, HAMi) that read the shares which kaishare sets."""
_REMEDY: Final = "upgrade the chart to this version, or restore the configuration from it"
_RENAME: Final = f"give kaishare's configuration a name that sorts first, such as {CONFIGURATION_NAME}"
_REQUIRED: Final = ("rules", "reinvocationPolicy", "matchPolicy", "sideEffects", "admissionReviewVersions")
_ADJUSTABLE: Final = ("failurePolicy", "timeoutSeconds")
"""Fields that an administrator may have reasons to change; a difference is only a warning."""


def kubernetes_is_supported(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.release is None:
        yield unknown("its release is not known")
        return
    title, oldest = (f"{major}.{minor}" for major, minor in (cluster.release, OLDEST_KUBERNETES))
    if cluster.release >= OLDEST_KUBERNETES:
        yield ok(f"Kubernetes {title}")
    else:
        yield problem(f"Kubernetes {title}: kaishare needs {oldest} or later", "upgrade the cluster")


async def caller_may_install(_cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    missing, client = [], reader.client
    for kind in (MUTATING, VALIDATING):
        try:
            status = await review_right(client, verb="create", resource=kind.resource, group=kind.group)
        except REQUEST_ERRORS as error:
            yield unknown(f"the right to create {kind.resource} is not known: {one_line(str(error))}")
            return
        missing += [] if status.allowed else [kind.full_resource]
    if missing:
        yield problem(
            f"the caller may not create {listed(missing)}", "install with an administrator's rights"
        )
    else:
        yield ok("the caller may create webhook configurations")


def policies_stand(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.admission.deciding is None:
        return
    changes = list(cluster.admission.changes())
    for kind, name, is_missing in changes:
        effect = "no pod is changed" if kind.startswith("Mutating") else "pods or labels are not validated"
        what = f"does not exist: {effect}" if is_missing else "is not as this release makes it"
        yield problem(
            f"{kind} {name} {what}",
            "upgrade the chart with webhook.kind=policy, or apply the output of kaishare render",
        )
    if not cluster.is_absent:
        yield warning(
            "the webhook and admission policies both stand; the policies decide first",
            "finish the switch: upgrade the chart with webhook.kind=policy or webhook.kind=webhook",
        )
    elif not changes and not cluster.admission.has_unread:
        yield ok("as expected; the API server decides about pods, and no webhook is installed")


def webhook_exists(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if not cluster.is_absent or cluster.admission.deciding is not None:
        return
    name = one_line(cluster.options.name)
    if cluster.admission.is_known:
        yield problem(
            f"kaishare's webhook is not installed here: no configuration {name} exists",
            "kaishare doctor --pre checks what an installation needs; for another name give"
            " --webhook-configuration",
        )
    else:
        why = "whether admission policies decide about pods is not known"
        yield unknown(f"no configuration {name} exists, and {why}")


def webhook_may_exist(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.our_mutating is not None:
        yield ok(f"{one_line(cluster.our_mutating.name)} exists: run doctor without --pre")


def mutating_as_shipped(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.mutating.value is not None and not cluster.is_absent:
        own, shipped = cluster.our_mutating, mutating_configuration()
        yield from _registered(cluster, own, shipped, "kaishare is called for no pod")


def validating_as_shipped(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.validating.value is not None and not cluster.is_absent:
        own, shipped = cluster.our_validating, validating_configuration()
        yield from _registered(cluster, own, shipped, "pods and labels are not validated")


def _registered(
    cluster: ClusterFacts, own: WebhookConfiguration | None, shipped: dict[str, Any], effect: str
) -> Iterator[CheckResult]:
    name = one_line(cluster.options.name)
    if own is None:
        yield problem(
            f'{shipped["kind"]} "{name}" does not exist: {effect}',
            "install the chart; if the object has another name, set --webhook-configuration",
        )
        return
    if own.name != cluster.options.name:
        yield warning(
            f'the object is named "{one_line(own.name)}", not "{name}"',
            "rename it, or set --webhook-configuration of the webhook and of doctor to its name",
        )
    expected = msgspec.convert(shipped, WebhookConfiguration)
    actual_hooks = {hook.name: hook for hook in own.hooks}
    findings: list[CheckResult] = []
    for hook in expected.hooks:
        actual = actual_hooks.get(hook.name)
        if actual is not None:
            is_warning = hook.name == WARN_WORKLOADS  # the chart's value names its kinds, or none
            rules = actual.rules if is_warning else hook.rules
            findings += _differences(actual, msgspec.structs.replace(hook, rules=rules))
        elif hook.name != WARN_WORKLOADS:
            findings.append(problem(f"{hook.name} is missing from {one_line(own.name)}", _REMEDY))
    foreign = actual_hooks.keys() - {hook.name for hook in expected.hooks}
    if foreign:
        what = f"{one_line(own.name)} has webhooks that are not kaishare's: {listed(foreign)}"
        findings.append(warning(what))
    yield from findings or [ok(f"{one_line(own.name)} is as expected")]


def _differences(actual: Webhook, expected: Webhook) -> Iterator[CheckResult]:
    conditions, expected_conditions = actual.match_conditions or [], expected.match_conditions or []
    if any("namespaceObject" in condition.expression for condition in conditions):
        yield problem(
            f"{actual.name} uses namespaceObject in its matchConditions, which fails for every pod"
            f" (with failurePolicy {one_line(actual.failure_policy)})",
            _REMEDY,
        )
    elif conditions != expected_conditions:
        names = {each.name for each in {*conditions} ^ {*expected_conditions}}
        which = listed(names) if names else "in another order"
        yield problem(f"{actual.name} has unexpected matchConditions: {which}", _REMEDY)
    differences, more = list(_changed(actual, expected, _REQUIRED)), []
    for field, own, wanted in (
        ("namespaceSelector", _without_names(actual), _without_names(expected)),
        ("objectSelector", actual.object_selector, expected.object_selector),
    ):
        if lacking := wanted.beyond(own):
            differences.append(f"{field} lacks {listed(list(map(str, lacking)))}")
        if beyond := own.beyond(wanted):
            more.append(f"{field} also requires {listed(list(map(str, beyond)))}")
    client = actual.client_config
    path = client.service.path if client.service else client.url or ""
    if not path.rstrip("/").endswith(PATHS[expected.name]):
        differences.append(f"its path is {_formatted(path)}, which must end in {PATHS[expected.name]}")
    if differences:
        yield problem(f"{actual.name}: {joined(differences)}", _REMEDY)
    adjusted = [*_changed(actual, expected, _ADJUSTABLE), *more]
    if adjusted:
        yield warning(f"{actual.name}: {joined(adjusted)}")


def _changed(actual: Webhook, expected: Webhook, fields: Iterable[str]) -> Iterator[str]:
    own, wanted = msgspec.to_builtins(actual), msgspec.to_builtins(expected)
    for field in fields:
        if own[field] != wanted[field]:
            yield f"{field} is {_formatted(own[field])}, not {_formatted(wanted[field])}"


def _formatted(value: Any) -> str:
    text = str(value) if isinstance(value, str | int) else msgspec.json.encode(value).decode()
    return one_line(text) or "empty"


def _without_names(hook: Webhook) -> LabelSelector:
    """Return the namespaceSelector without the excluded names, which may be chosen."""
    selector = hook.namespace_selector
    names = selector.excluded_namespaces
    kept = [line for line in selector.expressions or () if not names or set(line.values or ()) != names]
    return LabelSelector(selector.labels, kept)


def order_is_right(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.is_by_policies:
        yield ok("admission policies act before every webhook that changes pods")
    own = cluster.our_mutating
    if own is None:
        return
    early = called_before_us(items(cluster.mutating), own.name, cluster.kai_schedulers)
    if early:
        yield problem(
            f"{listed(early)} is called before {one_line(own.name)} and matches on schedulerName: it skips"
            " the pods that kaishare gives to KAI, and KAI never binds them",
            _RENAME,
        )
    others = [each for each in items(cluster.mutating) if each.pod_hooks and each.name != own.name]
    for other in others:
        yield from _neighbour(cluster, own.name, other)
    if not early:
        after = [other.name for other in others if sorts_behind(other.name, own.name)]
        before = f"{one_line(own.name)} is called before {listed(after)}"
        yield ok(before if after else "no other webhook changes pods")


def _neighbour(cluster: ClusterFacts, own: str, other: WebhookConfiguration) -> Iterator[CheckResult]:
    is_once = any(hook.reinvocation_policy != "IfNeeded" for hook in other.pod_hooks)
    reads_name = bool(cluster.versions) and all(each.reads_container_name for each in cluster.versions)
    if other in cluster.kai_mutating or other.name in _NEIGHBOURS:
        if sorts_behind(own, other.name) and is_once and not other.matches_on_scheduler_name:
            yield problem(
                f"{one_line(other.name)} is called before {one_line(own)} and only once (reinvocationPolicy"
                " Never): it does not see kaishare's changes",
                _RENAME,
            )
    elif sorts_behind(other.name, own) and not reads_name:
        yield warning(
            f"{one_line(other.name)} changes pods after kaishare: if it puts a container in first place,"
            " KAI before v0.9.12 gives the share to that one",
            "rename it to sort before kaishare's configuration, or use KAI v0.9.12 or newer",
        )
