"""The check `autoscaling`: an autoscaler sees no request for a GPU in a pod with a share."""

import json
from typing import Any

import pytest
from aiohttp import web

from console.doctor.cluster_state import ClusterFacts, Scope
from console.doctor.kai_checks import nodes_are_added
from kai.installation import Installation
from kube.client import KubeClient
from kube.kinds import Container
from tests.console.doctor.test_reading import results
from tests.support.api_server import ApiServer, says, status_object
from tests.support.cluster_facts import but, namespace, whole

ADJUSTER = Container(image="ghcr.io/kai-scheduler/node-scale-adjuster:v0.17.0")

SHARING = but(namespaces=whole(namespace("team-a", gpu_fraction="0.5")))


def _groups(*names: str) -> dict[str, Any]:
    kind = {"kind": "NodePool"}
    resources = [{"resource": "nodepools", "scope": "Cluster", "responseKind": kind}]
    versions = [{"version": "v1", "resources": resources}]
    return {"items": [{"metadata": {"name": name}, "versions": versions} for name in names]}


@pytest.mark.parametrize(
    ("cluster", "has_status", "groups", "expected"),
    [
        (
            SHARING,
            True,
            (),
            ["warning: no node is added for a pod with a share: cluster-autoscaler cannot see"],
        ),
        (
            SHARING,
            False,
            ("apps", "karpenter.sh"),
            ["warning: no node is added for a pod with a share: Karpenter cannot"],
        ),
        (
            SHARING,
            True,
            ("karpenter.sh",),
            ["warning: no node is added for a pod with a share: Karpenter, cluster-autoscaler cannot"],
        ),
        (SHARING, False, ("apps",), []),
        (
            but(installation=Installation.seen_in([(ADJUSTER, False)])),
            True,
            (),
            ["ok: KAI's node-scale-adjuster asks"],
        ),
        # without shares, and without KAI
        (but(namespaces=whole()), True, (), []),
        (but(scope=Scope.PRE, installation=Installation.seen_in(())), True, (), []),
    ],
)
async def test_autoscaling(
    server: ApiServer,
    client: KubeClient,
    cluster: ClusterFacts,
    has_status: bool,
    groups: tuple[str, ...],
    expected: list[str],
) -> None:
    missing = {**status_object(404, "NotFound"), "details": {"name": "cluster-autoscaler-status"}}

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/apis":
            return await says(json.dumps(_groups(*groups)))(request)
        found = {"metadata": {"name": "cluster-autoscaler-status"}}
        return await says(json.dumps(found if has_status else missing), status=200 if has_status else 404)(
            request
        )

    server.always = answer
    found = [f"{each.state}: {each.what}" for each in await results(nodes_are_added, cluster, client)]
    assert [text[: len(words)] for text, words in zip(found, expected, strict=True)] == expected
