"""The demo: its results, its colours, and the commands that it prints at its end."""

import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from console.explain.manifest_pods import find_pods
from examples import watching
from examples.demo import POLICIES
from examples.reviews import AdmittedPod, start_webhook
from examples.shared_gpu import scene_lines, scenes
from examples.terminal import Style
from service.documents import load_path
from tests.support.scenarios import SCENARIOS
from tests.support.scenarios.loading import load_scenario
from webhook.namespaces.file_policies import read_namespaces

ROOT = Path(__file__).parents[2]


@cache
def demo() -> str:
    """Return the output of the demo."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    return done.stdout


def unfolded() -> str:
    """Return the output with continued lines as one."""
    return re.sub(r"\n {6,}", " ", demo())


async def test_the_programs_start_in_folders_whose_names_have_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.setattr(watching, "NODE", Path(shutil.copy(watching.NODE, folder / "a node.yaml")))
    for service in (await start_webhook(folder, [POLICIES]), await watching.start_agent(folder)):
        await service.stop()


@pytest.mark.slow
def test_the_demo_prints_queue_and_share_of_every_workload() -> None:
    outcomes = {
        match[1]: match[2]
        for match in re.finditer(r"^\w+ (\S+) +in \S+ +(.*)$", unfolded(), flags=re.MULTILINE)
    }
    assert outcomes == {
        "cpu-only": "queue vision, priority train, no GPU",
        "whole-gpu": "queue batch, 1 whole GPU",
        "train-resnet": "queue vision, priority train, 0.5 of a GPU",
        "train-llm": "queue vision, priority train, 1 whole GPU",
        "classify": "queue vision, priority inference, 0.25 of a GPU",
        "notebook": "queue science, 2000 MiB of a GPU, tolerates nvidia.com/gpu",
        "qwen-14b": "queue llm, 0.7 of a GPU",
        "qwen-small": "queue llm, 0.2 of a GPU",
        "own-share": "queue vision, priority inference, 0.4 of a GPU",
        "untouched": "stays with the default scheduler",
    }


def test_the_demo_prints_the_size_and_selector_of_every_pod_of_the_scenes() -> None:
    lines = re.findall(r"^  (\w+ \S+) +(.*)\n    (size .*)$", demo(), flags=re.MULTILINE)
    assert lines == [
        (
            "Job train-detector",
            "queue vision, 0.5 of a GPU",
            "size train, selected by batch.kubernetes.io/job-name",
        ),
        (
            "Deployment detector-api",
            "queue vision, 0.25 of a GPU",
            "size serve, selected by app in (api,web)",
        ),
        ("Deployment assistant", "queue llm, 0.7 of a GPU", "size large, selected by app=assistant"),
        ("Deployment autocomplete", "queue llm, 0.2 of a GPU", "size small, selected by app=autocomplete"),
    ]
    assert "  0.5 + 0.25 = 0.75 of a GPU: the pods fit on one GPU\n" in demo()
    assert "  0.7 + 0.2 = 0.9 of a GPU: the pods fit on one GPU\n" in demo()


def test_the_only_warnings_in_the_scenes_are_about_the_conversion() -> None:
    warnings = re.findall(r"^ +Warning: (.*)$", unfolded(), flags=re.MULTILINE)
    assert len(warnings) == 4
    for warning in warnings:
        assert re.fullmatch(
            r"kaishare: container \w+: one whole GPU became gpu-fraction .* \(size \w+\)", warning
        )


def test_the_demo_prints_flags_as_they_change() -> None:
    changes = re.findall(r"^ *[0-9.]+ s  (\S+) +(\w+) over-share: (.*)$", demo(), flags=re.MULTILINE)
    assert sorted(changes) == [
        ("notebooks/notebook", "cleared", "1863 MiB of 2070 MiB"),
        ("notebooks/notebook", "flagged", "3105 MiB of 2070 MiB"),
        ("training/train-resnet", "flagged", "12995 MiB of 11500 MiB"),
    ]
    assert re.search(
        r"^!  0   12.7 GiB 11.2 GiB 113% .* train-resnet training  vision$", demo(), re.MULTILINE
    )


def test_the_demo_ends_with_commands_and_pages_that_exist() -> None:
    text = demo().partition("Try next\n")[2]
    match = re.search(r"^ +(\S+/kaishare explain (?:.*\\\n)*.*)$", text, flags=re.MULTILINE)
    assert match is not None
    _, *arguments = shlex.split(match[1].replace("\\\n", ""))
    done = subprocess.run(
        [sys.executable, "-m", "console", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "gpu-fraction: '0.25'" in done.stdout
    assert "make demo KEEP=1\n" in text
    pages = re.findall(r"\S+\.md", text)
    assert len(pages) == 3
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def test_output_that_is_not_a_terminal_has_no_colour() -> None:
    assert "\033" not in demo()


@pytest.mark.parametrize(
    ("is_terminal", "environment", "expected"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colour_needs_a_terminal_without_no_color(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, environment: dict[str, str], expected: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    style = Style.of_output()
    assert style.has_colour is expected
    assert style.paint("text", "green") == ("\033[32mtext\033[0m" if expected else "text")


def test_the_simulated_nodes_pods_equal_the_patched_workloads() -> None:
    node = load_scenario(SCENARIOS / "node.yaml")
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


@pytest.mark.parametrize(
    ("annotations", "policies", "expected"),
    [
        ({}, {}, ["no GPU\n", "unchanged", "a pod has no fraction of a GPU"]),
        ({"kaishare.dev/reason": "size-ambiguous"}, {"chat": {"sizes": []}}, ["size-ambiguous"]),
        (
            {"gpu-fraction": "0.7"},
            {},
            ["0.7 of a GPU", "0.7 + 0.7 = 1.4 of a GPU: the pods do not fit on one GPU"],
        ),
    ],
)
def test_an_edited_scene_without_sizes_is_described(
    annotations: dict[str, str], policies: dict[str, dict[str, list[str]]], expected: list[str]
) -> None:
    scene = scenes()[1]
    document = {
        "metadata": {"annotations": annotations},
        "spec": {"schedulerName": "kai-scheduler", "containers": []},
    }
    pods = [AdmittedPod(pod, document, ()) for pod in scene.pods()]
    text = "\n".join(scene_lines(scene, policies, pods, Style(has_colour=False)))
    for part in expected:
        assert part in text
