"""The manifests of the examples: workloads as developers write them, and policies in files of their own."""

import re
from pathlib import Path

import pytest
import yaml

from examples.shared_gpu import Scene, scenes
from webhook.namespaces.file_policies import read_namespaces

ROOT = Path(__file__).parents[2]
SCENES = scenes()


def test_only_the_example_about_kai_mentions_it() -> None:
    for file in sorted((ROOT / "examples" / "workloads").iterdir()):
        written = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        mentions = any(re.search(r"kai|gpu-(fraction|memory:)", line) for line in written)
        assert mentions is (file.name == "own-share.yaml"), file.name


def test_there_are_two_scenes() -> None:
    assert [scene.folder.name for scene in SCENES] == ["train-and-serve", "two-vllm-servers"]


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
