"""Sizes on a real API server: kubectl is told why one is refused, and selectors are read alike."""

import json
from pathlib import Path

import pytest

from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import (
    installed,
    kubectl,
    managed_namespace,
)
from tests.support.control_plane import ControlPlane
from tests.support.selector_cases import BAD, MATCHES, OWN_LIMITS

TYPED = managed_namespace("sizes-typed")
TYPED["metadata"]["labels"] |= {"size.kaishare.dev/train": "0.5", "size.kaishare.dev/serve": "0.25"}
TYPED["metadata"]["annotations"] = {"size.kaishare.dev/train": "app=train"}


@pytest.mark.parametrize(
    ("verb", "argument", "message"),
    [
        ("label", "size.kaishare.dev/train=2", 'size.kaishare.dev/train: "2" is not allowed; allowed: 0.02'),
        ("annotate", "size.kaishare.dev/train=app in (", "allowed: a label selector as for kubectl get -l"),
    ],
)
async def test_kubectl_prints_why_a_size_or_selector_is_refused(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, verb: str, argument: str, message: str
) -> None:
    path = "/api/v1/namespaces/sizes-typed"
    async with installed(plane, admin.client, tmp_path, TYPED):
        before = (await admin.read(path))["metadata"]
        result = await kubectl(plane, verb, "--overwrite", "namespace", "sizes-typed", argument)
        after = (await admin.read(path))["metadata"]
    assert result.status == 1
    assert message in result.errors
    assert (after["labels"], after["annotations"]) == (before["labels"], before["annotations"])


@pytest.mark.kubernetes(1, 31)  # an empty item in a list
async def test_the_api_server_reads_selectors_as_kaishare_does(plane: ControlPlane) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    names: dict[str, str] = {}
    async with KubeClient(plane.access()) as client:

        async def selected(text: str) -> set[str]:
            listing = json.loads(await client.get(path, params={"labelSelector": text}))
            return {item["metadata"]["name"] for item in listing["items"]}

        for text, labels, expected in MATCHES:
            key = json.dumps(labels)
            if key not in names:
                names[key] = f"selected-{len(names)}"
                body = {"metadata": {"name": names[key], "labels": labels}}
                await client.request("POST", path, body=json.dumps(body).encode())
            assert (names[key] in await selected(text)) is expected, (text, labels)
        for text in BAD.keys() - OWN_LIMITS:
            with pytest.raises(ApiError) as caught:
                await selected(text)
            assert caught.value.status == 400, text
        for name in names.values():
            await client.request("DELETE", f"{path}/{name}")
