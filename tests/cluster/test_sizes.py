"""Sizes on a real API server: the labels of controllers select them, edits take effect, bad values are refused."""

import json
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio

from examples.shared_gpu import Scene, scenes
from kai import keys
from kai.kaishare_keys import REASON, SIZE
from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import (
    Canary,
    Serving,
    bare_pod,
    ensure_namespaces,
    installed,
    kubectl,
    managed_namespace,
)
from tests.support.control_plane import ControlPlane
from tests.support.selector_cases import BAD, MATCHES, OWN_LIMITS
from tests.support.waiting import until

PODS = "/api/v1/namespaces/{}/pods"
MANY_REPLICAS = {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}}
CONTROLLED: list[tuple[str, str, dict[str, Any], set[tuple[str, str]]]] = [
    ("Job", "batch", {"parallelism": 2, "completions": 2}, {("train", "0.5")}),
    ("Deployment", "apps", MANY_REPLICAS, {("serve", "0.25")}),
    (
        "StatefulSet",
        "apps",
        {**MANY_REPLICAS, "serviceName": "owner", "podManagementPolicy": "Parallel"},
        {("leader", "0.4"), ("follower", "0.1")},
    ),
]
"""Kind, group, spec, and the sizes with their shares of the two pods."""


def with_sizes(name: str, sizes: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """Return a namespace with sizes, each a share and a selector."""
    namespace = managed_namespace(name)
    metadata = namespace["metadata"]
    metadata["labels"] |= {f"size.kaishare.dev/{size}": share for size, (share, _) in sizes.items()}
    metadata["annotations"] = {f"size.kaishare.dev/{size}": text for size, (_, text) in sizes.items() if text}
    return namespace


CONTROLLERS = with_sizes(
    "sizes-of-controllers",
    {
        "train": ("0.5", "batch.kubernetes.io/job-name"),
        "serve": ("0.25", "pod-template-hash"),
        "leader": ("0.4", "apps.kubernetes.io/pod-index=0"),
        "follower": ("0.1", "apps.kubernetes.io/pod-index notin (0), apps.kubernetes.io/pod-index"),
    },
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def webhook(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """Run the webhook with its configurations in the cluster."""
    async with (
        KubeClient(plane.access()) as client,
        installed(plane, client, tmp_path_factory.mktemp("webhook"), CONTROLLERS) as serving,
    ):
        yield serving


async def pods_of(admin: Administrator, namespace: str, count: int) -> list[dict[str, Any]]:
    """Wait until the controllers have created the pods of a namespace."""

    async def pods() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await admin.read(PODS.format(namespace)))["items"]
        return items if len(items) == count else []

    created: list[dict[str, Any]] = await until(pods, f"{namespace} has {count} pods")
    return created


def size_of(pod: dict[str, Any]) -> tuple[str, str]:
    """Return size and share of a stored pod, whose GPU was converted."""
    annotations = pod["metadata"]["annotations"]
    assert annotations[REASON] == "whole-gpu-converted"
    assert keys.GPU_RESOURCE not in json.dumps(pod["spec"])
    assert pod["spec"]["schedulerName"] == keys.SCHEDULER_NAME
    return annotations[SIZE], annotations[keys.GPU_FRACTION]


@pytest.mark.parametrize(
    ("kind", "group", "spec", "expected"), CONTROLLED, ids=[case[0] for case in CONTROLLED]
)
async def test_the_labels_of_a_controller_select_the_size_of_its_pods(
    admin: Administrator,
    controllers: None,
    webhook: Serving,
    kind: str,
    group: str,
    spec: dict[str, Any],
    expected: set[tuple[str, str]],
) -> None:
    namespace = CONTROLLERS["metadata"]["name"]
    restart = "Never" if kind == "Job" else "Always"
    pod_spec = {**bare_pod("")["spec"], "restartPolicy": restart}
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod_spec}
    owner = {"kind": kind, "apiVersion": f"{group}/v1", "metadata": {"name": "owner"}}
    path = f"/apis/{group}/v1/namespaces/{namespace}"
    workloads = f"{path}/{kind.lower()}s"
    await admin.post(workloads, {**owner, "spec": {**spec, "template": template}})
    try:
        pods = await pods_of(admin, namespace, 2)
        assert {size_of(pod) for pod in pods} == expected
    finally:  # no garbage collector runs here
        await admin.delete(f"{workloads}/owner")
        if kind == "Deployment":
            await admin.delete(f"{path}/replicasets")
        await admin.delete(PODS.format(namespace))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train-and-serve", {"train-detector": ("train", "0.5"), "detector-api": ("serve", "0.25")}),
        ("two-vllm-servers", {"assistant": ("large", "0.7"), "autocomplete": ("small", "0.2")}),
    ],
    ids=["train-and-serve", "two-vllm-servers"],
)
async def test_the_pods_of_a_scene_fit_on_one_gpu(
    plane: ControlPlane,
    admin: Administrator,
    controllers: None,
    webhook: Serving,
    name: str,
    expected: dict[str, tuple[str, str]],
) -> None:
    scene = next(scene for scene in scenes() if scene.folder.name == name)
    namespace = scene.pods()[0].namespace
    try:
        for file in (scene.namespace_file, scene.workloads_file):
            result = await kubectl(plane, "apply", "-f", str(file))
            assert result.status == 0, result.errors
            warnings = result.errors.splitlines()
            assert all("one whole GPU became" in each for each in warnings), "about the pods alone"
        pods = await pods_of(admin, namespace, len(expected))
        sizes = {
            workload: size_of(pod)
            for pod in pods
            for workload in expected
            if pod["metadata"]["name"].startswith(f"{workload}-")
        }
        assert sizes == expected
        assert sum(Decimal(share) for _, share in sizes.values()) <= 1
        warnings = [
            warning
            for line in webhook.logged("decision")
            if line["namespace"] == namespace
            for warning in line.get("warnings", ())
        ]
        assert all("became gpu-fraction" in warning for warning in warnings), (
            "the hints about vLLM are silent"
        )
    finally:
        await clean_up(plane, admin, scene, namespace)


async def clean_up(plane: ControlPlane, admin: Administrator, scene: Scene, namespace: str) -> None:
    """Delete the objects of a scene; no garbage collector runs here."""
    await kubectl(plane, "delete", "-f", str(scene.workloads_file), "--wait=false", "--cascade=orphan")
    await admin.delete(f"/apis/apps/v1/namespaces/{namespace}/replicasets")
    await admin.delete(PODS.format(namespace))
    await admin.delete(f"/api/v1/namespaces/{namespace}")


@pytest.fixture
async def typed(admin: Administrator, webhook: Serving) -> str:
    """Return the name of a namespace with the sizes `train` and `serve`, which the webhook validates."""
    name = "sizes-typed"
    await ensure_namespaces(
        admin.client, with_sizes(name, {"train": ("0.5", "app=train"), "serve": ("0.25", "")})
    )
    await Canary(admin.client, name).until_mutated()
    return name


@pytest.mark.parametrize(
    ("verb", "argument", "message"),
    [
        ("label", "size.kaishare.dev/train=2", 'size.kaishare.dev/train: "2" is not allowed; allowed: 0.02'),
        ("annotate", "size.kaishare.dev/train=app in (", "allowed: a label selector as for kubectl get -l"),
    ],
)
async def test_kubectl_prints_why_a_size_or_selector_is_refused(
    plane: ControlPlane, admin: Administrator, typed: str, verb: str, argument: str, message: str
) -> None:
    path = f"/api/v1/namespaces/{typed}"
    before = (await admin.read(path))["metadata"]
    result = await kubectl(plane, verb, "--overwrite", "namespace", typed, argument)
    assert result.status == 1
    assert message in result.errors
    after = (await admin.read(path))["metadata"]
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
