"""Checks of the installed KAI: version and GPU sharing. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

from kai.installation import NAMESPACE, Installation, KaiPod
from kai.version import Version
from service.check_results import CheckResult, ok, problem, unknown
from service.text import one_line

_VERSION: Final = "KAI's version"
_SHARING: Final = "KAI's GPU sharing"


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
    if installed.shares_gpus is None:
        return unknown(_SHARING, f"no pod of KAI's admission in the namespace {NAMESPACE}")
    if not installed.shares_gpus:
        return problem(
            _SHARING,
            "off: KAI refuses every pod with a share",
            "install KAI with global.gpuSharing=true",
        )
    if installed.has_hami:
        return ok(_SHARING, "on, with limits that HAMi-core enforces in the containers")
    return ok(_SHARING, "on, without enforcement: no argument of KAI enables it")
