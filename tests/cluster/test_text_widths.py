"""Every line of text that the commands print fits 80 columns, on a real API server with the longest names."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from service.text import width
from tests.support.administrator import Administrator, right
from tests.support.control_plane import ControlPlane
from tests.support.forked_python import EndedProgram, run_forked, without_cluster
from tests.support.kube_objects import namespace_object
from tests.support.markers import scaled

NAMESPACE = "n" * 53 + "-with-tail"
QUEUE = "q" * 53 + "-with-tail"
SIZES = {f"size.kaishare.dev/{'s' * 37}-{number:02}": "0.25" for number in range(16)}
LABELS = {
    "kai.scheduler/queue": QUEUE,
    "kaishare.dev/gpu-memory": "123456",
    "kaishare.dev/max-gpu-memory": "1234567",
    "kaishare.dev/max-gpu-fraction": "0.75",
    "kaishare.dev/priority": "p" * 63,
    "kaishare.dev/over-share": "x" * 63,
    **SIZES,
}
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
POD = "p" * 240 + "-with-tail"
"""A name has at most 253 characters."""
MANIFEST = "manifest.yaml"
"""Stands for the path of a manifest with long names."""
EDIT = f"size.kaishare.dev/{'t' * 41}=0.25"

COMMANDS = (
    ("console", "policies"),
    ("console", "policies", "-o", "wide"),
    ("console", "policies", "-n", NAMESPACE),
    ("console", "policies", "-n", "m" * 63),
    ("console", "doctor"),
    ("console", "doctor", "--pre"),
    ("console", "doctor", "--agent-namespace", NAMESPACE),
    *(
        ("console", "explain", *source, "-n", NAMESPACE, "--label", EDIT, "-o", output)
        for source in (("--live",), ("--policies", "cluster", "-f", MANIFEST))
        for output in ("text", "table")
    ),
    *(
        ("console", "explain", "--server", "-n", NAMESPACE, "-f", MANIFEST, "-o", output)
        for output in ("text", "table")
    ),
    ("console", "explain", "--live", "-n", "m" * 63),
    ("console", "explain", "--live", "-A"),
    ("console", "top", "--once", "--agent-namespace", NAMESPACE),
    ("console", "top", "--once", "--agent-namespace", "m" * 63, "--node", "o" * 63),
)


@pytest.fixture(scope="module")
def plane(own_plane: ControlPlane) -> ControlPlane:
    """A control plane of its own: no controller deletes namespaces, and others would count them."""
    return own_plane


def run(plane: ControlPlane, token: str, *command: str) -> EndedProgram:
    environment = without_cluster(KUBECONFIG=str(plane.kubeconfig(token=token)), COLUMNS="300")
    return run_forked("-m", *command, environment=environment)


@pytest.fixture
async def crowded(admin: Administrator) -> str:
    """Create a namespace with the longest names, and an agent's pod in it; return an administrator's token."""
    namespace = namespace_object(NAMESPACE)
    namespace["metadata"]["labels"] = LABELS
    await admin.create(namespace)
    await admin.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": POD,
                "namespace": NAMESPACE,
                "labels": {"app.kubernetes.io/name": "kaishare-agent"},
            },
            "spec": {"nodeName": "o" * 63, "containers": [{"name": "c" * 63, "image": "image"}]},
            "status": {"phase": "Running"},
        }
    )
    return await admin.token("reads-all", right("*", "*", group="*"))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Write a Deployment and a pod with the longest names into a file with a long name."""
    spec = {
        "containers": [
            {"name": "c" * 63, "image": "i" * 200, "resources": {"limits": {"nvidia.com/gpu": "2"}}}
        ]
    }
    labels = {"app": "a" * 63}
    items = [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": POD},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": {**labels, "kaishare.dev/size": "u" * 63}}, "spec": spec},
            },
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{POD}-2"}, "spec": spec},
    ]
    path = tmp_path / ("f" * 100) / f"{'m' * 100}.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump_all(items))
    return path


def without_diffs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a report of `explain` but for those of its diffs, which end with an empty line."""
    is_diff = False
    for line in lines:
        is_diff = bool(line) and (is_diff or bool(re.match(r"  [-+ ][^ ]|     …", line)))
        if not is_diff:
            yield line


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_line_of_every_command_fits_80_columns(
    plane: ControlPlane, crowded: str, manifest: Path
) -> None:
    seen = []
    for command in COMMANDS:
        for token in (crowded, "a-token-without-rights")[: scaled(1)]:  # both in a nightly run
            done = run(plane, token, *(str(manifest) if word == MANIFEST else word for word in command))
            assert "Traceback" not in done.err, done.err
            lines = done.out.splitlines()
            if "explain" in command and "text" in command:
                lines = list(without_diffs(lines))
            if command[-1] == "table":  # no name of explain's table is cut in a pipe
                lines = [line for line in lines if line.startswith(" ")]
            if done.status != 2:  # the one line of an error is not wrapped
                lines += done.err.splitlines()
            assert [line for line in lines if width(line) > 80] == [], command
            seen += lines
    assert any(QUEUE in line for line in seen), "wide has the name whole"
    assert any("…" in line and line.startswith("nnn") for line in seen), "the table shortens it"
    assert any("server: " in line for line in seen), "the API server was asked"


@pytest.mark.parametrize(
    "command",
    [
        *(("console",), ("console", "doctor"), ("console", "policies"), ("console", "top")),
        *(("console", "completion"), ("console", "explain"), ("console", "render")),
        *(("webhook",), ("webhook", "serve"), ("gpuagent",), ("gpuagent", "serve")),
    ],
    ids=" ".join,
)
def test_help_fits_80_columns(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command, "--help"],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
