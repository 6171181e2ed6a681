from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent.gpus.gpu_reader import NvmlGpus
from tests.support.nvml_stub.build import ANSWERS, Answers, built_library, use_library
from tests.support.scenarios.loading import parse_scenario


@pytest.fixture
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return lambda *flags: built_library(tmp_path_factory.getbasetemp(), *flags)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


Driven = tuple[NvmlGpus, Answers]


@pytest.fixture
def driven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml_library: Callable[..., Path], clock: Clock
) -> Iterator[Callable[..., Driven]]:
    """NvmlGpus through the real binding and the simulated library, and the library's answers.
    The deadline in seconds is long, so that a busy machine is no slow GPU."""
    made: list[NvmlGpus] = []

    def make(document: dict[str, Any], *flags: str, deadline: float = 30.0) -> Driven:
        use_library(nvml_library(*flags), monkeypatch)
        answers = Answers(tmp_path / "answers", parse_scenario(document, "test"))
        monkeypatch.setenv(ANSWERS, str(answers.path))
        answers.show()
        gpus = NvmlGpus(clock=clock, deadline=deadline)
        made.append(gpus)
        return gpus, answers

    yield make
    for gpus in made:
        gpus.close()
