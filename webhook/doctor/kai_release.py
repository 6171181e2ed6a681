"""Compares KAI's release with the one that the webhook decides for. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kai.installation import Installation
from kai.version import Version
from service.check_results import CheckResult, ok, problem, unknown, warning
from service.text import joined, listed, one_line
from webhook.doctor.cluster import Cluster

_VERSION: Final = "KAI's version"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDifference:
    """A property of KAI's releases that the webhook's answers depend on."""

    name: str
    """Name of the property of `Version`."""
    has: Callable[[Version], bool]
    only_webhook: str
    """The effect if the webhook's release has the property and KAI's has not; `{kai}` is KAI's release."""
    only_kai: str
    """The effect if KAI's release has the property and the webhook's has not."""
    matters_unset: bool = True
    """Whether a webhook without a release decides as if its release had not the property."""


DIFFERENCES: Final = (
    ReleaseDifference(
        name="reads_container_name",
        has=lambda version: version.reads_container_name,
        only_webhook="gives shares to containers that are not the first of their pod, which {kai} does not"
        " support: the first container gets the GPU",
        only_kai="keeps shares from pods whose GPU container is not the first, which {kai} supports",
    ),
    ReleaseDifference(
        name="accepts_dotted_names",
        has=lambda version: version.accepts_dotted_names,
        only_webhook="gives shares to pods with a dot in the name, which {kai} refuses",
        only_kai="keeps shares from pods with a dot in the name, which {kai} accepts",
    ),
    ReleaseDifference(
        name="validates_every_container",
        has=lambda version: version.validates_every_container,
        only_webhook="warns of a share beside the GPUs of a sidecar or init container, which {kai} admits",
        only_kai="does not warn of a share beside the GPUs of a sidecar or init container, which {kai}"
        " refuses",
        matters_unset=False,
    ),
    ReleaseDifference(
        name="demands_decimal_fraction",
        has=lambda version: version.demands_decimal_fraction,
        only_webhook="warns of fractions such as 0x1p-1, which {kai} admits",
        only_kai="does not warn of fractions such as 0x1p-1, which {kai} refuses",
        matters_unset=False,
    ),
)


def version_finding(installed: Installation, cluster: Cluster) -> CheckResult:
    """Return a finding that names KAI's release and the webhook's."""
    if not installed.programs:
        return unknown(
            _VERSION,
            f"no KAI pods found in namespace {one_line(cluster.kai_namespace)}",
            "install KAI; inside a vCluster, KAI may run on the host",
        )
    if not installed.versions:
        return unknown(
            _VERSION,
            f"version not found in image tags: {listed(installed.images)}; {_setting(cluster)}",
            "compare it with the release of KAI that you installed",
        )
    if len(installed.versions) > 1:
        versions = " and ".join(map(str, installed.versions))
        return problem(_VERSION, f"{versions} are installed together", "finish or undo the upgrade of KAI")
    (version,) = installed.versions
    advice = f"install kaishare with kaiVersion={version} (--kai-version)"
    if cluster.is_absent:
        return ok(_VERSION, f"{version}; {advice}")
    if not cluster.running.knows("kai_version"):
        return unknown(_VERSION, f"{version}; {_setting(cluster)}", advice)
    configured = cluster.running.rules.kai_version
    if configured == version:
        return ok(_VERSION, f"{version}, as the webhook's --kai-version")
    effects = list(_effects(configured, version))
    if configured is None:
        message = f"{version}, and the webhook runs without --kai-version"
        return warning(_VERSION, _with_effects(message, effects), advice)
    message = f"KAI is {version}, and the webhook runs with --kai-version {configured}"
    if effects:
        return problem(_VERSION, _with_effects(message, effects), advice)
    return warning(_VERSION, f"{message}; its answers are the same for both", advice)


def _setting(cluster: Cluster) -> str:
    if not cluster.running.knows("kai_version"):
        return "the webhook's --kai-version is not known"
    configured = cluster.running.rules.kai_version
    return (
        f"the webhook runs with --kai-version {configured}"
        if configured
        else "the webhook runs without --kai-version"
    )


def _with_effects(message: str, effects: list[str]) -> str:
    return f"{message}; it {joined(effects)}" if effects else message


def _effects(configured: Version | None, installed: Version) -> Iterator[str]:
    """Describe the answers of the webhook that do not fit the installed release."""
    for difference in DIFFERENCES:
        if configured is None:
            if difference.matters_unset and difference.has(installed):
                yield difference.only_kai.format(kai=installed)
        elif difference.has(configured) and not difference.has(installed):
            yield difference.only_webhook.format(kai=installed)
        elif difference.has(installed) and not difference.has(configured):
            yield difference.only_kai.format(kai=installed)
