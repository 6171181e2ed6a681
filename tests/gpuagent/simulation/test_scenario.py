"""Scenario files that can be used, and the one line that others get."""

import copy
import json
import re
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.simulation.scenario import FaultKind
from gpuagent.simulation.scenario_loading import ScenarioError, load_scenario, parse_scenario
from gpuagent.simulation.simulated_driver import state_at
from gpuagent.simulation.simulated_objects import node_objects, pod_identities
from gpuagent.simulation.simulated_processes import lives
from service.documents import DocumentError
from tests.support.scenarios import A, node, process

GPU = {"uuid": A, "memory": "4Gi"}

REFUSED = {
    "not a mapping": ([], "Expected `object`, got `array`"),
    "no GPU": ({"gpus": []}, "gpus: a node needs at least one"),
    "gpus missing": ({}, "Object missing required field `gpus`"),
    "an unknown field": (
        {"gpus": [{**GPU, "memry": 1}]},
        "gpus[0]: Object contains unknown field `memry`; allowed: uuid, memory, reserved, unaccounted, model, mig",
    ),
    "an unknown field of a process names `from` as it is written": (
        {"gpus": [GPU], "processes": [process(5, start=3)]},
        "processes[0]: Object contains unknown field `start`; allowed: from, until, pid",
    ),
    "an amount": ({"gpus": [{**GPU, "memory": "4Gx"}]}, 'gpus[0].memory: "4Gx" is not a quantity; allowed: bytes'),
    "half a byte": ({"gpus": [{**GPU, "memory": 0.5}]}, 'gpus[0].memory: "0.5" is not a whole number of bytes'),
    "less than nothing": ({"gpus": [{**GPU, "memory": -1}]}, 'gpus[0].memory: "-1" is not a whole number'),
    "no UUID": ({"gpus": [{**GPU, "uuid": ""}]}, "gpus[0]: `uuid` must not be empty"),
    "a UUID twice": ({"gpus": [GPU, GPU]}, "gpus: two have the same `uuid`"),
    "a kind": (node(process(5, kind="cuda")), 'kind: "cuda" is not a kind; allowed: compute, graphics, mps'),
    "a GPU": (node(process(5, gpu=2)), 'processes[0].gpu: "2" is not there; allowed: 0 to 1'),
    "a GPU counted from the end": (node(process(5, gpu=-1)), 'processes[0].gpu: "-1" is not there'),
    "a pod": (node(process(5, pod="a/b")), 'processes[0].pod: "a/b" is not there; allowed: one of `pods`'),
    "a container": (
        {**node(process(5, pod="a/b", container="x")), "pods": [{"name": "a/b"}]},
        'processes[0].container: a/b has no container "x"',
    ),
    "a container of the host": (node(process(5, container="x")), "processes[0]: `container` needs `pod`"),
    "a pod without namespace": ({"gpus": [GPU], "pods": [{"name": "b"}]}, "pods[0]: `name` must be namespace/name"),
    "a pod twice": ({"gpus": [GPU], "pods": [{"name": "a/b"}] * 2}, "pods: a/b is there twice"),
    "two shares": (
        {"gpus": [GPU], "pods": [{"name": "a/b", "fraction": 0.5, "memory": 100}]},
        "pods[0]: only one of `fraction`, `memory` and `whole` is allowed",
    ),
    "a share KAI refuses": (
        {"gpus": [GPU], "pods": [{"name": "a/b", "fraction": 1.5}]},
        "pods[0]: gpu-fraction annotation value must be a positive number smaller than 1.0",
    ),
    "a pod's GPU": (
        {"gpus": [GPU], "pods": [{"name": "a/b", "fraction": 0.5, "gpu": 3}]},
        "pods[0].gpu: there is no such GPU; allowed: 0 to 0",
    ),
    "memory of a GPU that is too small to share": (
        {"gpus": [{**GPU, "memory": "10Mi"}], "pods": [{"name": "a/b", "memory": 5, "gpu": 0}]},
        "pods: 10 MiB is less than the 100 MiB KAI counts in",
    ),
    "an object without a name": ({"gpus": [GPU], "objects": [{"kind": "Pod"}]}, "objects[0]: Object missing"),
    "an object with a date": (
        {"gpus": [GPU], "objects": [{"kind": "Pod", "metadata": {"name": "x"}, "status": {"startTime": date(2026, 1, 1)}}]},
        "objects[0]: a value does not exist in JSON; put dates in quotes",
    ),
    "an object's container": (
        {"gpus": [GPU], "objects": [{"kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [1]}}]},
        "objects[0].spec.containers[0]: Expected `object`, got `int`",
    ),
    "a PID": (node(process(2)), "processes[0]: `pid` must be from 3 to 4194304"),
    "too many processes": (node(process(5, 0, count=10_001)), "`count` from 1 to 10000"),
    "too many processes together": (
        node(process(5, 0, count=9999), process(20_000, 0, count=9999)), "processes: more than 10000",
    ),
    "an end before the start": (node(process(5, **{"from": 9, "until": 9})), "processes[0]: `from` must be 0 or more"),
    "no time at all": (node(process(5, **{"from": float("nan")})), "processes[0]: `from` must be 0 or more"),
    "memory over no time": (node(process(5, {})), "processes[0].memory: memory over time is a mapping of seconds"),
    "memory over words": (node(process(5, {"a": 1})), "memory over time is a mapping of seconds to amounts"),
    "a utilization above 100 %": (
        node(process(5, utilization=101)),
        'processes[0].utilization: "101" is not a percentage; allowed: whole numbers from 0 to 100',
    ),
    "a ratio as utilization": (node(process(5, utilization=0.5)), '"0.5" is not a percentage'),
    "utilization over words": (
        node(process(5, utilization={"a": 1})), "utilization over time is a mapping of seconds to amounts",
    ),
    "two owners of a PID": (
        node(process(5), process(5, gpu=1, name="other", **{"from": 3})),
        "processes: PID 5 belongs to two owners at second 3",
    ),
    "a PID twice on a GPU": (
        node(process(5), process(5, kind="graphics")),
        "processes: PID 5 is on GPU 0 twice at second 0; kinds of one process are joined, as in compute+graphics",
    ),
    "more than a GPU has": (
        node(process(5, {0: "1Gi", 30: "15Gi"}), process(6, "1Gi", **{"from": 20})),
        "gpus: 0 holds 17179869184 bytes at second 30, and has room for 16642998272",
    ),
    "more reserved than there is": ({"gpus": [{**GPU, "reserved": "5Gi"}]}, "gpus: 0 holds"),
    "a fault": (node(faults=[{"fault": "fire"}]), f"faults[0].fault: Invalid enum value 'fire'; allowed: {FaultKind('gpu-lost')}"),
    "a fault without its GPU": (node(faults=[{"fault": "gpu-lost"}]), "faults[0]: gpu-lost needs `gpu`"),
    "a fault of the node with a GPU": (node(faults=[{"fault": "hang", "gpu": 0}]), "faults[0]: hang takes no `gpu`"),
    "a fault without its process": (node(faults=[{"fault": "memory-unknown"}]), "faults[0]: `pid` belongs to"),
    "a fault's GPU": (node(faults=[{"fault": "gpu-lost", "gpu": 2}]), "faults[0].gpu: there is no such GPU"),
}  # fmt: skip


@pytest.mark.parametrize(("document", "line"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_names_the_place_and_the_allowed_values(document, line):
    with pytest.raises(ScenarioError, match=f"^node\\.yaml: .*{re.escape(line)}") as refused:
        parse_scenario(document, "node.yaml")
    assert "\n" not in str(refused.value)


def test_an_invalid_file_is_one_line(tmp_path: Path):
    path = tmp_path / "node.yaml"
    with pytest.raises(DocumentError, match=r"node\.yaml: No such file"):
        load_scenario(path)
    path.write_text("a: [")
    with pytest.raises(DocumentError, match=r"node\.yaml, line 2: not YAML"):
        load_scenario(path)
    path.write_text("a: 1\n---\nb: 2\n")
    with pytest.raises(ScenarioError, match="2 documents; a scenario is one"):
        load_scenario(path)
    path.write_text(
        f"gpus: [{{uuid: {A}, memory: 4Gi}}]\nprocesses: [{{pid: 3, gpu: 0, memory: {{0: 1, 2.5: 1Gi}}}}]\n"
    )
    assert load_scenario(path).processes[0].memory.at(2.5) == 1 << 30


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from([A, "4Gi", "a/b", "x\ny", [], {}, [[]], [{}], {"name": 3}, 10**30, "1E", -1, date.min, b"x", {1}]),
)  # fmt: skip
WHOLE = {
    "node": {"name": "n", "labels": {"nvidia.com/gpu.memory": "16384"}},
    "gpus": [{**GPU, "reserved": 5, "unaccounted": 1, "model": "m", "mig": [{"uuid": "MIG-1", "memory": 99}]}],
    "pods": [{"name": "a/b", "queue": "q", "memory": 100, "gpu": [0], "containers": ["x"], "labels": {"k": "v"}}],
    "objects": [
        {"kind": "Pod", "metadata": {"name": "x", "annotations": {"k": "v"}},
         "spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
         "status": {"containerStatuses": [{"name": "c", "containerID": "containerd://00"}]}},
        {"kind": "ConfigMap", "metadata": {"name": "x"}},
    ],
    "processes": [
        {"pid": 9, "gpu": 0, "memory": {0: 1, 5: 2}, "kind": "mps", "pod": "a/b", "container": "x", "from": 1, "until": 9},
        {"pid": 9, "gpu": "MIG-1", "memory": 3, "pod": "a/b", "container": "x", "count": 3},
    ],
    "faults": [{"fault": "gpu-lost", "gpu": 0, "from": 5}, {"fault": "memory-unknown", "pid": 9}],
}  # fmt: skip


def places(value, path=()):
    yield path
    for key, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(inner, (*path, key))


@given(st.sampled_from(list(places(WHOLE))), JUNK, st.floats(0, 20))
def test_any_value_in_any_place_plays_or_gives_one_line(path, junk, time):
    document = copy.deepcopy(WHOLE)
    if path:
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = junk
    else:
        document = junk
    outcome = outcome_of(document)
    if isinstance(outcome, str):
        assert outcome.startswith("node.yaml: ")
        assert "\n" not in outcome
    else:
        state_at(outcome, time)
        json.dumps(node_objects(outcome))
        pod_identities(node_objects(outcome))


def outcome_of(document):
    try:
        return parse_scenario(document, "node.yaml")
    except ScenarioError as error:
        return str(error)


def test_a_scenario_with_every_field_plays():
    assert len(lives(parse_scenario(WHOLE, "node.yaml"))) == 3
