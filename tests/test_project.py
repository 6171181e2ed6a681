"""The first steps of a new user: the demo, the environment's script, the requirement files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuagent.simulation.loading import load_scenario
from service.documents import load_path
from webhook.explain.manifests import find_pods
from webhook.namespaces.documents import read_namespaces

ROOT = Path(__file__).parents[1]
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))


def test_the_demo_ends_by_itself_and_shows_every_scenario() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = {
        match[1]: match[2]
        for match in re.finditer(r"^\w+ (\S+) +in \S+ +(.*)$", done.stdout, flags=re.MULTILINE)
    }
    assert outcomes == {
        "cpu-only": "queue vision, priority train, no GPU",
        "whole-gpu": "queue batch, 1 whole GPU",
        "train-resnet": "queue vision, priority train, 0.5 of a GPU",
        "classify": "queue vision, priority inference, 0.25 of a GPU",
        "notebook": "queue science, 2000 MiB of a GPU, tolerates nvidia.com/gpu",
        "qwen-14b": "queue llm, 0.7 of a GPU",
        "qwen-small": "queue llm, 0.2 of a GPU",
        "own-share": "queue vision, priority inference, 0.4 of a GPU",
        "untouched": "stays with the default scheduler",
    }
    watched = re.findall(
        r"^ *[0-9.]+ s  (\S+) +(\w+) over-share: uses (.*)$", done.stdout, flags=re.MULTILINE
    )
    assert sorted(watched) == [
        ("notebooks/notebook", "cleared", "1800 MiB, share 2070 MiB"),
        ("notebooks/notebook", "flagged", "3000 MiB, share 2070 MiB"),
        ("training/train-resnet", "flagged", "13312 MiB, share 11500 MiB"),
    ]
    assert (
        'kaishare_pod_flagged{namespace="training",pod="train-resnet",gpu="0",reason="over-share"} 1'
        in done.stdout
    )


def test_the_simulated_nodes_pods_equal_the_patched_workloads() -> None:
    node = load_scenario(ROOT / "examples" / "agent" / "node.yaml")
    namespaces = read_namespaces(ROOT / "examples" / "namespaces.yaml")
    pods = {
        pod.name: pod
        for document in load_path(ROOT / "examples" / "workloads")
        for pod in find_pods(document)
    }
    for pod in node.pods:
        namespace, _, name = pod.name.partition("/")
        policy = namespaces[namespace].policy(namespace)
        assert policy is not None
        assert pods[name].namespace == namespace
        assert policy.queue == pod.queue
        assert policy.share is not None
        assert {policy.share.annotation: policy.share.value} == pod.share_annotations


def test_only_the_example_about_kai_mentions_it() -> None:
    for file in sorted((ROOT / "examples" / "workloads").iterdir()):
        written = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        mentions = any(re.search(r"kai|gpu-(fraction|memory:)", line) for line in written)
        assert mentions is (file.name == "own-share.yaml"), file.name


@pytest.mark.parametrize("file", REQUIREMENTS, ids=lambda file: file.name)
def test_requirements_are_pinned_hashed_and_name_no_index(file: Path) -> None:
    text = file.read_text()
    assert "://" not in text
    assert "--index" not in text
    pins = re.split(r"\n(?=\S)", text.strip())
    assert len(pins) > 5
    for pin in pins:
        assert re.match(r"[A-Za-z0-9_.-]+==\S+", pin), pin
        assert "--hash=sha256:" in pin, pin


def run_script(tmp_path: Path, python: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "requirements" / "make-venv.sh"
    return subprocess.run(
        ["/bin/sh", str(script), python, str(tmp_path / "venv"), "none.txt"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_without_the_venv_module_the_line_to_type_is_all_that_is_printed(tmp_path: Path) -> None:
    stock = tmp_path / "python3"
    stock.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; *) exit 0;; esac\n')
    stock.chmod(0o755)
    done = run_script(tmp_path, str(stock))
    assert (done.returncode, done.stdout, done.stderr) == (1, "apt-get install -y python3-venv\n", "")


def test_without_python_the_line_to_type_is_all_that_is_printed(tmp_path: Path) -> None:
    done = run_script(tmp_path, str(tmp_path / "no-python"))
    assert (done.returncode, done.stdout, done.stderr) == (1, "apt-get install -y python3 python3-venv\n", "")


def test_an_old_python_is_named(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    done = run_script(tmp_path, str(old))
    assert done.returncode == 1
    assert "Python 3.9.2 is too old" in done.stderr


def test_every_link_of_the_documents_has_a_target() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    broken = [
        f"{document.relative_to(ROOT)}: {link}"
        for document in documents
        for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text())
        if not link.startswith("http") and not _leads_somewhere(document, link)
    ]
    assert broken == []


def _leads_somewhere(document: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    if not target.exists():
        return False
    headings = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.MULTILINE) if anchor else []
    return not anchor or anchor in {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }
