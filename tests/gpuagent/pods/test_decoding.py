"""Decoding of objects from the API server: kept fields, and errors of invalid objects."""

import json
from typing import Any

import pytest

from gpuagent.pods.node_pods import labels_decoder, read_pod
from gpuagent.pods.objects import Namespace, ObjectError
from tests.support.inventories import inventory
from tests.support.kube_objects import fraction, uid
from tests.support.large_objects import deep_fields

read_namespace = labels_decoder("Namespace", Namespace)


def test_decoding_agrees_with_the_file_source() -> None:
    made = fraction(containers=[{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": 2}}}])
    made["spec"]["schedulerName"] = "kai-scheduler"
    assert read_pod(json.dumps(made).encode()) == inventory(made).pods[uid(1)]


def test_megabytes_of_labels_are_not_kept() -> None:
    labels = {f"label-{number}": "x" * 60 for number in range(5000)}
    made = {"metadata": {"name": "research", "labels": labels}}
    read_back = read_namespace(json.dumps(made).encode())
    assert 0 < len(read_back.metadata.labels or {}) < 1000


@pytest.mark.parametrize("levels", [400, *range(920, 1000), 9000])
def test_a_pod_is_read_whatever_the_depth_of_its_managed_fields(levels: int) -> None:
    made = fraction()
    made["metadata"]["managedFields"] = ["PLACE"]
    data = json.dumps(made).replace('"PLACE"', f'{{"fieldsV1":{deep_fields(levels)}}}').encode()
    assert read_pod(data) == inventory(fraction()).pods[uid(1)]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "Pod: not JSON: "),
        (b"<html>", "Pod: not JSON: "),
        (b"\xff", "Pod: not JSON: "),
        (b"[" * 100_000, "Pod: not JSON: "),
        (b"[]", "Pod: expected object, got array"),
        (b"{}", "Pod without metadata: "),
        ({"metadata": {"name": "a"}, "spec": 5}, "Pod a: spec: expected object, got int"),
        ({"metadata": {"namespace": "n"}, "spec": {}}, "Pod n: metadata.name: expected a name, got none"),
        ({"metadata": {"name": "a"}, "spec": {"schedulerName": 5}}, "Pod a: spec.schedulerName: expected str | null, got int"),
        ({"kind": "Cow", "metadata": {"name": "a"}, "spec": 5}, "Pod a: spec: expected object, got int"),
    ],
)  # fmt: skip
def test_an_invalid_pod_is_one_line(data: bytes | dict[str, Any], line: str) -> None:
    with pytest.raises(ObjectError) as caught:
        read_pod(data if isinstance(data, bytes) else json.dumps(data).encode())
    assert str(caught.value).startswith(line)
    assert str(caught.value).isprintable()
