"""Messages about flags, for Events and the JSON API: their texts, figures, and what to do. Pure.

A message names no other object of the host, and not the pod itself: vCluster rewrites only the names of the
pod that the Event is about.
"""

from math import floor
from typing import Final

from gpuagent.first_acts import FOR_FLAG, FOR_IGNORED_ANNOTATION, FirstAct
from gpuagent.pods.bounds import ContainerCommand
from gpuagent.shares.pod_share import Validity
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.verdict import Change, Transition, Verdict
from kai.frameworks import PLAIN, beside_context, settings_of, value_text
from kai.installation import SharingMode
from service.units import size, time_over

WITHIN_SHARE: Final = "GPUMemoryWithinShare"
"""Reason of the Event that ends `over-share`."""
EVICTED: Final = "GPUShareEvicted"
"""Reason of the Event that precedes an eviction."""
_TEMPLATES: Final = {
    FlagReason.OVER_SHARE: "uses {used} on {gpu}, above its share of {allowed}, for {lasted}",
    FlagReason.UNASSIGNED_GPU: "uses {used} on {gpu}, which is not assigned to it, for {lasted}",
    FlagReason.NO_SHARE: "uses {used} on {gpu} without a GPU share, for {lasted}",
    FlagReason.SHARE_CHANGED: "the change to its GPU share has no effect: {changed}",
    FlagReason.LIMIT_BYPASSED: (
        "uses {used} on {gpu}, above its memory limit of {allowed}, which is not enforced, for {lasted}"
    ),
    FlagReason.NO_RESERVATION: (
        "its GPU is no longer reserved, so KAI may give the GPU to other pods or delete this pod"
    ),
    FlagReason.LIMIT_NOT_IN_FORCE: "{detail} on {gpu}",
    FlagReason.LIMIT_DIFFERS: "{detail} on {gpu}",
}
"""Message of a raised flag by reason; the names in braces stand for the figures of the verdict."""
_ANNOTATION_IGNORED: Final = (
    "uses {used} on {gpu} without a GPU share, for {lasted}: its share annotation does not count, because KAI"
    " did not place the pod"
)
"""Message of `no-share` for a pod that declares a share and was not placed by KAI."""
_OVER_TOGETHER: Final = (
    "uses {used} on {gpu} together with the other pods of its resource claim, above the claim's {allowed},"
    " for {lasted}"
)
"""Message of `over-share` for pods that share a ResourceClaim."""


def event_reason(transition: Transition) -> str | None:
    """Return the reason of the Event that a transition causes; None if it causes none.

    Only `over-share` has an Event when it clears. A dropped flag has none.
    """
    reason = transition.verdict.key.reason
    if transition.change is Change.FLAGGED:
        return reason.event_reason
    is_within = transition.change is Change.CLEARED and reason is FlagReason.OVER_SHARE
    return WITHIN_SHARE if is_within else None


def message(transition: Transition, gpu_bytes: int | None) -> str:
    """Describe a raised or cleared flag with its figures, and a raised one with what to do first."""
    verdict = transition.verdict
    if transition.change is Change.CLEARED:
        used, share = size(verdict.used_bytes), size(verdict.allowed_bytes)
        return f"uses {used} on {_gpu(verdict)}, within its share of {share} again"
    description, advice = _description(verdict, transition.seconds), _advice(verdict, gpu_bytes)
    return f"{description}{advice}. {first_act(verdict).text}"


def first_act(verdict: Verdict) -> FirstAct:
    """Return what to do first about a flag.

    In HamiCore every share is a limit, so that a pod above it escapes HAMi-core.
    """
    if _is_annotation_ignored(verdict):
        return FOR_IGNORED_ANNOTATION
    is_bypass = verdict.key.reason is FlagReason.OVER_SHARE and _sees_its_share(verdict)
    return FOR_FLAG[FlagReason.LIMIT_BYPASSED if is_bypass else verdict.key.reason]


def _sees_its_share(verdict: Verdict) -> bool:
    """Whether KAI lets a container see a GPU of its share's size."""
    return verdict.pod_share.sharing_mode is SharingMode.HAMI_CORE


def flag_message(verdict: Verdict, now: float, gpu_bytes: int | None) -> str:
    """Describe a standing flag at the time of the newest sample, in monotonic seconds."""
    if verdict.is_over:
        return _description(verdict, verdict.lasted(now)) + _advice(verdict, gpu_bytes)
    reason = verdict.key.reason
    uses = "" if verdict.used_bytes is None else f"uses {verdict.used_text} on {_gpu(verdict)} now; "
    return f"{uses}the flag ends with {reason.cleared_by}"


def eviction_message(verdict: Verdict, seconds: float, gpu_bytes: int | None) -> str:
    """Explain an eviction; `seconds` is how long the violation has lasted."""
    description = _description(verdict, seconds)
    return f"is evicted by its namespace's over-share policy: {description}{_advice(verdict, gpu_bytes)}"


def _is_annotation_ignored(verdict: Verdict) -> bool:
    candidates = verdict.pod_share.candidates
    return verdict.key.reason is FlagReason.NO_SHARE and any(
        candidate.validity is Validity.IGNORED for candidate in candidates
    )


def _description(verdict: Verdict, seconds: float) -> str:
    template = _ANNOTATION_IGNORED if _is_annotation_ignored(verdict) else _TEMPLATES[verdict.key.reason]
    if verdict.key.reason is FlagReason.OVER_SHARE and verdict.pod_share.on(verdict.key.gpu_uuid).peers:
        template = _OVER_TOGETHER
    return template.format(
        used=verdict.used_text,
        allowed=size(verdict.allowed_bytes),
        gpu=_gpu(verdict),
        lasted=time_over(seconds, verdict.balance),
        detail=verdict.detail,
        changed=verdict.pod_share.changed or "the share differs from the first one",
    )


def _gpu(verdict: Verdict) -> str:
    index = "" if verdict.gpu_index is None else f" {verdict.gpu_index}"
    return f"GPU{index} ({verdict.key.gpu_uuid})"


def _advice(verdict: Verdict, gpu_bytes: int | None) -> str:
    """Return the framework option to set; empty if no container runs a framework with such an option.

    A pod above its share shows that nothing holds its memory, so that a framework takes a part of the card,
    except in HamiCore: there a container sees a GPU of its share's size, and a process without HAMi-core is
    at fault. An advice is kept, since reading a command line takes up to 5 ms.
    """
    if not gpu_bytes or not verdict.allowed_bytes or verdict.used_bytes is None or _sees_its_share(verdict):
        return ""
    hundredths = floor(verdict.allowed_bytes / gpu_bytes * 100)
    commands = verdict.pod_share.pod.commands
    if hundredths < 1 or not commands:
        return ""
    key = id(commands), hundredths
    if key not in _KEPT or _KEPT[key][0] is not commands:
        while len(_KEPT) >= _MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]
        _KEPT[key] = commands, _advice_for(commands, hundredths)
    return _KEPT[key][1]


_MOST_KEPT: Final = 1024
_KEPT: Final[dict[tuple[int, int], tuple[tuple[ContainerCommand, ...], str]]] = {}
"""The newest advices by the identity of the commands and the part; the commands are kept with them, so that
no other object has the same identity."""


def _advice_for(commands: tuple[ContainerCommand, ...], hundredths: int) -> str:
    """Return the advice for the first framework whose option is unset or above a part of the GPU."""
    for setting in (setting for command in commands for setting in settings_of(command)):
        framework, value = setting.framework, setting.value
        text = value_text(framework, beside_context(framework, hundredths))
        form = "{option}={value}" if framework.sets == PLAIN else framework.sets
        advice = f"; {framework.name}: set {form.format(option=framework.shown, value=text)}"
        if value is None and not setting.is_hidden:
            return f"{advice} (by default it takes {framework.part} of {framework.base})"
        if value is not None and setting.is_above(hundredths / 100):
            return f"{advice} (now {value[:12]})"
    return ""
