"""The demo: its manifests, its results, and the commands that it prints at its end."""

import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from examples import watching
from examples.demo import POLICIES
from examples.reviews import AdmittedPod, pods_in, start_webhook
from examples.shared_gpu import Scene, scene_lines, scenes
from examples.terminal import Style
from tests.support.scenarios import SCENARIOS
from tests.support.scenarios.loading import load_scenario
from webhook.namespaces.file_policies import read_namespaces

ROOT = Path(__file__).parents[2]


@cache
def demo() -> str:
    command = [sys.executable, "-m", "examples.demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    return done.stdout


def unfolded() -> str:
    return re.sub(r"\n {6,}", " ", demo())


async def test_programs_start_in_folders_with_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("Job train-detector", "queue vision, 0.5 of a GPU", "size train, selected by batch.kubernetes.io/job-name"),
        ("Deployment detector-api", "queue vision, 0.25 of a GPU", "size serve, selected by app in (api,web)"),
        ("Deployment assistant", "queue llm, 0.7 of a GPU", "size large, selected by app=assistant"),
        ("Deployment autocomplete", "queue llm, 0.2 of a GPU", "size small, selected by app=autocomplete"),
    ]  # fmt: skip
    assert "  0.5 + 0.25 = 0.75 of a GPU: the pods fit on one GPU\n" in demo()
    assert "  0.7 + 0.2 = 0.9 of a GPU: the pods fit on one GPU\n" in demo()


def test_the_demo_prints_flags_as_they_change_and_the_table_of_top() -> None:
    changes = re.findall(r"^ *[0-9.]+ s  (\S+) +(\w+) over-share: (.*)$", demo(), flags=re.MULTILINE)
    assert sorted(changes) == [
        ("notebooks/notebook", "cleared", "1863 MiB of 2070 MiB"),
        ("notebooks/notebook", "flagged", "3105 MiB of 2070 MiB"),
        ("training/train-resnet", "flagged", "12995 MiB of 11500 MiB"),
    ]
    assert re.search(
        r"^!  0   12.7 GiB 11.2 GiB 113% .* train-resnet training  vision$", demo(), re.MULTILINE
    )
    assert "kaishare_" not in demo()
    assert "\033" not in demo(), "it is not a terminal"


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
    pods = {pod.name: pod for pod in pods_in(ROOT / "examples" / "workloads")}
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
        ({"gpu-fraction": "0.7"}, {}, ["0.7 of a GPU", "0.7 + 0.7 = 1.4 of a GPU: the pods do not fit on one GPU"]),
    ],
)  # fmt: skip
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


SCENES = scenes()


def test_only_the_example_about_kai_mentions_it() -> None:
    for file in sorted((ROOT / "examples" / "workloads").iterdir()):
        written = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        mentions = any(re.search(r"kai|gpu-(fraction|memory:)", line) for line in written)
        assert mentions is (file.name == "own-share.yaml"), file.name


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.folder.name)
def test_the_workloads_of_a_scene_mention_neither_kai_nor_kaishare(scene: Scene) -> None:
    text = scene.workloads_file.read_text()
    assert (
        re.search(r"kai|queue|scheduler|gpu-fraction|gpu-memory(?!-utilization)|size", text, re.IGNORECASE)
        is None
    )
    kinds = {document["kind"] for document in yaml.safe_load_all(text)}
    assert kinds <= {"Job", "Deployment"}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.folder.name)
def test_the_policy_of_a_scene_is_valid_and_equals_the_commands_in_its_comment(scene: Scene) -> None:
    ((name, metadata),) = read_namespaces(scene.namespace_file).items()
    policy = metadata.policy(name)
    assert policy is not None
    assert policy.problems == ()
    assert policy.share is None
    assert {pod.namespace for pod in scene.pods()} == {name}
    comment = re.sub(r"^# *", "", scene.namespace_file.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    for verb, texts in (("label", metadata.labels), ("annotate", metadata.annotations)):
        match = re.search(rf"^kubectl {verb} namespace {name} (.*)$", comment, flags=re.MULTILINE)
        assert match is not None
        pairs = re.findall(r"([\w./-]+)=('[^']*'|\S+)", match[1])
        assert {key: value.strip("'") for key, value in pairs} == texts


def test_the_gpu_memory_of_a_vllm_server_equals_its_size() -> None:
    scene = next(scene for scene in SCENES if scene.folder.name == "two-vllm-servers")
    ((_, metadata),) = read_namespaces(scene.namespace_file).items()
    by_selector = {
        metadata.annotations[key]: value for key, value in metadata.labels.items() if "size." in key
    }
    for pod in scene.pods():
        arguments = pod.template["spec"]["containers"][0]["args"]
        share = by_selector[f"app={pod.template['metadata']['labels']['app']}"]
        assert arguments[arguments.index("--gpu-memory-utilization") + 1] == share
