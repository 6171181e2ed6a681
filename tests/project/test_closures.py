"""What the services load: bounded, and nothing that is for people."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
import {modules}
print(json.dumps({{name: getattr(module, "__file__", None) for name, module in sys.modules.items()}}))
"""


@pytest.mark.parametrize(
    ("modules", "most"),
    [
        pytest.param("webhook.cli, webhook.serve", 17_000, id="webhook"),
        pytest.param("gpuagent.cli, gpuagent.serve", 24_000, id="agent"),
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
    assert not {"console", "textual", "rich", "shtab", "jinja2.sandbox", "kube.kubeconfig"} & loaded.keys()
    ours = [Path(file) for file in loaded.values() if file and Path(file).is_relative_to(ROOT)]
    lines = sum(
        len(file.read_text().splitlines())
        for file in ours
        if ".venv" not in file.parts and file.suffix == ".py"
    )
    assert 10_000 < lines <= most
