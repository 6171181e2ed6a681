"""Namespace objects in files: what is read of them, and what is refused in one line."""

from pathlib import Path

import pytest

from webhook.namespaces.file_policies import PoliciesError, read_namespaces

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
        ("  labels: []\n", "metadata.labels must be a map"),
        ('  labels: ""\n', "metadata.labels must be a map"),
        ("  annotations: false\n", "metadata.annotations must be a map"),
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


@pytest.mark.parametrize("text", ["", "\n\n", "# all gone\n", "---\n"])
def test_a_file_without_a_document_is_refused(tmp_path: Path, text: str) -> None:
    """`kubectl get namespaces -o yaml > FILE` leaves an empty file while the API server is away."""
    (tmp_path / "a.yaml").write_text(NAMESPACE)
    file = tmp_path / "b.yaml"
    file.write_text(text)
    for path in (file, tmp_path):
        with pytest.raises(PoliciesError) as caught:
            read_namespaces(path)
        assert str(caught.value) == (
            f"{file}: contains no document; for no namespaces, write a List with items: []"
        )
    file.write_text("apiVersion: v1\nkind: List\nitems: []\n")
    assert read_namespaces(file) == {}


def test_a_link_that_leads_nowhere_is_refused_unless_it_is_hidden(tmp_path: Path) -> None:
    """Its file may be missing for a moment, as between two commands that swap a directory."""
    (tmp_path / "a.yaml").write_text(NAMESPACE)
    (tmp_path / ".#a.yaml").symlink_to("me@host.1:2")  # Emacs
    assert list(read_namespaces(tmp_path)) == ["vision"]
    (tmp_path / "b.yaml").symlink_to("gone")
    with pytest.raises(PoliciesError) as caught:
        read_namespaces(tmp_path)
    assert str(caught.value) == f"{tmp_path}/b.yaml: No such file or directory"
