"""Checks of the installed KAI: version and GPU sharing. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kai.installation import NAMESPACE, Installation, KaiPod, SharingMode
from kai.version import Version
from service.check_results import CheckResult, ok, problem, unknown
from service.text import one_line

_VERSION: Final = "KAI's version"
_SHARING: Final = "KAI's GPU sharing"
_ENFORCEMENT: Final[Mapping[SharingMode, str]] = {
    SharingMode.NON_MEMORY_ENFORCED: "on, without enforcement: no argument of KAI enables it",
    SharingMode.HAMI_CORE: "on, with limits that HAMi-core enforces in the containers",
    SharingMode.NV_FRACTIONS: "on, with limits that NVIDIA's runtime enforces (NvFractions)",
}


def kai_findings(pods: Iterable[KaiPod], *, configured: Version | None) -> Iterator[CheckResult]:
    """Check version and sharing mode.

    Args:
        pods: pods of KAI's namespace.
        configured: value of `--kai-version`; None means a current version.
    """
    installed = Installation.seen_in(pods)
    yield _version(installed, configured)
    yield _sharing(installed)


def _version(installed: Installation, configured: Version | None) -> CheckResult:
    versions = installed.versions
    if not installed.programs:
        return unknown(_VERSION, f"no KAI pod in the namespace {NAMESPACE}")
    if not versions:
        return unknown(
            _VERSION,
            f"version not found in image tags: {', '.join(map(one_line, installed.images[:3]))}",
            "set --kai-version if KAI is older than 0.8.2",
        )
    if len(versions) > 1:
        all_versions = " and ".join(map(str, versions))
        return problem(_VERSION, f"{all_versions} at the same time", "finish or roll back the update of KAI")
    (version,) = versions
    if configured is not None and configured != version:
        return problem(
            _VERSION, f"{version}, but --kai-version is {configured}", f"set --kai-version {version}"
        )
    if configured is None and version.counts_megabytes:
        return problem(
            _VERSION,
            f"{version}, which counts GPU memory in units of 10^6 bytes; --kai-version is not set",
            f"set --kai-version {version}",
        )
    return ok(_VERSION, str(version))


def _sharing(installed: Installation) -> CheckResult:
    modes = installed.sharing_modes
    if not modes:
        return unknown(_SHARING, f"no pod of KAI's admission in the namespace {NAMESPACE}")
    if len(modes) > 1:
        return unknown(_SHARING, f"the pods of KAI's admission differ: {' and '.join(sorted(modes))}")
    (mode,) = modes
    if mode is SharingMode.DISABLED:
        return problem(
            _SHARING,
            "off: KAI refuses every pod with a share",
            f"install KAI with {installed.sharing_values}",
        )
    return ok(_SHARING, _ENFORCEMENT[mode])
