"""Hints about frameworks that take the whole GPU's memory unless told otherwise.

vLLM, SGLang and TGI each reserve a part of the device's *total* memory at start, whatever the pod's share is:
`--gpu-memory-utilization` (0.9), `--mem-fraction-static` (chosen at start, around 0.9) and
`--cuda-memory-fraction` or CUDA_MEMORY_FRACTION (1.0). Only the developer can set them; kaishare says so.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kai.pod import Container
from kai.share import Share
from webhook.reasons import Finding, Reason, clip

_ROUNDING = 1e-9
_SHELLS = frozenset({"sh", "bash", "ash", "dash", "zsh"})
_MARKS = (b"vllm", b"sglang", b"text-generation")
_LONGEST_SCRIPT = 16384  # characters; splitting one takes about 0.2 s a megabyte
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(?:[eE]-?[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework, how it is recognised, and what bounds its memory."""

    name: str
    option: str
    takes: str
    """What it takes without the option, as a part of the device."""
    image: str
    """Part of the name of images whose own entry point starts the framework; empty if there are none."""
    runs: Callable[[Sequence[str]], bool]
    """Whether a command line starts it."""
    variable: str = ""
    """An environment variable that does the same, or empty."""
    unknown_with: tuple[str, ...] = ()
    """Options that may hold the setting where nobody can see it."""


def _runs_vllm(words: Sequence[str]) -> bool:
    for index, word in enumerate(words):
        if _program(word) == "vllm" and "serve" in words[index + 1 : index + 3]:
            return True
        if word.startswith("vllm.entrypoints."):
            return True
    return False


def _runs_sglang(words: Sequence[str]) -> bool:
    return any(
        word in ("sglang.launch_server", "sglang_router.launch_server")
        or (_program(word) == "sglang" and "serve" in words[index + 1 : index + 3])
        for index, word in enumerate(words)
    )


def _runs_tgi(words: Sequence[str]) -> bool:
    return any(_program(word) == "text-generation-launcher" for word in words)


FRAMEWORKS = (
    Framework(
        name="vLLM",
        option="--gpu-memory-utilization",
        takes="0.9",
        image="vllm-openai",
        runs=_runs_vllm,
        unknown_with=("--config", "--kv-cache-memory-bytes"),
    ),
    Framework(
        name="SGLang",
        option="--mem-fraction-static",
        takes="about 0.9",
        image="",  # its images start a shell
        runs=_runs_sglang,
        unknown_with=("--config",),
    ),
    Framework(
        name="TGI",
        option="--cuda-memory-fraction",
        takes="all",
        image="text-generation-inference",
        runs=_runs_tgi,
        variable="CUDA_MEMORY_FRACTION",
    ),
)


def may_run_framework(container: Container) -> bool:
    """Whether a framework's name stands in what the container runs: a cheap no for nearly all."""
    said = bytes(container.command) + bytes(container.args) + (container.image or "").encode()
    return any(mark in said for mark in _MARKS)


def framework_findings(container: Container, share: Share) -> Iterator[Finding]:
    """Say where a framework would take more than the share of its container.

    Args:
        container: the one that gets the share.
        share: what the pod ends with.
    """
    words = _words(container)
    for framework in FRAMEWORKS:
        if framework.runs(words) or (not container.has_command and _starts(framework, container.image)):
            yield from _findings(framework, words, container, share)


def _findings(
    framework: Framework, words: Sequence[str], container: Container, share: Share
) -> Iterator[Finding]:
    value = _option(framework.option, words)
    if value is None and framework.variable:
        value = _variable(framework.variable, container)
    who = {"framework": framework.name, "option": framework.option, "takes": framework.takes}
    if value is None:
        if any(_option(option, words) is not None for option in framework.unknown_with):
            return
        if share.fraction is not None:
            yield Finding(Reason.FRAMEWORK_DEFAULT, {**who, "share": f"{share.fraction:g}"})
        else:
            yield Finding(Reason.FRAMEWORK_MEMORY, {**who, "share": f"{share.memory_mib} MiB"})
    elif share.fraction is not None and _is_above(value, share.fraction):
        share_text = f"{share.fraction:g}"
        yield Finding(Reason.FRAMEWORK_ABOVE_SHARE, {**who, "value": clip(value, 12), "share": share_text})


def _is_above(value: str, fraction: float) -> bool:
    """Whether a value is a number, not a variable to be filled in, and larger."""
    return _NUMBER.fullmatch(value) is not None and float(value) > fraction + _ROUNDING


def _words(container: Container) -> list[str]:
    """The words of a container's command line; those of a shell's script where `sh -c` runs one."""
    line = container.command_line
    for index, word in enumerate(line[:-1]):
        if _program(word) in _SHELLS:
            script = _script(line[index + 1 :])
            if script is not None:
                return _split(script)
            break
    return line


def _script(options: Sequence[str]) -> str | None:
    """The script of `-c`, `-lc`, `-ec` and the like."""
    for index, option in enumerate(options):
        if not option.startswith("-"):
            return None
        if not option.startswith("--") and option.endswith("c"):
            return options[index + 1] if index + 1 < len(options) else None
    return None


def _split(script: str) -> list[str]:
    joined = script[:_LONGEST_SCRIPT].replace("\\\n", " ")
    try:
        return shlex.split(joined, comments=True)
    except ValueError:  # a quote that never ends
        return joined.split()


def _option(option: str, words: Sequence[str]) -> str | None:
    """The value of an option's last occurrence, with `=` or as the next word; None if it is not there."""
    found = None
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option:
            found = value if equals else (words[index + 1] if index + 1 < len(words) else "")
    return None if found is None else found.rstrip(";")


def _variable(name: str, container: Container) -> str | None:
    for variable in container.variables:
        if isinstance(variable, dict) and variable.get("name") == name:
            value = variable.get("value")
            return value if isinstance(value, str) else ""  # from elsewhere: set, but to what is unknown
    return None


def _program(word: str) -> str:
    return word.rpartition("/")[2]


def _starts(framework: Framework, image: str | None) -> bool:
    """Whether an image's name, without registry, tag and digest, is one of the framework's."""
    name = (image or "").partition("@")[0].rpartition("/")[2].partition(":")[0]
    return bool(framework.image) and framework.image in name
