"""The table of frameworks that take GPU memory by an option of their own, and what a container sets of them.

A framework takes a part of the memory that CUDA reports, which is the whole card unless KAI enforces memory
(`SharingMode`), or of the memory that is free at its start. SGLang, TensorRT-LLM and llama.cpp do the latter,
so the same value gives another size beside another pod. The names and defaults were read in the released
packages and in the makers' documentation:

    vLLM        0.11.0 to 0.33.0: 0.9, since 0.20.0 0.92 (gpu_worker, EngineArgs); no variable
    SGLang      0.5.23: the part of the memory free at start (kv_cache_configurator)
    TGI         the reference of text-generation-launcher: 1.0; the option beats the variable
    TensorRT-LLM  KvCacheConfig: 0.9 of the memory free after loading; or an amount of bytes
    NIM 2.x     vLLM behind the arguments of NIM_PASSTHROUGH_ARGS
    JAX         jaxlib 0.4.1 to 0.10.2: 0.75; since 0.4.33 two names, and an error if both have a value
    PyTorch     2.10.0 on (2.8.0 and 2.9.1 lack the key); PYTORCH_CUDA_ALLOC_CONF beats PYTORCH_ALLOC_CONF
    CuPy        v8 on: bytes, or a percentage of the card
    TensorFlow  growth starts small and has no limit
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kai.command_lines import beginning, option_values, program, script_words
from kai.pod import Container

_ROUNDING = 1e-9
_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE]-?[0-9]+)?")
_LONGEST_NUMBER = 40  # characters; no option needs half as many
_LONGEST_IMAGE = 520  # characters
_LEAST_ABBREVIATION = 3  # characters of an abbreviated option, such as `--g`


PLAIN: Final = "{option} to {value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework: how to recognise it, and the option that limits its memory."""

    name: str
    part: str  # part of the memory that it takes by default, for messages
    base: str = "the GPU"  # what the part is of
    option: str = ""
    variable: str = ""
    """Environment variable that sets the same; where there is an option, too, the option wins."""
    sets: str = PLAIN  # what to set, for messages
    form: str = "{}"  # the text of a variable with a part
    older: tuple[str, ...] = ()  # variables of the same form that win over `variable`
    beside: tuple[str, ...] = ()  # variables with the same meaning that must be empty beside `variable`
    rivals: tuple[str, ...] = ()  # names of other settings that decide instead of `variable`
    image: str = ""
    """A part of the names of images whose entry point starts the framework; empty if there are none. See
    `starts`."""
    runs: Callable[[Sequence[str]], bool] = lambda _words: False
    """Whether a command line starts the framework."""
    unknown_with: tuple[str, ...] = ()
    """Options that may set the limit in a way that the pod does not show, such as a configuration file."""
    is_server: bool = True
    """Whether it takes its part at start; no other framework's limit may be set beside it."""
    counts_context: bool = True  # whether the part contains the memory of the CUDA context

    @property
    def shown(self) -> str:
        """The option or variable, for messages."""
        return self.option or self.variable

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that set the option, the one that wins first."""
        return tuple(filter(None, (*self.older, self.variable, *self.beside)))

    @property
    def key(self) -> str:
        """The name in the annotation `kaishare.dev/framework-memory`."""
        return self.name.lower()


def _runs(name: str, command: str = "") -> Callable[[Sequence[str]], bool]:
    """Return a check for a program, and for its command as one of the next two words."""
    return lambda words: any(
        program(word) == name and (not command or command in words[index + 1 : index + 3])
        for index, word in enumerate(words)
    )


def _runs_vllm(words: Sequence[str]) -> bool:
    return _runs("vllm", "serve")(words) or any(word.startswith("vllm.entrypoints.") for word in words)


def _runs_sglang(words: Sequence[str]) -> bool:
    modules = ("sglang.launch_server", "sglang_router.launch_server")
    return _runs("sglang", "serve")(words) or any(word in modules for word in words)


def _runs_pytorch(words: Sequence[str]) -> bool:
    return (
        any(program(word) in ("torchrun", "deepspeed") for word in words)
        or any(
            word == "-m" and (words[index + 1] + ".").startswith("torch.")
            for index, word in enumerate(words[:-1])
        )
        or _runs("accelerate", "launch")(words)
    )


VLLM: Final = Framework(
    name="vLLM",
    part="about 0.9",
    option="--gpu-memory-utilization",
    image="vllm-openai",
    runs=_runs_vllm,
    unknown_with=("--config", "--kv-cache-memory-bytes"),
)
TGI: Final = Framework(
    name="TGI",
    part="all",
    option="--cuda-memory-fraction",
    variable="CUDA_MEMORY_FRACTION",
    image="text-generation-inference",
    runs=_runs("text-generation-launcher"),
)
PYTORCH: Final = Framework(
    name="PyTorch",
    part="all",
    variable="PYTORCH_ALLOC_CONF",
    sets="{value} in {option} (2.10 on)",
    form="per_process_memory_fraction:{}",
    older=("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    runs=_runs_pytorch,
    is_server=False,
    counts_context=False,
)
JAX: Final = Framework(
    name="JAX",
    part="0.75",
    variable="XLA_PYTHON_CLIENT_MEM_FRACTION",
    beside=("XLA_CLIENT_MEM_FRACTION",),
    rivals=("xla_gpu_memory_fraction_policy", "XLA_PYTHON_CLIENT_ALLOCATOR"),
    is_server=False,
    counts_context=False,
)
CUPY: Final = Framework(
    name="CuPy",
    part="all",
    variable="CUPY_GPU_MEMORY_LIMIT",
    form="{}%",
    is_server=False,
    counts_context=False,
)
TENSORFLOW: Final = Framework(
    name="TensorFlow",
    part="all",
    variable="TF_FORCE_GPU_ALLOW_GROWTH",
    form="true",
    rivals=("TF_GPU_ALLOCATOR",),
    is_server=False,
)
FRAMEWORKS: Final = (
    VLLM,
    Framework(
        name="SGLang",
        part="0.9",
        base="free memory",
        option="--mem-fraction-static",
        runs=_runs_sglang,  # its images start a shell
        unknown_with=("--config",),
    ),
    TGI,
    Framework(
        name="TensorRT-LLM",
        part="0.9",
        base="free memory",
        option="max_gpu_total_bytes",
        sets="{option}",
        runs=_runs("trtllm-serve"),
    ),
    Framework(
        name="NIM",
        part="0.9",
        variable="NIM_PASSTHROUGH_ARGS",
        sets="{option}=--gpu-memory-utilization={value}",
        image="nim/",
        runs=_runs("nim-serve"),
    ),
    Framework(
        name="Ollama",
        part="all",
        variable="OLLAMA_GPU_OVERHEAD",
        sets="{option} to card less share",
        image="ollama/ollama",
        runs=_runs("ollama", "serve"),
    ),
    Framework(
        name="llama.cpp",
        part="all",
        base="free memory",
        option="--fit-target",
        sets="{option} to card less share",
        runs=_runs("llama-server"),
    ),
    PYTORCH,
    JAX,
    CUPY,
    TENSORFLOW,
)

MARKS: Final = (
    b"vllm", b"sglang", b"text-generation", b"trtllm", b"nim/", b"nim-serve", b"ollama", b"llama-server",
    b"torch", b"deepspeed", b"accelerate",
)  # fmt: skip
"""The image, command or arguments of every container that runs a framework contain one of these."""
VARIABLES: Final = tuple(name.encode() for each in FRAMEWORKS for name in each.variables)
"""The environment of every other container that sets a framework's memory contains one of these."""


def may_run_framework(container: Container) -> bool:
    """Whether a container's fields contain a mark or a variable of a framework: a cheap pre-check."""
    text = bytes(container.command) + bytes(container.args) + (container.image or "").encode()
    env = bytes(container.env)
    return any(mark in text for mark in MARKS) or any(variable in env for variable in VARIABLES)


@dataclass(frozen=True, slots=True)
class Setting:
    """A framework that a container runs or configures, and the value of its memory option."""

    framework: Framework
    value: str | None = None
    """The value as written in the pod. None if unset; the framework's default applies. The value is not a
    number where a variable supplies it at start."""
    is_hidden: bool = False
    """The value is None, but another option or an unread part of the command line may set it."""

    @property
    def part(self) -> float | None:
        """The value as a part of the memory; None if it is no number, or an amount of bytes."""
        return _part(self.framework, self.value or "")

    def is_above(self, fraction: float) -> bool:
        """Whether the value is a part greater than the fraction."""
        return self.part is not None and self.part > fraction + _ROUNDING


def _part(framework: Framework, text: str) -> float | None:
    head, _, tail = framework.form.partition("{}")
    if tail and not text.endswith(tail):
        return None
    entries = [entry.strip() for entry in text[: 8 * _LONGEST_NUMBER].split(",")] if head else [text]
    numbers = [entry[len(head) : len(entry) - len(tail)] for entry in entries if entry.startswith(head)]
    if not numbers or len(numbers[-1]) > _LONGEST_NUMBER or _NUMBER.fullmatch(numbers[-1]) is None:
        return None
    return float(numbers[-1]) / (100 if tail else 1)


_COUNTED_PART = 1 - 100 / 15000
"""Smallest part of a card's memory that KAI counts: hundreds of MiB, of 15 GB and more (kai.share_bytes)."""


def largest_setting(fraction: float) -> float:
    """Return the largest value of an option that stays within a share, whatever the model of the card.

    A framework takes a part of the whole memory, and KAI's share is a part of the memory in whole hundreds of
    MiB. The value has two decimals and is at least 0.01.
    """
    return max(math.floor(fraction * _COUNTED_PART * 100), 1) / 100


_CONTEXT: Final = 3
"""Hundredths of a card for the CUDA context of one process: about 0.6 GiB, which was not measured."""


def largest_value(framework: Framework, fraction: float, processes: int = 1) -> int:
    """Return the largest value for a framework in hundredths, for each of several processes; at least 1."""
    return beside_context(framework, round(largest_setting(fraction) * 100) // processes)


def beside_context(framework: Framework, hundredths: int) -> int:
    """Return the value, less the CUDA context if the framework does not count it; at least 1."""
    return max(hundredths if framework.counts_context else hundredths - _CONTEXT, 1)


def value_text(framework: Framework, hundredths: int) -> str:
    """Return the text of an option or variable with a part."""
    part = hundredths if "%" in framework.form else hundredths / 100
    return framework.form.format(f"{part:g}")


def settings_of(container: Container) -> Iterator[Setting]:
    """Find the frameworks that a container runs; without `command` the image's entry point runs.

    A framework that shows itself in no command is found by its variable; PyTorch below a server is not one.
    Only the first 16,384 characters of the command line are read. The rest may contain the option, so the
    setting of a longer line without the option in that part is marked as hidden.
    """
    line = container.command_line
    read = beginning(line)
    is_cut = read is not line
    words = script_words(read)
    options = option_values(words)
    variables = container.variable_values if has_variables(container) else {}
    has_server = False
    for framework in FRAMEWORKS:
        value = option_given(options, framework.option) if framework.option else None
        if value is None:
            given = [variables[name] for name in framework.variables if name in variables]
            value = next(filter(None, given), given[0] if given else None)
        is_shown = is_run(framework, container, words) and not (has_server and framework is PYTORCH)
        has_server = has_server or (is_shown and framework.is_server)
        if is_shown or (value is not None and not framework.is_server):
            is_hidden = is_cut or any(
                option_given(options, option) is not None for option in framework.unknown_with
            )
            yield Setting(framework, value, is_hidden=value is None and is_hidden)


def is_run(framework: Framework, container: Container, words: Sequence[str]) -> bool:
    """Whether a container with these words of its command shows that it runs the framework."""
    if framework.runs(words) or (not container.has_command and starts(framework, container.image)):
        return True
    return framework is PYTORCH and is_pytorch_image(container.image)


def has_variables(container: Container) -> bool:
    """Whether the environment names a variable of a framework."""
    env = bytes(container.env)
    return any(variable in env for variable in VARIABLES)


def option_given(options: Mapping[str, str], option: str) -> str | None:
    """Return the value of an option or of an abbreviation of it, as argparse accepts them; None if absent."""
    if option in options:
        return options[option]
    return next(
        (
            value
            for name, value in options.items()
            if len(name) >= _LEAST_ABBREVIATION and option.startswith(name)
        ),
        None,
    )


def starts(framework: Framework, image: str | None) -> bool:
    """Whether an image's entry point starts the framework, by its name without registry, tag and digest.

    The last part of the name contains the framework's. A name with a slash is a folder (`nim/`), or the end.
    """
    named = framework.image
    folder, last = _image_path(image)
    if named.endswith("/"):
        return f"/{named}" in f"{folder}/"
    return bool(named) and (f"{folder}/{last}".endswith(f"/{named}") if "/" in named else named in last)


def is_pytorch_image(image: str | None) -> bool:
    """Whether a part of an image's path is `pytorch` or `torch`."""
    folder, last = _image_path(image)
    return not {"pytorch", "torch"}.isdisjoint((*folder.split("/"), last))


def _image_path(image: str | None) -> tuple[str, str]:
    """Return the folder and the last part of an image's name; nothing for one that no runtime accepts.

    A name has at most 255 characters, a tag 128, a digest 135 (github.com/distribution/reference v0.6.0).
    """
    if image is None or len(image) > _LONGEST_IMAGE:
        return "", ""
    folder, _, last = f"/{image.partition('@')[0]}".rpartition("/")
    return folder, last.partition(":")[0]
