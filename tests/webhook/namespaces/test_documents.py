"""Namespace objects in files: what is read of them, and what is refused in one line."""

from pathlib import Path

import pytest

from webhook.namespaces.documents import PoliciesError, read_namespaces

NAMESPACE = """
apiVersion: v1
kind: Namespace
metadata:
  name: vision
"""


def test_only_the_metadata_of_the_policy_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "namespaces.yaml"
    file.write_text(
        NAMESPACE + "  labels: {kai.scheduler/queue: vision, size.kaishare.dev/train: '0.5', team: a}\n"
        "  annotations: {size.kaishare.dev/train: 'app in (a,b)', kaishare.dev/mode: x, note: long}\n"
    )
    (metadata,) = read_namespaces(file).values()
    assert metadata.labels == {"kai.scheduler/queue": "vision", "size.kaishare.dev/train": "0.5"}
    assert metadata.annotations == {"size.kaishare.dev/train": "app in (a,b)"}
    policy = metadata.policy("vision")
    assert policy is not None
    assert policy.problems == ()
    assert [size.name for size in policy.sizes.selecting] == ["train"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("  labels: [a]\n", "metadata.labels must be a map"),
        ("  annotations: text\n", "metadata.annotations must be a map"),
        ("  labels: {size.kaishare.dev/train: 0.5}\n", "label size.kaishare.dev/train: 0.5 must be a string; put it in quotes"),
        ("  annotations: {a: true}\n", "annotation a: True must be a string; put it in quotes"),
        ("  annotations: {1: a}\n", "annotation 1: a must be a string; put it in quotes"),
    ],
)  # fmt: skip
def test_metadata_of_another_type_is_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "namespaces.yaml"
    file.write_text(NAMESPACE + text)
    with pytest.raises(PoliciesError) as caught:
        read_namespaces(file)
    assert str(caught.value) == f'{file}: namespace "vision": {problem}'
