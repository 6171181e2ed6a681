"""LimitRanges that add whole GPUs, in the API server's list."""

from typing import Any

import pytest

from console.doctor.api_reader import ApiReader
from console.doctor.check_results import State
from console.doctor.namespace_checks import limit_range_findings
from kube.client import KubeClient
from tests.support.api_server import ApiServer, refuses
from tests.support.cluster_facts import WELL

LIMITS = "/api/v1/limitranges"


def limit_range(namespace: str = "vision", **limits: Any) -> dict[str, Any]:
    metadata = {"name": "limits", "namespace": namespace}
    return {
        "metadata": metadata,
        "spec": {"limits": [{"type": "Container"}, {"type": "Container", **limits}]},
    }


@pytest.mark.parametrize(
    ("items", "named"),
    [
        ([], ""),
        ([limit_range(default={"nvidia.com/gpu": "1"})], "vision/limits"),
        ([limit_range(defaultRequest={"nvidia.com/gpu": 0})], "vision/limits"),
        ([limit_range(default={"cpu": "1"}, max={"nvidia.com/gpu": "1"})], ""),
        ([limit_range("unmanaged", default={"nvidia.com/gpu": "1"})], ""),
    ],
)
async def test_limit_ranges_that_add_whole_gpus_are_named(
    server: ApiServer, client: KubeClient, items: list[dict[str, Any]], named: str
) -> None:
    server.path = ""
    server.named[LIMITS] = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}
    (finding,) = await limit_range_findings(ApiReader(client), WELL)
    assert finding.state is (State.WARNING if named else State.OK)
    assert named in finding.what


async def test_without_permission_to_list_nothing_is_said_of_them(
    server: ApiServer, client: KubeClient
) -> None:
    server.path = ""
    server.refusals = {LIMITS: refuses(403, "Forbidden")}
    reader = ApiReader(client)
    assert await limit_range_findings(reader, WELL) == []
    assert [finding.state for finding in reader.missing] == [State.UNKNOWN]
