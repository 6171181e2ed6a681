"""Compares KAI's release with the one that the webhook decides for. Pure."""

from dataclasses import dataclass
from typing import Final

from kai.installation import Installation
from kai.version import Version
from kube.doctor_checks import VERSION, installed_release, option_text
from service.check_results import CheckResult, ok, problem, unknown, warning
from service.text import joined
from webhook.doctor.cluster import Cluster


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
        has, webhook_has = getattr(installed, self.name), bool(configured and getattr(configured, self.name))
        if has == webhook_has or (configured is None and not self.matters_unset):
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


def version_finding(installed: Installation, cluster: Cluster) -> CheckResult:
    """Return a finding that names KAI's release and the webhook's."""
    is_known, configured = cluster.running.knows("kai_version"), cluster.running.rules.kai_version
    option = (
        option_text("the webhook", configured) if is_known else "the webhook's --kai-version is not known"
    )
    version = installed_release(installed, cluster.kai_namespace, option)
    if isinstance(version, CheckResult):
        return version
    advice = f"install kaishare with kaiVersion={version} (--kai-version)"
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
