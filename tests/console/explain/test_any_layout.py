"""`explain -o manifest` of generated pods, written in any layout that YAML allows."""

import io
import json
import sys
from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.cli import main
from service.documents import load_text
from tests.support.markers import scaled

OPTIONS = (
    "--label=kai.scheduler/queue=q", "--label=kaishare.dev/gpu-fraction=0.5", "--label=kaishare.dev/share-for=all",
    "--label=kaishare.dev/gpu-toleration=inject",
)  # fmt: skip
TEXTS = st.text(
    st.sampled_from("ab01 #:-,[]{}&*!|>'\"%@`\n\té日…\\/~.=<?") | st.characters(codec="utf-8", categories=["L", "N", "P"]),
    max_size=12,
)  # fmt: skip
KEYS = st.sampled_from(["app", "a.b/c", "x-1", "on", "1"])
MAPS = st.none() | st.dictionaries(KEYS, TEXTS, max_size=3)
AMOUNTS = st.sampled_from([1, "1"])
RESOURCES = st.none() | st.fixed_dictionaries(
    {},
    optional={"limits": st.dictionaries(st.just("cpu"), TEXTS), "requests": st.just({}), "claims": st.none()},
)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """Return a pod in which the first container may have a GPU, with keys in any order."""
    first: dict[str, Any] = {"name": "main", "args": draw(st.lists(TEXTS, max_size=3))}
    if draw(st.booleans()):
        resources: dict[str, Any] = {"limits": {"nvidia.com/gpu": draw(AMOUNTS)}}
        if draw(st.booleans()):
            resources["requests"] = {"cpu": 1, "nvidia.com/gpu": draw(AMOUNTS)}
        first["resources"] = resources
    second = {"name": "other", "command": draw(st.none() | st.lists(TEXTS, max_size=2))}
    spec = {
        "containers": [first, second],
        "tolerations": draw(st.none() | st.just([]) | st.just([{"key": "x", "operator": "Exists"}])),
        "schedulerName": draw(st.sampled_from([None, "", "default-scheduler", "kai-scheduler"])),
        "nodeSelector": draw(MAPS),
    }
    metadata = {"name": "p", "labels": draw(MAPS), "annotations": draw(MAPS)}
    if draw(st.booleans()):
        del metadata["labels"]
    spec = {key: spec[key] for key in draw(st.permutations(list(spec)))}
    metadata = {key: metadata[key] for key in draw(st.permutations(list(metadata)))}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return {key: pod[key] for key in draw(st.permutations(list(pod)))}


LAYOUTS = st.fixed_dictionaries(
    {
        "default_flow_style": st.sampled_from([True, False, None]),
        "default_style": st.sampled_from([None, None, "'", '"', "|"]),
        "indent": st.integers(2, 9),
        "width": st.sampled_from([20, 80, 10_000]),
        "line_break": st.sampled_from(["\n", "\r\n"]),
        "allow_unicode": st.booleans(),
        "explicit_start": st.booleans(),
        "explicit_end": st.booleans(),
        "version": st.sampled_from([None, (1, 1)]),
    }
)


def run_explain(text: str, output: str) -> tuple[int, str, str]:
    """Return exit status, output and errors."""
    with (
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()))),
        mock.patch.object(sys, "stdout", io.StringIO()) as out,
        mock.patch.object(sys, "stderr", io.StringIO()) as err,
    ):
        status = main(["explain", "-f", "-", *OPTIONS, "-o", output])
        return status, out.getvalue(), err.getvalue()


@pytest.mark.slow
@settings(max_examples=scaled(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents=st.lists(pods(), min_size=1, max_size=3), layout=LAYOUTS, as_json=st.booleans())
def test_the_manifest_equals_the_pods_of_json(documents: list[Any], layout: Any, as_json: bool) -> None:
    text = (
        json.dumps({"kind": "List", "items": documents}, ensure_ascii=layout["allow_unicode"])
        if as_json
        else yaml.safe_dump_all(documents, **layout)
    )
    status, manifest, errors = run_explain(text, "manifest")
    assert (status, errors) == (0, ""), text
    expected = [item["pod"] for item in json.loads(run_explain(text, "json")[1])]
    written = load_text(manifest, "output")
    if as_json:
        assert json.loads(manifest) == written[0]
        written = written[0]["items"]
    assert [{"metadata": pod["metadata"], "spec": pod["spec"]} for pod in written] == expected, text
    assert run_explain(manifest, "manifest")[1] == manifest
