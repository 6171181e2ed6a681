"""Manifests of other projects: the invariants hold for every pod in them, under several policies and releases of KAI.

The folder is not part of the project: its files are other projects' examples.
"""

import json
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from console.explain.manifest_pods import FoundPod, find_pods
from console.explain.pod_documents import as_json
from kai import keys
from kai.kaishare_keys import GPU_MARK
from kai.releases import Version
from service.documents import DocumentError, flatten_lists, load_file
from tests.support.markers import sampled
from tests.support.pod_invariants import INVARIANTS, Outcome, a_rank_of_a_distributed_job_keeps_its_gpu
from tests.support.pod_strategies import VERSIONS, Case
from tests.support.pods import folder_from
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.reasons import Reason

FILES, TEMPLATES, PODS = 63, 3, 77
"""What the folder holds; so many of the files are templates of other tools, and no YAML."""

CONVERTED, CPU_ONLY = 22, 15
"""At least so many pods with one whole GPU, and without any, are given a share where that is due."""

POLICIES = {
    f"{kind}-{share_for}": {
        keys.QUEUE_LABEL: "queue-a",
        f"kaishare.dev/gpu-{kind}": share,
        "kaishare.dev/share-for": share_for,
    }
    for kind, share in (("fraction", "0.5"), ("memory", "2000"))
    for share_for in ("whole-gpu", "marked", "all")
}
"""Namespaces and their labels."""

HOLDING = [
    invariant for invariant in INVARIANTS if invariant is not a_rank_of_a_distributed_job_keeps_its_gpu
]
"""The oracle of that one knows generated pods only, and not the pods of operators."""


@pytest.fixture(scope="module")
def files() -> dict[str, list[Any] | str]:
    """Return every file's documents, or its error."""
    read: dict[str, list[Any] | str] = {}
    for file in sorted(folder_from("KAISHARE_CORPUS", "manifests written by others").glob("*.yaml")):
        try:
            read[file.name] = load_file(file)
        except DocumentError as error:
            read[file.name] = str(error)
    return read


@pytest.fixture(scope="module")
def corpus_pods(files: dict[str, list[Any] | str]) -> list[tuple[str, FoundPod]]:
    """Return every pod of the corpus with its file."""
    return [
        (name, pod)
        for name, documents in files.items()
        if isinstance(documents, list)
        for document in flatten_lists(documents)
        for pod in find_pods(document)
    ]


def test_every_file_has_pods_or_is_refused_in_one_line(
    files: dict[str, list[Any] | str], corpus_pods: list[tuple[str, FoundPod]]
) -> None:
    refused = {name: error for name, error in files.items() if isinstance(error, str)}
    assert (len(files), len(refused)) == (FILES, TEMPLATES)
    for name, error in refused.items():
        assert error.isprintable()
        assert f"{Path(name).name}, line " in error
        assert ": not YAML: " in error
    assert (len(corpus_pods), len({name for name, _ in corpus_pods})) == (PODS, FILES - TEMPLATES)


@pytest.mark.parametrize(
    ("namespace", "version"),
    sampled(product(POLICIES, (None, *VERSIONS)), 5),
    ids=lambda value: str(value) if value else "KAI of any version",
)
def test_every_pod(corpus_pods: list[tuple[str, FoundPod]], namespace: str, version: Version | None) -> None:
    seen = Counter[Reason]()
    rules = DecisionSettings(kai_version=version)
    for name, pod in corpus_pods:
        for is_marked in (False, True):
            document = json.loads(as_json(pod.as_created(namespace)))
            if is_marked:
                labels = document["metadata"].get("labels") or {}
                document["metadata"]["labels"] = {**labels, GPU_MARK: "shared"}
            outcome = Outcome(
                Case(labels=POLICIES[namespace], document=document, namespace=namespace, rules=rules)
            )
            assert not outcome.policy.problems
            for invariant in HOLDING:
                try:
                    invariant(outcome)
                except AssertionError as error:
                    error.add_note(f"{name}: {pod.title}")
                    raise
            seen[outcome.mutation.decision.reason] += 1
    assert seen[Reason.WHOLE_GPU_CONVERTED] >= 2 * CONVERTED
    times = {"all": 2, "marked": 1, "gpu": 0}[namespace.rpartition("-")[2]]
    assert seen[Reason.SHARE_INJECTED] >= times * CPU_ONLY
    assert bool(seen[Reason.SHARE_INJECTED]) is bool(times)
