"""Checks of the KAI installation: release, GPU sharing, webhooks, queue label and RuntimeClass."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from console.doctor.admission_policies import RELEASE_PROPERTIES
from console.doctor.api_reader import ApiReader, ListOutcome, ListSpec
from console.doctor.check_results import CheckResult, ok, problem, unknown, warning
from console.doctor.cluster_state import Cluster
from console.doctor.shared_checks import (
    MODES,
    SHARING,
    VERSION,
    installed_mode,
    installed_release,
    option_text,
)
from kai import keys
from kai.installation import Installation, SharingMode
from kai.releases import Version
from kube.kinds import decode_partial_object
from service.text import joined, listed, one_line
from webhook.registration.configuration_objects import WebhookConfiguration

_LABEL: Final = "KAI's queue label"
_ADMISSION: Final = "KAI's webhook"
_RUNTIME_CLASS: Final = "RuntimeClass"
_RUNTIME_CLASSES: Final = ListSpec(
    resource="runtimeclasses",
    verb="get",
    group="node.k8s.io",
    without="the RuntimeClass of pods with a share was not checked",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDifference:
    """A property of KAI's releases that the webhook's answers depend on."""

    name: str
    """Name of the property of `Version`."""
    only_webhook: str
    """The effect if the webhook's release has the property and KAI's has not; `{kai}` is KAI's release."""
    only_kai: str
    """The effect if KAI's release has the property and the webhook's has not."""
    matters_unset: bool = True
    """Whether a webhook without a release decides as if its release had not the property."""

    def effect(self, configured: Version | None, installed: Version) -> str:
        """Describe how the webhook's answers do not fit the installed release; empty if they fit."""
        if configured is None and not self.matters_unset:
            return ""
        return self.effect_of(installed, assumed=bool(configured and getattr(configured, self.name)))

    def effect_of(self, installed: Version, *, assumed: bool) -> str:
        """Describe the effect of a property that is assumed, or not, of the installed release."""
        has = getattr(installed, self.name)
        if has == assumed:
            return ""
        return (self.only_kai if has else self.only_webhook).format(kai=installed)


DIFFERENCES: Final = (
    ReleaseDifference(
        name="reads_container_name",
        only_webhook="gives shares to containers that are not the first of their pod, which {kai} does not"
        " support: the first container gets the GPU",
        only_kai="keeps shares from pods whose GPU container is not the first, which {kai} supports",
    ),
    ReleaseDifference(
        name="accepts_dotted_names",
        only_webhook="gives shares to pods with a dot in the name, which {kai} refuses",
        only_kai="keeps shares from pods with a dot in the name, which {kai} accepts",
    ),
    ReleaseDifference(
        name="validates_every_container",
        only_webhook="warns of a share beside the GPUs of a sidecar or init container, which {kai} admits",
        only_kai="does not warn of a share beside the GPUs of a sidecar or init container, which {kai}"
        " refuses",
        matters_unset=False,
    ),
    ReleaseDifference(
        name="demands_decimal_fraction",
        only_webhook="warns of fractions such as 0x1p-1, which {kai} admits",
        only_kai="does not warn of fractions such as 0x1p-1, which {kai} refuses",
        matters_unset=False,
    ),
)


def kai_findings(cluster: Cluster) -> Iterator[CheckResult]:
    """Yield findings about the KAI installation and its effect on managed namespaces."""
    installed = cluster.installation
    if installed is not None:
        yield version_finding(installed, cluster)
        yield _sharing(installed, cluster)
        yield from _label(installed)
    if cluster.mutating.is_known:
        yield from _admission(cluster)


def version_finding(installed: Installation, cluster: Cluster) -> CheckResult:
    """Return a finding that names KAI's release and that of the webhook or the admission policies."""
    if cluster.policies is not None and cluster.is_by_policies:
        return _policies_version(installed, cluster, cluster.policies.release_properties)
    is_known, configured = cluster.running.knows("kai_version"), cluster.running.rules.kai_version
    option = (
        option_text("the webhook", configured) if is_known else "the webhook's --kai-version is not known"
    )
    version = installed_release(installed, cluster.kai_namespace, option)
    if isinstance(version, CheckResult):
        return version
    advice = _advice(version)
    if cluster.is_absent:
        return ok(VERSION, f"{version}; {advice}")
    if not is_known:
        return unknown(VERSION, f"{version}; {option}", advice)
    if configured == version:
        return ok(VERSION, f"{version}, as the webhook's --kai-version")
    effects = joined(filter(None, (difference.effect(configured, version) for difference in DIFFERENCES)))
    if configured is None:
        return warning(VERSION, f"{version}, and {option}{f'; it {effects}' if effects else ''}", advice)
    message = f"KAI is {version}, and {option}"
    if effects:
        return problem(VERSION, f"{message}; it {effects}", advice)
    return warning(VERSION, f"{message}; its answers are the same for both", advice)


def _policies_version(
    installed: Installation, cluster: Cluster, assumed: Mapping[str, bool | None]
) -> CheckResult:
    """Return a finding that compares KAI's release with the one that the admission policies assume."""
    policy = "MutatingAdmissionPolicy kaishare"
    version = installed_release(
        installed, cluster.kai_namespace, f"{policy} was not compared with KAI's release"
    )
    if isinstance(version, CheckResult):
        return version
    unclear = [variable for variable, name in RELEASE_PROPERTIES.items() if assumed[name] is None]
    if unclear:
        what = f"{version}; {policy} has no value true or false for {listed(unclear)}"
        return unknown(VERSION, what, _advice(version))
    effects = joined(
        effect
        for difference in DIFFERENCES
        if (has := assumed.get(difference.name)) is not None
        and (effect := difference.effect_of(version, assumed=has))
    )
    if not effects:
        return ok(VERSION, f"{version}, and {policy} fits it")
    if not any(assumed.values()):
        return warning(
            VERSION, f"{version}, and {policy} fits KAI's oldest releases; it {effects}", _advice(version)
        )
    return problem(
        VERSION, f"KAI is {version}, and {policy} fits another release; it {effects}", _advice(version)
    )


def _advice(version: Version) -> str:
    return f"install kaishare with kaiVersion={version} (--kai-version)"


def runtime_classes(installed: Installation | None) -> dict[str, str]:
    """Return the RuntimeClasses that KAI sets, each with a description of its pods."""
    users: dict[str, str] = {}
    if installed is None:
        return users
    if installed.runtime_class:
        version = installed.version
        whole = " or a whole GPU" if version and version.sets_runtime_class_for_whole_gpus else ""
        users[installed.runtime_class] = f"pods with a share{whole}"
    reservation = installed.reservation_runtime_class
    if reservation and reservation not in users:
        users[reservation] = "the reservation pods of shares"
    return users


async def runtime_class_findings(reader: ApiReader, users: Mapping[str, str]) -> list[CheckResult]:
    """Return a finding about each RuntimeClass that KAI sets.

    Args:
        reader: for the API server; records what could not be read.
        users: the names of RuntimeClasses, each with a description of its pods.
    """
    findings = []
    for name, pods in users.items():
        exists = await reader.get(_RUNTIME_CLASSES, name, decode_partial_object)
        title = f'"{one_line(name)}", which KAI sets on {pods},'
        if exists is ListOutcome.UNREAD:
            finding = unknown(_RUNTIME_CLASS, f'could not read RuntimeClass "{one_line(name)}"')
        elif exists is not None:
            finding = ok(_RUNTIME_CLASS, f"{title} exists")
        else:
            finding = problem(
                _RUNTIME_CLASS,
                f"RuntimeClass {title} does not exist: these pods are refused",
                "install NVIDIA's container toolkit or operator, which creates it, or configure KAI to set"
                " none",
            )
        findings.append(finding)
    return findings


def matched_schedulers(cluster: Cluster) -> set[str]:
    """Return the names of schedulers that KAI's webhook matches; empty before v0.13.0, which has no match."""
    return {name for configuration in cluster.kai_mutating for name in configuration.scheduler_names}


def _sharing(installed: Installation, cluster: Cluster) -> CheckResult:
    """Return a finding about KAI's sharing mode, and whether the webhook's --inject-shares fits it."""
    mode = installed_mode(installed, cluster.kai_namespace)
    if isinstance(mode, CheckResult):
        return mode
    gives_none = cluster.running.knows("inject_shares") and not cluster.running.rules.inject_shares
    if mode is SharingMode.DISABLED:
        if gives_none:
            return ok(SHARING, "off, and the webhook gives no shares (--inject-shares=false)")
        sharing = [name for name, policy in cluster.managed.items() if policy.share or policy.sizes]
        advice = f"install KAI with {installed.sharing_values}"
        if sharing:
            return problem(
                SHARING,
                f"{MODES[mode]}, and policies give shares to pods of {listed(sharing)}",
                f"{advice}, or kaishare with webhook.injectShares=false",
            )
        return warning(SHARING, MODES[mode], advice)
    if gives_none:
        return warning(
            SHARING,
            f"{MODES[mode]}, but the webhook gives no shares: it runs with --inject-shares=false",
            "install kaishare with webhook.injectShares=true",
        )
    return ok(SHARING, MODES[mode])


def _label(installed: Installation) -> Iterator[CheckResult]:
    """Yield a problem if KAI is configured to read queues from another label than kaishare writes."""
    label = installed.queue_label
    if label is not None and label != keys.QUEUE_LABEL:
        yield problem(
            _LABEL,
            f"KAI reads a pod's queue from the label {one_line(label)} and ignores {keys.QUEUE_LABEL}",
            f"install KAI with global.queueLabelKey={keys.QUEUE_LABEL}, its default",
        )


def _admission(cluster: Cluster) -> Iterator[CheckResult]:
    configurations = cluster.kai_mutating
    if not configurations:
        yield unknown(
            _ADMISSION,
            "not registered here; inside a vCluster it is registered on the host",
            "pods with a share cannot start without KAI's webhook",
        )
        return
    yield ok(_ADMISSION, joined(map(_described, (*configurations, *cluster.kai_validating))))
    for configuration in configurations:
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
    hooks = configuration.pod_hooks
    missed = [
        name
        for name in cluster.managed
        if not any(hook.namespace_selector.matches(cluster.labels[name]) for hook in hooks)
    ]
    if missed:
        yield problem(
            _ADMISSION,
            f"{one_line(configuration.name)} does not select {listed(missed)}: pods with a share never start",
            "correct KAI's namespaceLabelSelector, or remove the queue label from these namespaces",
        )


def _picked(configuration: WebhookConfiguration) -> Iterator[CheckResult]:
    """Yield a warning if KAI's webhook selects only pods with a label that policies do not set."""
    hooks = configuration.pod_hooks
    if hooks and not any(hook.object_selector.matches({}) for hook in hooks):
        labels = {key for hook in hooks for key, _, _ in hook.object_selector.requirements}
        yield warning(
            _ADMISSION,
            f"{one_line(configuration.name)} selects only pods with the label {listed(labels)}"
            " (podLabelSelector); KAI ignores other pods",
            "label the pods, or remove global.podLabelSelector from KAI's values",
        )


def _schedulers(cluster: Cluster) -> Iterator[CheckResult]:
    """Yield a problem for each scheduler name in policies that KAI's webhook does not match."""
    known = matched_schedulers(cluster)
    if not known:
        return
    by_scheduler: defaultdict[str, list[str]] = defaultdict(list)
    for name, policy in cluster.managed.items():
        by_scheduler[policy.scheduler].append(name)
    for scheduler in sorted(by_scheduler.keys() - known):
        yield problem(
            _ADMISSION,
            f"matches only pods of {listed(known)}, but the policies of"
            f' {listed(by_scheduler[scheduler])} set the scheduler "{one_line(scheduler)}"',
            "correct the label kaishare.dev/scheduler",
        )
