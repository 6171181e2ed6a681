"""The table of `explain`, the sums of every text output, and the width of all lines."""

import json
import re
import sys
from pathlib import Path

import pytest

from console.cli import main
from service.text import width
from tests.console.explain.conftest import Run, bare, manifest
from tests.support.pods import container, gpu_container

POLICY = ("--label=kai.scheduler/queue=q", "--label=kaishare.dev/gpu-fraction=0.25")
FILE = "standard input:{}"
LONG = "a-very-long-name-" * 14

FIVE = (
    bare(gpu_container(), name="converted"),
    bare(container(), name="cpu"),
    bare(container(), name="own", annotations={"gpu-fraction": "0.5"}),
    bare(gpu_container(), name="out", labels={"kaishare.dev/inject": "false"}),
    bare(container(), name="memory", annotations={"gpu-memory": "2000"}),
    {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {}},
    {"apiVersion": "example.dev/v1", "kind": "Farm", "metadata": {"name": "f"}, "spec": {}},
)


def test_more_than_four_pods_are_a_table(run: Run) -> None:
    text = manifest(*FIVE)
    starts = [1, *(number + 1 for number, line in enumerate(text.splitlines(), 1) if line == "---")]
    result = run(text, *POLICY)
    lines = [re.split(r"\s{2,}", line) for line in result.out.splitlines()]
    assert lines[:-1] == [
        ["OBJECT", "FILE", "NAMESPACE", "ACTION", "SHARE", "REASON", "WARN"],
        ["Pod/converted", FILE.format(starts[0]), "default", "changed", "0.25", "whole-gpu-converted", "1"],
        ["Pod/cpu", FILE.format(starts[1]), "default", "changed", "-", "no-gpu", "-"],
        ["Pod/own", FILE.format(starts[2]), "default", "changed", "0.5", "own-share", "-"],
        ["Pod/out", FILE.format(starts[3]), "default", "left alone", "1 GPU", "opted-out", "-"],
        ["Pod/memory", FILE.format(starts[4]), "default", "changed", "2000 MiB", "own-share", "-"],
        ["Farm/f", FILE.format(starts[6]), "default", "not known", "?", "pods-not-predictable", "-"],
    ]
    assert lines[-1] == ["5 pods: 4 changed, 1 left alone; 1 with warnings; 2 other objects."]
    assert "Pod converted in namespace default" in run(manifest(*FIVE[:4]), *POLICY).out
    assert run(manifest(*FIVE[:4]), *POLICY, "-o", "table").out.startswith("OBJECT")


def test_no_two_rows_are_equal(run: Run) -> None:
    """A list on one line of standard input, and several templates of one object."""
    items = [bare(gpu_container(), name=f"{LONG}{number}") for number in range(2)]
    template = {"template": {"spec": {"containers": [container()]}}}
    spec = {"pytorchReplicaSpecs": {"Master": template, "Worker": template}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "j"}, "spec": spec}
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, job]})
    objects = [line.split()[0] for line in run(text, *POLICY, "-o", "table").out.splitlines()[1:-1]]
    roles = [f"PyTorchJob/j:spec.pytorchReplicaSpecs.{role}.template" for role in ("Master", "Worker")]
    assert objects == [f"Pod/{LONG}0", f"Pod/{LONG}1", *roles]


RANK = bare(gpu_container(env=[{"name": "WORLD_SIZE", "value": "2"}]), name="rank")
VLLM = bare(gpu_container(command=["vllm", "serve", "M"]), name="vllm")


@pytest.mark.parametrize(
    ("document", "mode", "row"),
    [
        (FIVE[3], "enforce", r"denied +1 GPU +opt-out-denied +-\n1 pod: 1 denied\.\n"),
        (FIVE[0], "observe", r"observed +0\.25 +whole-gpu-converted"),
        (VLLM, "default", r"whole-gpu-converted +2\n1 pod: 1 changed; 1 with warnings\."),
        (RANK, "default", r"; 1 of distributed jobs\."),
    ],
)
def test_what_a_row_and_the_sums_tell(run: Run, document: object, mode: str, row: str) -> None:
    result = run(manifest(document), *POLICY, f"--label=kaishare.dev/mode={mode}", "-o", "table")
    assert result.status == (mode == "enforce")
    assert re.search(row, result.out)


@pytest.mark.parametrize("output", ["text", "table"])
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_line_is_wider_than_the_output(
    output: str, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = tmp_path / LONG[:100]
    folder.mkdir()
    sizes = [f"--label=size.kaishare.dev/{'s' * 38}{index}=0.{index}" for index in range(2, 9)]
    selectors = [
        f"--annotation=size.kaishare.dev/{'s' * 38}{index}=app in (a,{'b' * 60})" for index in (2, 3)
    ]
    documents = [
        bare(gpu_container(LONG[:63]), name=LONG[:63], labels={"app": "a"}),
        bare(gpu_container(), name="b", labels={"kaishare.dev/size": "s" * 60}),
        {"apiVersion": "example.dev/v1", "kind": "F" * 60, "metadata": {"name": LONG}, "spec": {}},
    ]
    (folder / f"{LONG[:80]}.yaml").write_text(manifest(*documents))
    monkeypatch.setattr("console.explain.command.columns_of", lambda _: columns)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    arguments = ["explain", "-f", str(folder), "-n", "n" * 63, *POLICY, *sizes, *selectors, "-o", output]
    main([*arguments, "--label=kaishare.dev/mode=strict"])
    lines = capsys.readouterr().out.splitlines()
    diff = re.compile(r"^  (?:[-+ ] |   …)")
    wide = [line for line in lines if width(line) > columns and not diff.match(line)]
    assert (wide if columns > 40 else []) == []
    assert len(lines) > 4
