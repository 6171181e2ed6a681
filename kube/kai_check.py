"""Checks of KAI's release and GPU sharing, by the pods of its namespace, that every doctor has. Pure."""

from collections.abc import Mapping
from typing import Final

from kai.installation import Installation, SharingMode
from kai.version import Version
from service.check_results import CheckResult, problem, unknown
from service.text import listed, one_line

VERSION: Final = "KAI's version"
SHARING: Final = "KAI's GPU sharing"
MODES: Final[Mapping[SharingMode, str]] = {
    SharingMode.DISABLED: "off: KAI refuses every pod with a share",
    SharingMode.NON_MEMORY_ENFORCED: "on, without memory limits (NonMemoryEnforced)",
    SharingMode.HAMI_CORE: "on, with limits enforced by HAMi-core (HamiCore)",
    SharingMode.NV_FRACTIONS: "on, with limits enforced by NVIDIA's runtime (NvFractions)",
}


def installed_release(installed: Installation, namespace: str, setting: str) -> Version | CheckResult:
    """Return KAI's release, or a finding that explains why it is not known.

    Args:
        installed: the installation.
        namespace: KAI's namespace.
        setting: what is known of the service's own --kai-version, as a clause for a message.
    """
    if not installed.programs:
        return unknown(
            VERSION,
            f"no KAI pods found in namespace {one_line(namespace)}",
            "install KAI; inside a vCluster, KAI may run on the host",
        )
    if not installed.versions:
        return unknown(
            VERSION,
            f"version not found in image tags: {listed(installed.images)}; {setting}",
            "compare it with the release of KAI that you installed",
        )
    if installed.version is None:
        versions = " and ".join(map(str, installed.versions))
        return problem(VERSION, f"{versions} are installed together", "finish or undo the upgrade of KAI")
    return installed.version


def option_text(service: str, configured: Version | None) -> str:
    """Return with which --kai-version a service runs, as a clause."""
    return (
        f"{service} runs with --kai-version {configured}"
        if configured
        else f"{service} runs without --kai-version"
    )


def installed_mode(installed: Installation, namespace: str) -> SharingMode | CheckResult:
    """Return KAI's sharing mode, or a finding that explains why it is not known."""
    modes = installed.sharing_modes
    if not modes:
        return unknown(SHARING, f"no pod of KAI's admission found in {one_line(namespace)}")
    if len(modes) > 1:
        return unknown(
            SHARING,
            f"the pods of KAI's admission differ: {' and '.join(sorted(modes))}",
            "run doctor again when the rollout of KAI has ended",
        )
    (mode,) = modes
    return mode
