"""Hints about frameworks that would take more of the GPU than a pod's share."""

from collections.abc import Iterator

from kai.frameworks import MARKS, Setting, settings_of
from kai.pod import Container
from kai.share import Share
from service.text import shorten
from webhook.reasons import Finding, Reason


def may_run_framework(container: Container) -> bool:
    """Whether a framework's name stands in what the container runs: a cheap no for nearly all."""
    said = bytes(container.command) + bytes(container.args) + (container.image or "").encode()
    return any(mark in said for mark in MARKS)


def framework_findings(container: Container, share: Share) -> Iterator[Finding]:
    """Say where a framework would take more than the share of its container.

    Args:
        container: the one that gets the share.
        share: what the pod ends with.
    """
    for setting in settings_of(
        container.command_line,
        has_command=container.has_command,
        image=container.image,
        variables=container.variables,
    ):
        yield from _findings(setting, share)


def _findings(setting: Setting, share: Share) -> Iterator[Finding]:
    framework, value = setting.framework, setting.value
    who = {"framework": framework.name, "option": framework.option, "takes": framework.takes}
    if value is None:
        if setting.is_hidden:
            return
        if share.fraction is not None:
            yield Finding(Reason.FRAMEWORK_DEFAULT, {**who, "share": f"{share.fraction:g}"})
        else:
            yield Finding(Reason.FRAMEWORK_MEMORY, {**who, "share": f"{share.memory_mib} MiB"})
    elif share.fraction is not None and setting.is_above(share.fraction):
        share_text = f"{share.fraction:g}"
        yield Finding(Reason.FRAMEWORK_ABOVE_SHARE, {**who, "value": shorten(value, 12), "share": share_text})
