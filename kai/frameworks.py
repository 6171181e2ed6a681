"""Inference frameworks that allocate most of a GPU's memory at start, recognised by the container's command.

vLLM, SGLang and TGI each allocate a part of the device's *total* memory at start, independent of the pod's
share. The options and their defaults are `--gpu-memory-utilization` (0.9), `--mem-fraction-static` (chosen at
start, around 0.9) and `--cuda-memory-fraction` or CUDA_MEMORY_FRACTION (1.0). Only the developer can set
them, so kaishare warns the developer.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kai.command_lines import beginning, option_values, program, script_words
from kai.pod import Container

_ROUNDING = 1e-9
_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE]-?[0-9]+)?")
_LONGEST_NUMBER = 40  # characters; no option needs half as many


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework: how to recognise it, and the option that limits its memory."""

    name: str
    option: str
    takes: str
    """Part of the device's memory that the framework allocates without the option, for messages."""
    image: str
    """Part of the name of images whose entry point starts the framework; empty if there are none."""
    runs: Callable[[Sequence[str]], bool]
    """Whether a command line starts the framework."""
    variable: str = ""
    """Environment variable equivalent to the option; empty if there is none."""
    unknown_with: tuple[str, ...] = ()
    """Options that may set the limit in a way that the pod does not show, such as a configuration file."""


def _runs_vllm(words: Sequence[str]) -> bool:
    for index, word in enumerate(words):
        if program(word) == "vllm" and "serve" in words[index + 1 : index + 3]:
            return True
        if word.startswith("vllm.entrypoints."):
            return True
    return False


def _runs_sglang(words: Sequence[str]) -> bool:
    return any(
        word in ("sglang.launch_server", "sglang_router.launch_server")
        or (program(word) == "sglang" and "serve" in words[index + 1 : index + 3])
        for index, word in enumerate(words)
    )


def _runs_tgi(words: Sequence[str]) -> bool:
    return any(program(word) == "text-generation-launcher" for word in words)


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

MARKS = (b"vllm", b"sglang", b"text-generation")
"""The image, command or arguments of every container that runs a framework contain one of these."""

VARIABLES = tuple(framework.variable.encode() for framework in FRAMEWORKS if framework.variable)


@dataclass(frozen=True, slots=True)
class Setting:
    """A framework that a container runs, and the value of its memory option."""

    framework: Framework
    value: str | None = None
    """The value as written in the pod. None if unset; the framework's default applies. The value is not a
    number where a variable supplies it at start."""
    is_hidden: bool = False
    """The value is None, but another option or an unread part of the command line may set it."""

    def is_above(self, fraction: float) -> bool:
        """Whether the value is a number greater than the fraction."""
        value = self.value
        if value is None or len(value) > _LONGEST_NUMBER or _NUMBER.fullmatch(value) is None:
            return False
        return float(value) > fraction + _ROUNDING


_COUNTED_PART = 1 - 100 / 15000
"""Smallest part of a card's memory that KAI counts: hundreds of MiB, of 15 GB and more (kai.share_bytes)."""


def largest_setting(fraction: float) -> float:
    """Return the largest value of an option that stays within a share, whatever the model of the card.

    A framework takes a part of the whole memory, and KAI's share is a part of the memory in whole hundreds of
    MiB. The value has two decimals and is at least 0.01. The agent's Event names the same value.
    """
    return max(math.floor(fraction * _COUNTED_PART * 100), 1) / 100


def settings_of(container: Container) -> Iterator[Setting]:
    """Find the frameworks that a container runs; without `command` the image's entry point runs.

    Only the first 16,384 characters of the command line are read. The rest may contain the option, so the
    setting of a longer line without the option in that part is marked as hidden.
    """
    line = container.command_line
    read = beginning(line)
    is_cut = read is not line
    words = script_words(read)
    options = option_values(words)
    for framework in FRAMEWORKS:
        if framework.runs(words) or (not container.has_command and _starts(framework, container.image)):
            value = options.get(framework.option)
            if value is None and framework.variable:
                value = _variable(framework.variable, container.variables)
            is_hidden = is_cut or any(option in options for option in framework.unknown_with)
            yield Setting(framework, value, is_hidden=value is None and is_hidden)


def _variable(name: str, variables: Sequence[Any]) -> str | None:
    for variable in variables:
        if isinstance(variable, dict) and variable.get("name") == name:
            value = variable.get("value")
            return value if isinstance(value, str) else ""  # valueFrom: set, with an unknown value
    return None


def _starts(framework: Framework, image: str | None) -> bool:
    """Whether an image's name, without registry, tag and digest, contains the framework's image name."""
    name = (image or "").partition("@")[0].rpartition("/")[2].partition(":")[0]
    return bool(framework.image) and framework.image in name
