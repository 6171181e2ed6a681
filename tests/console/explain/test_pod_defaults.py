"""What the API server fills in before it calls webhooks."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from console.explain.pod_documents import ContainerDefaults, decode_defaults, filled_in
from tests.support.pods import GPU, container, gpu_container, pod


def limit_range(*items: dict[str, Any]) -> ContainerDefaults:
    document = {"metadata": {"name": "l", "namespace": "n"}, "spec": {"limits": list(items)}}
    return decode_defaults(json.dumps(document).encode())


GPU_DEFAULT = limit_range({"type": "Container", "default": {GPU: "1"}, "defaultRequest": {GPU: "1"}})


def test_a_scheduler_is_filled_in_where_there_is_none() -> None:
    bare = pod()
    del bare["spec"]["schedulerName"]
    assert filled_in(bare)["spec"]["schedulerName"] == "default-scheduler"
    assert "schedulerName" not in bare["spec"]
    assert filled_in(pod(schedulerName="volcano"))["spec"]["schedulerName"] == "volcano"


@pytest.mark.parametrize(
    ("given", "defaults", "resources"),
    [
        (container(), (), None),
        (container(limits={GPU: 1}), (), {"limits": {GPU: 1}, "requests": {GPU: 1}}),
        (container(limits={GPU: 1, "cpu": 2}, requests={"cpu": 1}), (),
         {"limits": {GPU: 1, "cpu": 2}, "requests": {GPU: 1, "cpu": 1}}),
        (container(requests={"cpu": 1}), (), {"requests": {"cpu": 1}}),
        (container(), (GPU_DEFAULT,), {"limits": {GPU: "1"}, "requests": {GPU: "1"}}),
        (gpu_container(count="2"), (GPU_DEFAULT,), {"limits": {GPU: "2"}, "requests": {GPU: "2"}}),
        (container(limits={"cpu": 1}), (GPU_DEFAULT,),
         {"limits": {"cpu": 1, GPU: "1"}, "requests": {"cpu": 1, GPU: "1"}}),
        (container(), (limit_range({"type": "Pod", "max": {GPU: "1"}, "default": {GPU: "1"}}),), None),
        (container(), (limit_range({"type": "Container", "default": {"cpu": "1"}}),
                       limit_range({"type": "Container", "default": {"cpu": "2", GPU: "1"}})),
         {"limits": {"cpu": "1", GPU: "1"}}),
        ({"name": "odd", "resources": [1]}, (GPU_DEFAULT,), [1]),
        ({"name": "odd", "resources": {"limits": "x"}}, (GPU_DEFAULT,), {"limits": "x", "requests": {GPU: "1"}}),
    ],
)  # fmt: skip
def test_amounts_are_filled_in(
    given: dict[str, Any], defaults: Sequence[ContainerDefaults], resources: Any
) -> None:
    before = json.dumps(given)
    made = filled_in({"spec": {"containers": [given], "initContainers": [given]}}, defaults)["spec"]
    assert made["containers"][0].get("resources") == resources
    assert made["initContainers"][0].get("resources") == resources
    assert json.dumps(given) == before


@pytest.mark.parametrize("odd", [{}, {"spec": 5}, {"spec": {"containers": 5}}, {"spec": {"containers": [5]}}])
def test_a_pod_that_the_api_server_refuses_stays_as_it_is(odd: dict[str, Any]) -> None:
    made = filled_in(odd, (GPU_DEFAULT,))
    assert made.get("spec") in (odd.get("spec"), {**(odd["spec"] if isinstance(odd.get("spec"), dict) else {}),
                                                  "schedulerName": "default-scheduler"})  # fmt: skip


def test_a_document_that_is_no_limit_range_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_defaults(b'{"metadata": 5}')
