"""The memory options of frameworks in the container with the share: what the webhook sets, and what it says.

With the label `kaishare.dev/framework-memory: set` the webhook writes an option that the author left open,
if the command is understood as a whole and KAI's mode is NonMemoryEnforced. In HamiCore a container sees a
GPU of its share's size, so that every default is right. In NvFractions it does so where the driver holds the
limit; a value above the share harms only the pod itself then.

    the container with the share                              set
    --------------------------------------------------------  -----------------------------------------
    the pod has the annotation with `keep`, or is of KubeRay  nothing
    it runs vLLM, alone and in a form that is understood      --gpu-memory-utilization at the end
    it runs TGI, likewise                                     CUDA_MEMORY_FRACTION
    it runs another server of the table, or several           nothing
    it shows PyTorch                                          PYTORCH_ALLOC_CONF
    any other                                                 the variables of JAX, CuPy and TensorFlow

Variables are not set beside `envFrom`, nor one that the pod names, nor with an unknown number of processes.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from kai import frameworks
from kai.command_lines import beginning, option_values, program, script_words
from kai.frameworks import (
    CUPY,
    FRAMEWORKS,
    JAX,
    PYTORCH,
    TENSORFLOW,
    TGI,
    VLLM,
    Framework,
    Setting,
    largest_value,
    may_run_framework,
    option_given,
    settings_of,
    value_text,
)
from kai.installation import SharingMode
from kai.kaishare_keys import FRAMEWORK_KEPT, FRAMEWORK_MEMORY
from kai.one_command import OneCommand, may_become_option, one_command, processes
from kai.pod import Container, PodView
from kai.refusals import asks_for_share, share_container
from kai.releases import NEWEST_READ
from kai.share import MIB, Share
from service.text import quoted, shorten
from webhook.policy.decide_share import ShareOutcome
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import FrameworkMemory, NamespacePolicy
from webhook.policy.reasons import Clipped, Finding, Reason

_LEAST: Final = 5
"""Smallest part that is set, in hundredths: a framework needs more than its context."""
_CONTEXT_MIB: Final = 600
"""MiB for the CUDA context of one process; not measured."""
_KUBERAY: Final = "ray.io/"
"""Prefix of the labels of KubeRay's pods: one environment reaches all workers."""
_ENFORCED: Final = (SharingMode.HAMI_CORE, SharingMode.DISABLED)
"""Modes in which no value is too large, or no pod with a share is admitted."""


class FrameworkOptions(Struct, frozen=True):
    """What is set in one regular container, and the annotation that tells of it."""

    container: int
    record: str
    """Such as `vllm=0.49`."""
    argument: str = ""
    """An argument that is added at the end of the command."""
    script_at: int | None = None
    """Index of the shell's script among the words of `command` and `args`; None adds to `args`."""
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def frameworks(self) -> list[str]:
        """The names in the record."""
        return [entry.partition("=")[0] for entry in self.record.split(",")]


class _Target(Struct, frozen=True):
    """The container that has the share."""

    container: Container
    share: Share

    @property
    def fraction(self) -> float | None:
        """The part of each GPU: the smaller one of what the pod says and what KAI hands over."""
        portion, fraction = self.share.portion, self.share.fraction
        return None if portion is None or fraction is None else min(float(portion), fraction)


def framework_options(
    policy: NamespacePolicy, pod: PodView, settings: DecisionSettings, share: ShareOutcome
) -> FrameworkOptions | None:
    """Return what to set in the container with the share; None for nothing."""
    if not _wants_options(policy, pod, settings) or _is_of_ray(pod):
        return None
    target = _target(pod, settings, share)
    if target is None:
        return None
    index = next((at for at, each in enumerate(pod.containers) if each is target.container), None)
    return None if index is None else _options(target, index)


def _wants_options(policy: NamespacePolicy, pod: PodView, settings: DecisionSettings) -> bool:
    return (
        policy.framework_memory is FrameworkMemory.SET
        and settings.gpu_sharing_mode is SharingMode.NON_MEMORY_ENFORCED
        and not settings.by_admission_policies
        and pod.annotations.get(FRAMEWORK_MEMORY) != FRAMEWORK_KEPT
    )


def _is_of_ray(pod: PodView) -> bool:
    return any(key.startswith(_KUBERAY) for key in pod.labels)


def _target(pod: PodView, settings: DecisionSettings, share: ShareOutcome) -> _Target | None:
    """Return the container with the policy's share or the pod's own; None if there is none."""
    try:
        if share.injected is not None and share.container is not None:
            container, request = share.container, share.injected.request
        elif asks_for_share(pod) and pod.containers:
            container = share_container(pod, settings.kai_version or NEWEST_READ)
            request = pod.share_request
        else:
            return None
    except (LookupError, ValueError):
        return None  # KAI refuses the pod, and share_findings says why
    if request is None or (request.fraction is not None and math.isnan(request.fraction)):
        return None
    return _Target(container, request)


def _options(target: _Target, index: int) -> FrameworkOptions | None:
    container = target.container
    if not all(map(_is_list, (container.command, container.args, container.env))):
        return None  # the API server refuses the pod
    line = container.command_line
    if beginning(line) is not line:
        return None  # the part that is not read may name anything
    words, command = script_words(line), one_command(line)
    servers = [row for row in FRAMEWORKS if row.is_server and frameworks.is_run(row, container, words)]
    if servers:
        part = 0 if target.fraction is None else largest_value(servers[0], target.fraction)
        if len(servers) > 1 or part < _LEAST:
            return None
        return _server_options(servers[0], container, command, index, part)
    named = _named(container, line)
    chosen = [each for each in _values(target, command, words) if _may_set(each[0], named)]
    if not chosen:
        return None
    variables: list[tuple[str, str]] = []
    for row, value in chosen:
        variables += [(row.variable, value), *((name, "") for name in row.beside)]
    record = ",".join(_entry(row, value) for row, value in chosen)
    return FrameworkOptions(index, record, variables=tuple(variables))


def _server_options(
    row: Framework, container: Container, command: OneCommand | None, index: int, part: int
) -> FrameworkOptions | None:
    """Return the option of a server whose command is understood as a whole."""
    command = _understood(row, container, command)
    if command is None or "--" in command.words or any(map(may_become_option, command.words)):
        return None
    given = option_values(command.words)
    if any(option_given(given, option) is not None for option in (row.option, *row.unknown_with)):
        return None
    text = value_text(row, part)
    record = _entry(row, text)
    if row is VLLM:
        argument = f"{row.option}={text}"
        return FrameworkOptions(index, record, argument=argument, script_at=command.script_at)
    if _may_set(row, _named(container, container.command_line)):
        return FrameworkOptions(index, record, variables=((row.variable, text),))
    return None


def _understood(row: Framework, container: Container, command: OneCommand | None) -> OneCommand | None:
    """Return the command of a server, or the arguments of its image; None for another form."""
    if not container.has_command:
        line = container.command_line
        name = (container.image or "").partition("@")[0].rpartition("/")[2].partition(":")[0]
        is_alone = name == row.image and (row is TGI or (row is VLLM and bool(line)))
        return OneCommand(line) if is_alone else None
    if command is None:
        return None
    name = program(command.words[0])
    if row is VLLM:
        is_served = name == "vllm" and list(command.words[1:2]) == ["serve"]
        return command if is_served or command.module == "vllm.entrypoints.openai.api_server" else None
    return command if row is TGI and name == "text-generation-launcher" else None


def _values(
    target: _Target, command: OneCommand | None, words: Sequence[str]
) -> Iterator[tuple[Framework, str]]:
    """Yield the variables for a container without a server, with their values."""
    count = _processes(target, command, words)
    if count is None:
        return
    rows = (PYTORCH,) if frameworks.is_run(PYTORCH, target.container, words) else (JAX, CUPY, TENSORFLOW)
    if target.fraction is None:
        left = (target.share.memory_mib or 0) // count - _CONTEXT_MIB
        if CUPY in rows and left > 0 and target.share.seen_by_scheduler:
            yield CUPY, str(left * MIB)
        return
    part = largest_value(JAX, target.fraction, count)
    if part >= _LEAST:
        yield from ((row, value_text(row, part)) for row in rows)


def _processes(target: _Target, command: OneCommand | None, words: Sequence[str]) -> int | None:
    """Return the number of processes on each GPU of the share; None if it cannot be read."""
    names = target.container.variable_values
    count = processes(command, command.words if command else words, names)
    if count is None or target.share.devices == 1:
        return count
    return 1 if count <= target.share.devices else None


def _named(container: Container, line: Sequence[str]) -> str | None:
    """Return all that may name a variable as one text, to be searched at once; None if some is unseen."""
    entries = container.variables
    if container.has_unseen_variables or not all(isinstance(entry, dict) for entry in entries):
        return None
    told = [
        text for entry in entries for text in (entry.get("name"), entry.get("value")) if isinstance(text, str)
    ]
    return "\n".join([*line, *told])


def _may_set(row: Framework, named: str | None) -> bool:
    """Whether nothing of the container names the variable of a framework, or one that conflicts with it."""
    return named is not None and not any(name in named for name in (*row.variables, *row.rivals))


def _is_list(raw: msgspec.Raw) -> bool:
    """Whether a field is absent, null or a list that can be decoded."""
    text = bytes(raw).strip()
    if text in (b"", b"null"):
        return True
    try:
        return isinstance(msgspec.json.decode(text), list)
    except (ValueError, RecursionError):
        return False


def _entry(row: Framework, text: str) -> str:
    """Return what the annotation tells about a framework."""
    return f"{row.key}={'growth' if row is TENSORFLOW else text.rpartition(':')[2]}"


# --- findings ----------------------------------------------------------------------------------------------


def framework_findings(
    policy: NamespacePolicy,
    pod: PodView,
    settings: DecisionSettings,
    share: ShareOutcome,
    options: FrameworkOptions | None,
) -> Iterator[Finding]:
    """Yield what the author should know: options that are set, and frameworks that would take more."""
    target = _target(pod, settings, share)
    yield from _ignored(pod, target)
    mode = settings.gpu_sharing_mode
    if target is None or mode in _ENFORCED:
        return
    container = target.container
    if options is not None and policy.announce:
        names = {"container": Clipped(container.name or ""), "namespace": Clipped(policy.namespace)}
        yield Finding(Reason.FRAMEWORK_SET, {**names, "options": options.argument or options.record})
    wants = _wants_options(policy, pod, settings)
    found = list(settings_of(container)) if may_run_framework(container) else []
    if wants and options is None and not any(setting.framework.is_server for setting in found):
        line = container.command_line
        count = _processes(target, one_command(line), script_words(beginning(line)))
        if count is None or _is_of_ray(pod):
            amount = f"{target.share.memory_mib} MiB" if target.fraction is None else f"{target.fraction:g}"
            yield Finding(
                Reason.FRAMEWORK_PROCESSES, {"container": Clipped(container.name or ""), "share": amount}
            )
            return
    given = options.frameworks if options else []
    for setting in found:
        if setting.framework.key not in given:
            yield from _findings(setting, target, mode, wants=wants)


def _ignored(pod: PodView, target: _Target | None) -> Iterator[Finding]:
    """Yield a finding for an annotation of the author that has no effect.

    A copied manifest may have the annotation together with the options that it tells of.
    """
    value = pod.annotations.get(FRAMEWORK_MEMORY)
    if value is None or value == FRAMEWORK_KEPT:
        return
    shown = set()
    if target is not None and may_run_framework(target.container):
        settings = settings_of(target.container)
        shown = {_entry(setting.framework, setting.value or "") for setting in settings}
    if not shown.issuperset(value.split(",", len(FRAMEWORKS))):
        details = {"key": f"annotation {FRAMEWORK_MEMORY}", "value": quoted(value), "allowed": FRAMEWORK_KEPT}
        yield Finding(Reason.UNKNOWN_VALUE, details)


def _findings(
    setting: Setting, target: _Target, mode: SharingMode | None, *, wants: bool
) -> Iterator[Finding]:
    """Yield what to say about one framework of a container with a share.

    `wants` says whether the webhook would have set the option if it could.
    """
    row, fraction = setting.framework, target.fraction
    value = f"fit {target.share.memory_mib} MiB"
    if fraction is not None:
        or_less = " or less" if mode is SharingMode.NON_MEMORY_ENFORCED else ""
        value = value_text(row, largest_value(row, fraction)) + or_less
    option = next((name for name in row.older if _names(target.container, name)), row.shown)
    details: dict[str, Any] = {
        "framework": row.name,
        "part": row.part,
        "base": row.base,
        "option": option,
        "value": value,
        "sets": row.sets.format(option=option, value=value),
        "unless": ", unless KAI enforces memory" if mode is None else "",
    }
    is_above = fraction is not None and setting.is_above(fraction)
    if is_above:
        details["part"] = shorten(setting.value or "", 12)
    elif setting.is_hidden or (setting.value is not None and setting.part is None):
        if wants and (row.is_server or row is PYTORCH):
            yield Finding(Reason.FRAMEWORK_UNSEEN, details)
        return
    elif setting.value is not None or not (row.is_server or wants):
        return
    if mode is SharingMode.NV_FRACTIONS:
        yield Finding(Reason.FRAMEWORK_EITHER, details)
    elif is_above:
        yield Finding(Reason.FRAMEWORK_ABOVE_SHARE, details)
    else:
        yield Finding(Reason.FRAMEWORK_MEMORY if fraction is None else Reason.FRAMEWORK_DEFAULT, details)


def _names(container: Container, variable: str) -> bool:
    return variable.encode() in bytes(container.env)
