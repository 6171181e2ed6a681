"""Command lines of any length: the settings in them, and the bound of the part that is read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from kai import command_lines, frameworks
from kai.frameworks import MARKS, Setting, may_run_framework, settings_of
from kai.pod import Container

MOST = 16_384


def first_setting(*line: str) -> Setting | None:
    return next(settings_of(Container(command=Raw(msgspec.json.encode(line)))), None)


@pytest.mark.parametrize(
    ("line", "value", "is_hidden"),
    [
        (["vllm", "serve", "--gpu-memory-utilization", "0.7"], "0.7", False),
        (["vllm", "serve", "M"], None, False),
        (["vllm", "serve", *["x"] * MOST, "--gpu-memory-utilization", "0.7"], None, True),
        (["vllm", "serve", "--gpu-memory-utilization", "0.7", "x" * MOST], "0.7", False),
        (["sh", "-c", "vllm serve " + "x " * MOST + "--gpu-memory-utilization 0.7"], None, True),
        (["sh", "-c", "vllm serve --gpu-memory-utilization 0.7 " + "x " * MOST], "0.7", False),
    ],
    ids=["short", "unset", "behind many words", "in front", "behind a long script", "in front in a script"],
)  # fmt: skip
def test_a_setting_behind_what_is_read_is_hidden(line: list[str], value: str | None, is_hidden: bool) -> None:
    setting = first_setting(*line)
    assert setting is not None
    assert (setting.value, setting.is_hidden) == (value, is_hidden)


@given(st.lists(st.text(max_size=20) | st.integers(0, 3 * MOST).map("'a b' ".__mul__), max_size=8))
def test_no_more_than_16_kib_are_split(words: list[str]) -> None:
    split: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_lines, "_split", lambda script: split.append(len(script)) or ())
        first_setting("sh", "-c", *words)
        if words and not words[0].startswith(("-", "+")):  # otherwise the shell takes it as options
            assert split
        first_setting("vllm", *words)
    assert all(length <= MOST for length in split)


def test_every_framework_has_a_mark() -> None:
    lines = {
        "vLLM": ["python -m vllm.entrypoints.openai.api_server", "vllm serve M"],
        "SGLang": ["python -m sglang.launch_server", "sglang serve M"],
        "TGI": ["text-generation-launcher"],
        "TensorRT-LLM": ["trtllm-serve M"],
        "NIM": ["nim-serve"],
        "Ollama": ["ollama serve"],
        "llama.cpp": ["llama-server"],
        "PyTorch": ["torchrun x", "python -m torch.distributed.run x", "accelerate launch x", "deepspeed x"],
    }
    variables = {framework.name for framework in frameworks.FRAMEWORKS if framework.name not in lines}
    assert variables == {"JAX", "CuPy", "TensorFlow"}
    for name, each in lines.items():
        for line in each:
            setting = first_setting(*line.split())
            assert setting is not None
            assert setting.framework.name == name
            assert may_run_framework(container(line))
    for framework in frameworks.FRAMEWORKS:
        assert not framework.image or any(mark in framework.image.encode() for mark in MARKS)
        if framework.variable:
            env = Raw(msgspec.json.encode([{"name": framework.variable, "value": "0.7"}]))
            assert may_run_framework(Container(env=env))
            named = [setting.framework for setting in settings_of(Container(env=env))]
            assert named == ([] if framework.is_server else [framework])


def container(line: str) -> Container:
    return Container(command=Raw(msgspec.json.encode(line.split())))
