"""Checks of the installation: webhook configurations, their order, and admission policies. Pure."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec

from console.cluster.facts import FactReader, items
from console.cluster.webhook import MUTATING, VALIDATING
from console.doctor.check_results import CheckResult, ok, problem, unknown, warning
from console.doctor.cluster_state import ClusterFacts
from kube.answers import REQUEST_ERRORS
from kube.metadata import NAME_LABEL, LabelSelector
from kube.tokens import review_right
from service.text import listed, one_line
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
_ADJUSTABLE: Final = frozenset({"failurePolicy", "timeoutSeconds"})
"""Fields that an administrator may have reasons to change; a difference is only a warning."""
_FREE: Final = ("rules", WARN_WORKLOADS)  # the chart's value names the kinds


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
    differences = list(cluster.admission.differences())
    if differences:
        yield problem(
            f"not as this release makes them: {listed(differences)}",
            "upgrade the chart with webhook.kind=policy, or apply the output of kaishare render",
        )
    if not cluster.is_absent:
        yield warning(
            "the webhook and admission policies both stand; the policies decide first",
            "finish the switch: upgrade the chart with webhook.kind=policy or webhook.kind=webhook",
        )
    elif not differences and cluster.admission.is_read:
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


def mutating_as_shipped(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.mutating.value is not None and not cluster.is_absent:
        shipped = mutating_configuration()
        yield from _registered(cluster.our_mutating, shipped, "kaishare is called for no pod")


def validating_as_shipped(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.validating.value is not None and not cluster.is_absent:
        shipped = validating_configuration()
        yield from _registered(cluster.our_validating, shipped, "pods and labels are not validated")


def _registered(
    own: WebhookConfiguration | None, document: dict[str, Any], effect: str
) -> Iterator[CheckResult]:
    shipped = msgspec.convert(document, WebhookConfiguration)
    if own is None:
        yield problem(
            f'{document["kind"]} "{shipped.name}" does not exist: {effect}',
            "install the chart; if the object has another name, set --webhook-configuration",
        )
        return
    findings = []
    by_name = {hook.name: hook for hook in own.hooks}
    for hook in shipped.hooks:
        if hook.name in by_name:
            fields = set(_differing(by_name[hook.name], hook))
            make = warning if fields <= _ADJUSTABLE else problem
            what = f"{hook.name} differs from this release: {listed(fields)}"
            findings += [make(what, _REMEDY)] if fields else []
        elif hook.name != WARN_WORKLOADS:  # the chart's value names its kinds, or none
            findings.append(problem(f"{hook.name} is missing from {one_line(own.name)}", _REMEDY))
    yield from findings or [ok(f"{one_line(own.name)} is as expected")]


def _differing(actual: Webhook, shipped: Webhook) -> Iterator[str]:
    """Yield the fields in which a webhook differs.

    The excluded namespaces, and the kinds of the warnings, are the administrator's. A platform may add
    requirements; the checks of namespaces say which pods these hide.
    """
    service, url = actual.client_config.service, actual.client_config.url
    path = service.path if service else url or ""
    if not path.rstrip("/").endswith(PATHS[shipped.name]):
        yield "path"
    for field in msgspec.structs.fields(Webhook):
        own, wanted = getattr(actual, field.name), getattr(shipped, field.name)
        if isinstance(wanted, LabelSelector):
            lacking = [line for line in wanted.beyond(own) if line.key != NAME_LABEL]
            if lacking:
                yield field.encode_name
        elif own != wanted and field.name != "client_config" and (field.name, shipped.name) != _FREE:
            yield field.encode_name


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
