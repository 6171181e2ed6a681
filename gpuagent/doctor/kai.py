"""Checks of the installed KAI for the agent: version and GPU sharing. Pure."""

from kai.installation import NAMESPACE, Installation, SharingMode
from kai.version import Version
from kube.kai_check import MODES, SHARING, VERSION, installed_mode, installed_release, option_text
from service.check_results import CheckResult, ok, problem


def version_finding(installed: Installation, configured: Version | None) -> CheckResult:
    """Compare KAI's release with the value of `--kai-version`; None means a current version."""
    version = installed_release(installed, NAMESPACE, option_text("the agent", configured))
    if isinstance(version, CheckResult):
        return version
    if configured is not None and configured != version:
        what = f"{version}, but --kai-version is {configured}"
    elif configured is None and version.counts_megabytes:
        what = f"{version}, which counts GPU memory in units of 10^6 bytes; --kai-version is not set"
    else:
        return ok(VERSION, str(version))
    return problem(VERSION, what, f"set --kai-version {version}")


def sharing_finding(installed: Installation) -> CheckResult:
    """Check the sharing mode."""
    mode = installed_mode(installed, NAMESPACE)
    if isinstance(mode, CheckResult):
        return mode
    if mode is SharingMode.DISABLED:
        return problem(SHARING, MODES[mode], f"install KAI with {installed.sharing_values}")
    return ok(SHARING, MODES[mode])
