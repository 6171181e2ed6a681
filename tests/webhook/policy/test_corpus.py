"""Manifests of other projects: every pod in them, under several policies and for several releases of KAI.

The folder is not part of the project: its files are other projects' examples.
"""

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from console.explain.manifest_pods import FoundPod, find_pods
from console.explain.pod_documents import as_json
from kai import keys
from kai.kaishare_keys import GPU_MARK
from kai.releases import Version
from service.documents import DocumentError, flatten_lists, load_file
from tests.support.kai_oracle import refusal
from tests.support.markers import sampled
from tests.support.pod_documents import SHARES, as_kais, counted, entries, exact, groups, named_gpus
from tests.support.pod_invariants import assert_only_ours_changed
from tests.support.pod_strategies import VERSIONS
from tests.support.pods import GPU, folder_from
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.patch import apply_to_document, mutate
from webhook.policy.reasons import Action

FILES, TEMPLATES, PODS = 63, 3, 77
"""What the folder holds; so many of the files are templates of other tools, and no YAML."""

CONVERTED, CPU_ONLY = 22, 15
"""At least so many pods with one whole GPU, and without any, are given a share where that is due."""

POLICIES = {
    f"{share.partition('=')[0]}-{share_for}": {
        keys.QUEUE_LABEL: "queue-a",
        f"kaishare.dev/gpu-{share.partition('=')[0]}": share.partition("=")[2],
        "kaishare.dev/share-for": share_for,
    }
    for share in ("fraction=0.5", "memory=2000")
    for share_for in ("whole-gpu", "marked", "all")
}
"""Namespaces and their labels."""


@cache
def read_files(folder: Path) -> dict[str, list[Any] | str]:
    """Return every file's documents, or its error."""
    read: dict[str, list[Any] | str] = {}
    for file in sorted(folder.glob("*.yaml")):
        try:
            read[file.name] = load_file(file)
        except DocumentError as error:
            read[file.name] = str(error)
    return read


@pytest.fixture(scope="module")
def files() -> dict[str, list[Any] | str]:
    return read_files(folder_from("KAISHARE_CORPUS", "manifests written by others"))


@pytest.fixture(scope="module")
def corpus_pods(files: dict[str, list[Any] | str]) -> list[tuple[str, FoundPod]]:
    """Return every pod of the corpus with a title."""
    return [
        (f"{name}: {pod.title}", pod)
        for name, documents in files.items()
        if isinstance(documents, list)
        for document in flatten_lists(documents)
        for pod in find_pods(document)
    ]


def test_every_file_has_pods_or_is_refused_in_one_line(
    files: dict[str, list[Any] | str], corpus_pods: list[tuple[str, FoundPod]]
) -> None:
    refused = {name: error for name, error in files.items() if isinstance(error, str)}
    assert len(files) == FILES
    assert len(refused) == TEMPLATES
    for name, error in refused.items():
        assert error.isprintable()
        assert f"{name}, line " in error
        assert ": not YAML: " in error
    titles = {title.partition(": ")[0] for title, _ in corpus_pods}
    assert (len(corpus_pods), len(titles)) == (PODS, FILES - TEMPLATES)


def created(pod: FoundPod, namespace: str, *, mark: bool = False) -> Any:
    """Return the pod as JSON; `mark` adds the label that requests a share."""
    document = json.loads(as_json(pod.as_created(namespace)))
    if mark:
        labels = document["metadata"].get("labels") or {}
        document["metadata"]["labels"] = {**labels, GPU_MARK: "shared"}
    return document


def may_have_a_share(pod: FoundPod, document: Any, share_for: str) -> bool:
    """Whether policy.md allows the pod a share; some more of them cannot be given one."""
    spec, resources = document["spec"], exact([c.get("resources") for _, c in groups(document)])
    by_claims = spec.get("resourceClaims") or any(
        (c.get("resources") or {}).get("claims") for _, c in groups(document)
    )
    if pod.kind == "DaemonSet" or keys.MIG_PREFIX in resources or by_claims:
        return False
    asking = [(group, counted(c)) for group, c in groups(document) if counted(c) != 0]
    if asking:
        return asking == [("containers", 1)]
    is_marked = share_for == "marked" and entries(document, "labels").get(GPU_MARK) == "shared"
    return share_for == "all" or is_marked


def every_pod(
    corpus_pods: list[tuple[str, FoundPod]], namespace: str
) -> Iterator[tuple[str, FoundPod, dict[str, Any]]]:
    """Yield every pod as written, and marked for a share."""
    for title, pod in corpus_pods:
        yield title, pod, created(pod, namespace)
        yield f"{title}, marked", pod, created(pod, namespace, mark=True)


@pytest.mark.parametrize(
    ("namespace", "version"),
    sampled(product(POLICIES, (None, *VERSIONS)), 5),
    ids=lambda value: str(value) if value else "KAI of any version",
)
def test_every_pod(corpus_pods: list[tuple[str, FoundPod]], namespace: str, version: Version | None) -> None:
    policy = NamespacePolicy.from_labels(namespace, POLICIES[namespace])
    assert policy is not None
    assert not policy.problems
    seen = Counter[str]()
    for title, pod, received in every_pod(corpus_pods, namespace):
        mutation = mutate(policy, exact(received).encode(), DecisionSettings(kai_version=version))
        assert mutation.decision.action is not Action.ERROR, title
        sent = json.loads(exact(mutation.sent))
        result = jsonpatch.apply_patch(received, sent)
        assert exact(result) == exact(apply_to_document(mutation.sent, received)), title
        assert_only_ours_changed(received, result)
        if pod.kind == "DaemonSet":
            assert not sent, title
        elif mutation.decision.action is not Action.SKIPPED:
            assert result["spec"]["schedulerName"] == keys.SCHEDULER_NAME, title
            assert entries(result, "labels")[keys.QUEUE_LABEL], title
        for release in VERSIONS if version is None else (version,):
            refused = refusal(as_kais(result), release)
            assert refused is None or refused == refusal(as_kais(received), release), (title, str(release))

        had, has = (
            {k for k in entries(d, "annotations") if k in (*SHARES, keys.CONTAINER_NAME)}
            for d in (received, result)
        )
        if has == had:
            assert all(
                named_gpus(c) == named_gpus(k)
                for (_, c), (_, k) in zip(groups(received), groups(result), strict=True)
            )
            continue
        assert may_have_a_share(pod, received, policy.share_for), title
        assert not any(named_gpus(container) for _, container in groups(result)), title
        is_whole = GPU in exact([c.get("resources") for _, c in groups(received)])
        seen["converted" if is_whole else "CPU only"] += 1

    assert seen["converted"] >= 2 * CONVERTED
    expected = {"all": 2, "marked": 1, "whole-gpu": 0}[policy.share_for]
    assert seen["CPU only"] >= expected * CPU_ONLY
    assert bool(seen["CPU only"]) is bool(expected)
