"""Frameworks that take the whole GPU's memory unless told otherwise, recognised by what a container runs.

vLLM, SGLang and TGI each reserve a part of the device's *total* memory at start, whatever the pod's share is:
`--gpu-memory-utilization` (0.9), `--mem-fraction-static` (chosen at start, around 0.9) and
`--cuda-memory-fraction` or CUDA_MEMORY_FRACTION (1.0). Only the developer can set them; kaishare says so.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kai.command_lines import LONGEST_COMMAND_LINE

_ROUNDING = 1e-9
_SHELLS = frozenset({"sh", "bash", "ash", "dash", "zsh"})
_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE]-?[0-9]+)?")
_LONGEST_NUMBER = 40  # characters; no option needs half as many


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

MARKS = (b"vllm", b"sglang", b"text-generation")
"""One of these stands in the image, command or arguments of every container that runs a framework."""

VARIABLES = tuple(framework.variable.encode() for framework in FRAMEWORKS if framework.variable)


@dataclass(frozen=True, slots=True)
class Setting:
    """A framework that a container runs, and what it was told to take."""

    framework: Framework
    value: str | None = None
    """As it was written; None if nothing was: then it takes what it takes. What a variable is to fill in
    later, or comes from elsewhere, is not a number."""
    is_hidden: bool = False
    """Nothing was, but another option may hold it where nobody can see it."""

    def is_above(self, fraction: float) -> bool:
        """Whether it is a number, and a larger one."""
        value = self.value
        if value is None or len(value) > _LONGEST_NUMBER or _NUMBER.fullmatch(value) is None:
            return False
        return float(value) > fraction + _ROUNDING


def settings_of(
    line: Sequence[str], *, has_command: bool, image: str | None, variables: Sequence[Any]
) -> Iterator[Setting]:
    """Find the frameworks that a container runs.

    Only the first 16,384 characters of the line are read. A setting can stand in the rest, so it counts as
    hidden where the line is longer and the part read has none.

    Args:
        line: its command and its arguments.
        has_command: whether it names its program itself; if not, the image does.
        image: its image.
        variables: its `env`, as the API has it.
    """
    read = _beginning(line)
    is_cut = read is not line
    words = _words(read)
    for framework in FRAMEWORKS:
        if framework.runs(words) or (not has_command and _starts(framework, image)):
            value = _option(framework.option, words)
            if value is None and framework.variable:
                value = _variable(framework.variable, variables)
            is_hidden = is_cut or any(_option(option, words) is not None for option in framework.unknown_with)
            yield Setting(framework, value, is_hidden=value is None and is_hidden)


def _beginning(line: Sequence[str]) -> Sequence[str]:
    """Cut a command line to the characters that are read; the line itself if it is not longer."""
    left = LONGEST_COMMAND_LINE
    for index, word in enumerate(line):
        left -= len(word) + 1  # the blank after it: an empty word costs time, too
        if left < 0:
            return [*line[:index], word[: left + len(word) + 1]]
    return line


def _words(line: Sequence[str]) -> Sequence[str]:
    """The words of a command line; those of a shell's script where `sh -c` runs one."""
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
    joined = script.replace("\\\n", " ")
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


def _variable(name: str, variables: Sequence[Any]) -> str | None:
    for variable in variables:
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
