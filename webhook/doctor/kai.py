"""KAI as it is installed: release, sharing, whose pods its own webhook looks at, its RuntimeClass. Pure."""

import re
from collections.abc import Iterator
from typing import Final

from kai import keys
from kai.installation import Installation
from service.check_results import CheckResult, ok, problem, unknown, warning
from service.text import joined, listed, one_line
from webhook.doctor.api_reader import Completeness
from webhook.doctor.cluster import Cluster
from webhook.registration.objects import WebhookConfiguration

_VERSION: Final = "KAI's version"
_SHARING: Final = "KAI's GPU sharing"
_LABEL: Final = "KAI's queue label"
_ADMISSION: Final = "KAI's webhook"
_RUNTIME_CLASS: Final = "RuntimeClass"
_SCHEDULER = re.compile(r"schedulerName\s*==\s*['\"]([^'\"]*)['\"]")


def kai_findings(cluster: Cluster) -> Iterator[CheckResult]:
    """Say which KAI this is, and what it does with the pods of managed namespaces."""
    installed = cluster.installation
    if installed is not None:
        yield _version(installed, cluster.kai_namespace)
        yield _sharing(installed, cluster)
        yield from _label(installed)
    if cluster.mutating.is_known:
        yield from _admission(cluster)


def runtime_classes(installed: Installation) -> dict[str, str]:
    """Which RuntimeClasses KAI names, and on what."""
    found: dict[str, str] = {}
    if installed.runtime_class:
        (version,) = installed.versions
        too = " or a whole GPU" if version.sets_runtime_class_for_whole_gpus else ""
        found[installed.runtime_class] = f"pods with a share{too}"
    reserving = installed.reservation_runtime_class
    if reserving and reserving not in found:
        found[reserving] = "the reservation pods of shares"
    return found


def runtime_class_finding(name: str, whose: str, is_there: bool | Completeness) -> CheckResult:
    """Say whether a RuntimeClass is there that KAI sets."""
    if is_there is Completeness.UNREAD:
        return unknown(_RUNTIME_CLASS, f'whether "{one_line(name)}" exists is not known')
    if is_there:
        return ok(_RUNTIME_CLASS, f'"{one_line(name)}", which KAI gives {whose}, exists')
    return problem(
        _RUNTIME_CLASS,
        f'there is no RuntimeClass "{one_line(name)}", which KAI gives {whose}: they are refused',
        "install NVIDIA's container toolkit or operator, which makes it, or tell KAI to set none",
    )


def _version(installed: Installation, namespace: str) -> CheckResult:
    if not installed.programs:
        return unknown(
            _VERSION,
            f"no pod of KAI is seen in the namespace {one_line(namespace)}",
            "is KAI installed? Inside a vCluster it may be the host's",
        )
    if not installed.versions:
        return unknown(
            _VERSION,
            f"its images do not tell: {listed(installed.images)}",
            "tell serve with --kai-version",
        )
    if len(installed.versions) > 1:
        shown = " and ".join(map(str, installed.versions))
        return problem(_VERSION, f"{shown} at once", "finish, or undo, the update of KAI")
    (version,) = installed.versions
    return ok(_VERSION, f"{version}; serve with --kai-version {version}")


def _sharing(installed: Installation, cluster: Cluster) -> CheckResult:
    if installed.shares_gpus is None:
        return unknown(_SHARING, f"no pod of KAI's admission is seen in {one_line(cluster.kai_namespace)}")
    if installed.shares_gpus:
        return ok(_SHARING, "on, with limits that HAMi-core enforces" if installed.has_hami else "on")
    sharing = [name for name, one in cluster.managed.items() if one.policy and one.policy.share]
    what = "off: KAI refuses every pod with a share"
    if sharing:
        return problem(
            _SHARING,
            f"{what}, and pods of {listed(sharing)} get one",
            "install KAI with global.gpuSharing=true, or serve with --inject-shares=false",
        )
    return warning(_SHARING, what, "install KAI with global.gpuSharing=true")


def _label(installed: Installation) -> Iterator[CheckResult]:
    """Policies are followed by one label alone, and KAI may be told to read another."""
    label = installed.queue_label
    if label is not None and label != keys.QUEUE_LABEL:
        yield problem(
            _LABEL,
            f"it reads a pod's queue from the label {one_line(label)}: no queue"
            f" that {keys.QUEUE_LABEL} names is used",
            f"install KAI with global.queueLabelKey={keys.QUEUE_LABEL}, its default",
        )


def _admission(cluster: Cluster) -> Iterator[CheckResult]:
    found = cluster.kai_mutating
    if not found:
        yield unknown(
            _ADMISSION,
            "none is registered here: inside a vCluster it is the host's",
            "without one, pods with a share cannot start",
        )
        return
    yield ok(_ADMISSION, joined(_described(one) for one in (*found, *cluster.kai_validating)))
    for configuration in found:
        yield from _missed(cluster, configuration)
        yield from _picked(configuration)
    yield from _schedulers(cluster)


def _described(configuration: WebhookConfiguration) -> str:
    by_queue = any(
        (line.key, line.operator) == (keys.QUEUE_LABEL, "Exists")
        for hook in configuration.hooks
        for line in hook.namespace_selector.expressions or ()
    )
    name = one_line(configuration.name)
    return (
        f"{name}, for namespaces with the label {keys.QUEUE_LABEL} (queueLabelSelector)" if by_queue else name
    )


def _missed(cluster: Cluster, configuration: WebhookConfiguration) -> Iterator[CheckResult]:
    hooks = [hook for hook in configuration.hooks if hook.covers_new_pods]
    missed = [
        name
        for name, one in cluster.managed.items()
        if not any(hook.namespace_selector.matches(one.labels) for hook in hooks)
    ]
    if missed:
        yield problem(
            _ADMISSION,
            f"{one_line(configuration.name)} misses {listed(missed)}: pods with a share never start there",
            "correct KAI's namespaceLabelSelector, or take the queue label from these namespaces",
        )


def _picked(configuration: WebhookConfiguration) -> Iterator[CheckResult]:
    """KAI may be told to look only at pods with a label of their own, which no policy gives them."""
    hooks = [hook for hook in configuration.hooks if hook.covers_new_pods]
    if hooks and not any(hook.object_selector.matches({}) for hook in hooks):
        labels = {key for hook in hooks for key, _, _ in hook.object_selector.requirements}
        yield warning(
            _ADMISSION,
            f"{one_line(configuration.name)} looks only at pods labelled {listed(labels)}"
            " (podLabelSelector): KAI leaves others where they are",
            "label the pods, or take global.podLabelSelector from KAI",
        )


def _schedulers(cluster: Cluster) -> Iterator[CheckResult]:
    """KAI may be told to be another scheduler than policies name."""
    conditions = [
        condition.expression
        for configuration in cluster.kai_mutating
        for hook in configuration.hooks
        for condition in hook.match_conditions or ()
    ]
    known = {name for expression in conditions for name in _SCHEDULER.findall(expression)}
    if not known:
        return
    for scheduler in sorted({one.policy.scheduler for one in cluster.managed.values() if one.policy} - known):
        by = [
            name for name, one in cluster.managed.items() if one.policy and one.policy.scheduler == scheduler
        ]
        yield problem(
            _ADMISSION,
            f"it looks only at pods of {listed(known)}, and {listed(by)} give theirs to"
            f' "{one_line(scheduler)}"',
            "correct the label kaishare.dev/scheduler",
        )
