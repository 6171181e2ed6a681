"""The sample queues: KAI's definitions accept them, and the examples name no other."""

import os
from pathlib import Path
from typing import Any

import pytest

from examples.shared_gpu import scenes
from kai.keys import QUEUE_LABEL
from tests.support import yaml_text
from tests.support.administrator import Administrator
from tests.support.helm_chart import ROOT
from tests.support.helm_release import until_kind_is_deleted
from tests.support.kai_definitions import define

FOLDER = ROOT / "deploy" / "kai"


def queues_in(name: str) -> list[dict[str, Any]]:
    return list(yaml_text.load_all((FOLDER / name).read_text()))


QUEUES = queues_in("queues.yaml")
FILES = sorted(path.name for path in FOLDER.glob("queues*.yaml"))
PATH = "/apis/scheduling.run.ai/v2/queues"


def test_every_queue_of_the_examples_exists_with_a_parent_and_without_children() -> None:
    files = [ROOT / "examples" / "namespaces.yaml", *(scene.namespace_file for scene in scenes())]
    namespaces = [item for file in files for item in yaml_text.load_all(file.read_text())]
    named = {item["metadata"].get("labels", {}).get(QUEUE_LABEL) for item in namespaces} - {None}
    parents = {queue["metadata"]["name"]: queue["spec"].get("parentQueue") for queue in QUEUES}
    assert named == {name for name, parent in parents.items() if parent}
    assert {parent for parent in parents.values() if parent} == {
        name for name, parent in parents.items() if not parent
    }


@pytest.mark.parametrize("release", ["v0.9.8", "v0.13.0", "v0.17.0"])
async def test_kais_webhook_accepts_the_queues(release: str, admin: Administrator) -> None:
    folder = os.environ.get("KAISHARE_FIXTURES")
    file = Path(folder or "/nonexistent").parent / "crds" / f"kai-{release}" / "scheduling.run.ai_queues.yaml"
    if not file.is_file():
        pytest.skip("NOT VERIFIED: KAISHARE_FIXTURES must name a folder beside which KAI's definitions are")
    definition = yaml_text.load(file.read_text())
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
    await define(admin, definition)
    try:
        for name in FILES:
            for queue in queues_in(name):
                await admin.post(PATH, queue, dryRun="All", fieldValidation="Strict")
    finally:
        await admin.delete(path)
        await until_kind_is_deleted(admin.client, path)  # another release's takes its place
