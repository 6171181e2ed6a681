"""docs/api.md and the schema of `/api/v1/shares`: equal to the types, and the types equal to a real response."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from docs import api_schema
from gpuagent.api_types import AgentResponse, ApiCandidate, NotAnAnswer, read_answer
from gpuagent.evaluation.status import Evaluation
from gpuagent.problems import OwnCause, RiskName
from gpuagent.server.api import shares_json
from tests.support.agent_process import agent

ROOT = Path(__file__).parents[2]
OPEN_MAPS = ("shares", "limits", "bytesPerGpu", "flagTransitions")


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every field, without the keys of maps: `pods[].shares{}.bytes`."""
    if isinstance(value, list):
        for item in value:
            yield from paths(item, f"{path}[]")
    elif isinstance(value, dict):
        is_map = path.rpartition(".")[2].removesuffix("{}") in OPEN_MAPS
        for key, item in value.items():
            inner = f"{path}{{}}" if is_map else f"{path}.{key}".removeprefix(".")
            if not is_map:
                yield inner
            yield from paths(item, inner)


def typed(body: bytes) -> Any:
    return json.loads(msgspec.json.encode(read_answer(body)))


def test_the_schema_is_that_of_the_types() -> None:
    text = (ROOT / "docs" / api_schema.FILE).read_text(encoding="utf-8")
    assert text == api_schema.schema_text(), "run `make docs`"


@pytest.mark.parametrize("scenario", ["node", "incident"])
def test_an_agents_response_has_the_fields_of_the_types(scenario: str, tmp_path: Path) -> None:
    options = f"--gpus simulated:tests/support/scenarios/{scenario}.yaml --interval 100ms --grace 100ms"
    with agent(tmp_path / "log", *options.split()) as running:
        running.until(
            lambda: running.shares()["pods"] and any(pod["verdicts"] for pod in running.shares()["pods"])
        )
        _, text = running.get("/api/v1/shares")
    answer, known = json.loads(text), typed(text.encode())
    assert {path for path in paths(answer) if path.startswith("pods[].verdicts[].")} != set()
    for pod in answer["pods"]:
        for candidate in pod["candidates"]:
            assert candidate.keys() | {"counts"} == {"source", "text", "bytesPerGpu", "counts"}
    assert known == answer


def test_the_response_before_the_first_sample_has_the_fields_of_the_types() -> None:
    status = Evaluation().at(0.0, started_at=0.0, interval=5.0, pods_silent_for=0.0)
    body = shares_json(status, node="n", is_simulated=False)
    assert typed(body) == json.loads(body)
    assert (json.loads(body)["sampleTimestamp"], json.loads(body)["attributionOk"]) == (None, None)
    assert read_answer(b'{"node": "n", "news": {"a": null}}') == AgentResponse(node="n"), (
        "as of a newer agent"
    )
    for fields in ('"node": 1', '"node": "n", "gpus": [{"uuid": "GPU-1", "index": "0"}]',
                   '"node": "n", "pods": [{"namespace": "a", "name": "b"}]', '"node": "n", "sampleTimestamp": "now"'):  # fmt: skip
        with pytest.raises(NotAnAnswer):
            read_answer(f"{{{fields}}}".encode())


def test_a_candidate_of_an_agent_before_0_2_0_is_read() -> None:
    text = '{"source": "annotation", "says": "fraction 0.5", "bytesPerGpu": {"": null}}'
    candidate = msgspec.json.decode(text, type=ApiCandidate)
    assert (candidate.source, candidate.text, candidate.bytes_per_gpu) == ("annotation", "", {"": None})


def test_every_field_has_a_meaning_and_says_when_it_is_null() -> None:
    for name, definition in api_schema.schema()["$defs"].items():
        for field_name, field in definition["properties"].items():
            text = field.get("description", "")
            assert text.endswith("."), f"{name}.{field_name} has no description"
            is_null = '"null"' in json.dumps({**field, "default": 0})
            assert is_null == (" null " in text.lower()), f"{name}.{field_name}: when is it null?"


def test_the_descriptions_have_every_code_of_problems_and_causes() -> None:
    objects = api_schema.schema()["$defs"]
    for name, field, codes in (("ApiProblem", "reason", OwnCause), ("ApiRiskCause", "cause", RiskName)):
        assert set(codes) <= set(
            re.findall(r"`([a-z-]+)`", objects[name]["properties"][field]["description"])
        )
