"""Our webhook configurations as they are, against how they are meant; and their order. Pure."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from service.check_results import CheckResult, ok, problem, warning
from service.text import joined, listed, one_line
from webhook.doctor.cluster import Cluster, excluded_by
from webhook.registration.configurations import (
    CONFIGURATION_NAME,
    PATHS,
    UrlTarget,
    mutating_configuration,
    sorts_behind,
    validating_configuration,
)
from webhook.registration.objects import LabelSelector, Webhook, WebhookConfiguration
from webhook.registration.order import Mutator, called_before_us

_ORDER: Final = "order"
_NEIGHBOURS: Final = ("kai-pod-mutation", "kai-resource-isolator-mutating")
"""Of KAI's family; they look at shares that we give (KRM, HAMi)."""
_AGAIN: Final = "install this version's chart again, or write the configuration as it has it"
_MUST: Final = {
    "rules": "rules",
    "match_conditions": "matchConditions",
    "object_selector": "objectSelector",
    "reinvocation_policy": "reinvocationPolicy",
    "match_policy": "matchPolicy",
    "side_effects": "sideEffects",
    "admission_review_versions": "admissionReviewVersions",
}
_MAY: Final = {"failure_policy": "failurePolicy", "timeout_seconds": "timeoutSeconds"}
"""What an administrator may have reasons to change."""


def registration_findings(cluster: Cluster) -> Iterator[CheckResult]:
    """Say whether both are there and as they are meant, and in what order they are called."""
    for kind, all_of_them, own, build in (
        ("MutatingWebhookConfiguration", cluster.mutating, cluster.our_mutating, mutating_configuration),
        (
            "ValidatingWebhookConfiguration",
            cluster.validating,
            cluster.our_validating,
            validating_configuration,
        ),
    ):
        if all_of_them.is_known:
            meant = msgspec.convert(build(UrlTarget("https://x.invalid")), WebhookConfiguration)
            yield from _registered(kind, own, meant, cluster.name)
    yield from _order(cluster)


def _registered(
    kind: str, own: WebhookConfiguration | None, meant: WebhookConfiguration, name: str
) -> Iterator[CheckResult]:
    check = "mutating webhook" if kind.startswith("Mutating") else "validating webhooks"
    if own is None:
        yield problem(
            check,
            f'there is no {kind} "{one_line(name)}": no pod reaches kaishare'
            if kind.startswith("Mutating")
            else f'there is no {kind} "{one_line(name)}": nothing is enforced, and no label is checked',
            "install the chart; if it has another name, give it with --webhook-configuration",
        )
        return
    if own.name != name:
        yield warning(
            check,
            f'it is named "{one_line(own.name)}", not "{one_line(name)}"',
            "rename it, or tell serve and doctor its name with --webhook-configuration",
        )
    found = {hook.name: hook for hook in own.hooks}
    expected = {hook.name: hook for hook in meant.hooks}
    is_as_meant = True
    for hook_name, hook in expected.items():
        if hook_name not in found:
            is_as_meant = False
            yield problem(check, f"{hook_name} is missing from {one_line(own.name)}", _AGAIN)
            continue
        for finding in _differences(check, found[hook_name], hook):
            is_as_meant = False
            yield finding
    strange = found.keys() - expected.keys()
    if strange:
        is_as_meant = False
        yield warning(check, f"{one_line(own.name)} has webhooks that are not kaishare's: {listed(strange)}")
    if is_as_meant:
        yield ok(check, f"{one_line(own.name)} is as it is meant")


def _differences(check: str, found: Webhook, meant: Webhook) -> Iterator[CheckResult]:
    conditions = found.match_conditions or []
    if any("namespaceObject" in condition.expression for condition in conditions):
        yield problem(
            check,
            f"{found.name} asks for namespaceObject in its matchConditions, which fails for every pod"
            f" (with failurePolicy {one_line(found.failure_policy)})",
            _AGAIN,
        )
    elif found.match_conditions != meant.match_conditions:
        yield problem(check, f"{found.name} has other matchConditions: {_conditions(found, meant)}", _AGAIN)
    wrong = [
        f"{shown} is {_said(getattr(found, field))}, not {_said(getattr(meant, field))}"
        for field, shown in _MUST.items()
        if field != "match_conditions" and not _alike(getattr(found, field), getattr(meant, field))
    ]
    if _requirements(found) != _requirements(meant):
        wrong.append("namespaceSelector is another")
    path = found.client_config.service.path if found.client_config.service else found.client_config.url or ""
    if not path.rstrip("/").endswith(PATHS[meant.name]):
        wrong.append(f"it calls {_said(path)}, which must end in {PATHS[meant.name]}")
    if wrong:
        yield problem(check, f"{found.name}: {joined(wrong)}", _AGAIN)
    other = [
        f"{shown} is {_said(getattr(found, field))}, not {_said(getattr(meant, field))}"
        for field, shown in _MAY.items()
        if getattr(found, field) != getattr(meant, field)
    ]
    if other:
        yield warning(check, f"{found.name}: {joined(other)}")


def _alike(found: Any, meant: Any) -> bool:
    if isinstance(found, LabelSelector) and isinstance(meant, LabelSelector):
        return found.requirements == meant.requirements
    return bool(found == meant)


def _said(value: Any) -> str:
    if isinstance(value, LabelSelector):
        lines = (
            f"{key} {operator} {' '.join(values)}" for key, operator, values in sorted(value.requirements)
        )
        return one_line(joined(lines)) or "empty"
    if isinstance(value, str | int):
        return one_line(str(value)) or "empty"
    return one_line(msgspec.json.encode(value).decode())


def _conditions(found: Webhook, meant: Webhook) -> str:
    own, expected = (
        {one.name: one.expression for one in hook.match_conditions or ()} for hook in (found, meant)
    )
    parts = {
        "missing": expected.keys() - own.keys(),
        "not kaishare's": own.keys() - expected.keys(),
        "changed": {name for name in own.keys() & expected.keys() if own[name] != expected[name]},
    }
    return joined(f"{what}: {listed(names)}" for what, names in parts.items() if names) or "in another order"


def _requirements(hook: Webhook) -> frozenset[tuple[str, str, tuple[str, ...]]]:
    """What namespaces must be like, but for the list of excluded ones, which is the administrator's."""
    names = tuple(sorted(excluded_by(hook)))
    return frozenset(one for one in hook.namespace_selector.requirements if not names or one[2] != names)


def _order(cluster: Cluster) -> Iterator[CheckResult]:
    own = cluster.our_mutating
    if own is None:
        return
    early = called_before_us(map(Mutator.of, cluster.mutating.items), own.name)
    if early:
        yield problem(
            _ORDER,
            f"{listed(early)} is called before {one_line(own.name)} and looks at schedulerName: it never sees"
            " the pods that kaishare makes KAI's, and they are never bound",
            f"give our configuration a name that sorts before it, such as {CONFIGURATION_NAME}",
        )
    others = [one for one in cluster.mutating.items if one.covers_new_pods and one.name != own.name]
    for other in others:
        yield from _neighbour(cluster, own.name, other)
    if not early:
        after = [one.name for one in others if sorts_behind(one.name, own.name)]
        yield ok(
            _ORDER,
            f"{one_line(own.name)} is called before {listed(after)}" if after else "nobody else changes pods",
        )


def _neighbour(cluster: Cluster, own: str, other: WebhookConfiguration) -> Iterator[CheckResult]:
    """What the place of another mutating webhook for pods means."""
    is_family = other in cluster.kai_mutating or other.name in _NEIGHBOURS
    hooks = [hook for hook in other.hooks if hook.covers_new_pods]
    if is_family:
        is_once = any(hook.reinvocation_policy != "IfNeeded" for hook in hooks)
        if sorts_behind(own, other.name) and is_once and not other.matches_on_scheduler_name:
            yield problem(
                _ORDER,
                f"{one_line(other.name)} is called before {one_line(own)} and never again (reinvocationPolicy"
                " Never): it does not see what kaishare does",
                f"give our configuration a name that sorts before it, such as {CONFIGURATION_NAME}",
            )
        return
    versions = cluster.installation.versions if cluster.installation else ()
    reads_name = bool(versions) and all(version.reads_container_name for version in versions)
    if sorts_behind(other.name, own) and not reads_name:
        yield warning(
            _ORDER,
            f"{one_line(other.name)} changes pods after kaishare: if it puts a container first, KAI before"
            " v0.9.12 gives that one the share",
            "name it so that it sorts before ours, or use KAI v0.9.12 or newer",
        )
