"""Pods that KAI's webhook missed, in the API server's list."""

from typing import Any

import pytest

from console.doctor.api_reader import ApiReader
from console.doctor.check_results import State
from console.doctor.missed_pods import missed_pod_findings
from kube.client import KubeClient
from tests.support.api_server import ApiServer
from tests.support.cluster_facts import WELL, but, installed

PODS = "/api/v1/pods"


def serve(server: ApiServer, pod: dict[str, Any]) -> None:
    server.path = ""
    server.named[PODS] = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": [pod]}


MARKED = {"gpu-fraction": "0.5", "runai/shared-gpu-configmap": "web-abc-shared-gpu"}


def unbound(annotations: dict[str, str], scheduler: str = "kai-scheduler", **metadata: Any) -> dict[str, Any]:
    about = {"name": "web", "namespace": "vision", "annotations": annotations, **metadata}
    return {"metadata": about, "spec": {"schedulerName": scheduler}}


@pytest.mark.parametrize(
    ("pod", "is_named"),
    [
        (unbound({"gpu-fraction": "0.5"}), True),
        (unbound({"gpu-memory": "4000"}), True),
        (unbound(MARKED), False),
        (unbound({}), False),
        (unbound({"gpu-fraction": "0.5"}, "default-scheduler"), False),
        (unbound({"gpu-fraction": "0.5"}, deletionTimestamp="2026-05-01T12:00:00Z"), False),
    ],
)
async def test_a_pod_with_a_share_that_kais_webhook_missed_is_named(
    server: ApiServer, client: KubeClient, pod: dict[str, Any], is_named: bool
) -> None:
    serve(server, pod)
    findings = await missed_pod_findings(ApiReader(client), WELL)
    assert [finding.state for finding in findings] == [State.PROBLEM] * is_named
    assert all("1 pod was created without KAI's webhook: vision/web." in finding.what for finding in findings)


async def test_no_pod_is_called_missed_where_kai_leaves_no_mark(
    server: ApiServer, client: KubeClient
) -> None:
    serve(server, unbound({"gpu-fraction": "0.5"}))
    mode = installed("--nv-fractions-enabled=true")
    assert await missed_pod_findings(ApiReader(client), but(installation=mode)) == []
