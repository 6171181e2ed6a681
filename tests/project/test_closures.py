"""What the services load, and how large each package is: bounded, and nothing that is for people in a service."""

import ast
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.sources import modules as modules_of

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
import {modules}
print(json.dumps({{name: getattr(module, "__file__", None) for name, module in sys.modules.items()}}))
"""


@pytest.mark.parametrize(
    ("modules", "most"),
    [
        pytest.param("webhook.cli, webhook.serve", 16_000, id="webhook"),
        pytest.param("gpuagent.cli, gpuagent.serve", 18_600, id="agent"),
    ],
)
def test_a_service_loads_few_lines_and_nothing_of_the_console(modules: str, most: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(modules=modules)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = json.loads(done.stdout)
    assert not {"console", "textual", "rich", "shtab", "kube.kubeconfig"} & loaded.keys()
    ours = [Path(file) for file in loaded.values() if file and Path(file).is_relative_to(ROOT)]
    lines = sum(
        len(file.read_text().splitlines())
        for file in ours
        if ".venv" not in file.parts and file.suffix == ".py"
    )
    assert 10_000 < lines <= most


def test_no_module_imports_itself_through_others() -> None:
    """Such a circle works or fails by the module that is imported first."""
    files = {file.relative_to(ROOT).with_suffix(""): file for file in modules_of(ROOT)}
    names = {".".join(path.parts).removesuffix(".__init__"): file for path, file in files.items()}
    imports = {name: set(imported_by(file)) & names.keys() - {name} for name, file in names.items()}
    assert len(imports) > 200
    graphlib.TopologicalSorter(imports).prepare()


def imported_by(file: Path) -> Iterator[str]:
    """Yield the names that a module imports when it is loaded, which may be names of modules."""
    for statement in ast.parse(file.read_text()).body:
        match statement:
            case ast.ImportFrom(module=str(module), names=imported):
                yield module
                yield from (f"{module}.{each.name}" for each in imported)
            case ast.Import(names=imported):
                yield from (each.name for each in imported)


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("console/**/*.py", 18_600),
        ("gpuagent/**/*.py", 13_500),
        ("kube/**/*.py", 3_200),
        ("service/**/*.py", 3_400),
        ("webhook/**/*.py", 7_600),
        ("service/page/*.*", 900),
    ],
)
def test_a_package_does_not_grow(pattern: str, most: int) -> None:
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in ROOT.glob(pattern))
    assert most // 2 < lines <= most
