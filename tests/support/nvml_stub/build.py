"""Builds the simulated driver library and writes its answers."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest

from tests.support.scenarios.driver import lines_at
from tests.support.scenarios.scenario import Scenario

NAME = "libnvidia-ml.so.1"
ANSWERS = "NVML_STUB_FILE"
_UNINITIALIZED = 1
_SOURCE = Path(__file__).with_name("nvml_stub.c")


def built_library(folder: Path, *flags: str) -> Path:
    """Build the simulated driver library; return its path.
    Flags: `-DWITHOUT_V3`, `-DWITHOUT_MEMORY_V2`. The library has no SONAME; with one, a later load of the real
    library in this process would return this one."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is needed: apt-get install gcc")
    library = folder / "-".join(["nvml", *(flag.removeprefix("-D").lower() for flag in flags)]) / NAME
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        making = library.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-pthread", "-O1", "-Wall", "-Wextra", "-Werror", *flags, "-o", str(making), str(_SOURCE)],
            check=True,
        )  # fmt: skip
        making.rename(library)
    return library


def cached_library(*flags: str) -> Path:
    """Build the library once for all processes of this machine; return its path."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    return built_library(Path(tempfile.gettempdir()) / f"kaishare-nvml-{digest}", *flags)


class Answers:
    def __init__(self, path: Path, scenario: Scenario) -> None:
        self.path = path
        self.scenario = scenario

    def show(self, time: float = 0.0, *, more: Iterable[str] = ()) -> None:
        """Write the state of a scenario at a time, with further lines in the library's format."""
        self.write([*lines_at(self.scenario, time), *more])

    def write(self, lines: Iterable[str]) -> None:
        making = self.path.with_suffix(".making")
        making.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        making.replace(self.path)


def use_library(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make NVIDIA's binding in this process load the simulated library until the patch ends.

    A test whose GPU hung may have left the library initialised.
    """
    loaded = ctypes.CDLL(str(library))
    while loaded.nvmlShutdown() != _UNINITIALIZED:
        continue
    monkeypatch.setattr(pynvml, "nvmlLib", loaded)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
