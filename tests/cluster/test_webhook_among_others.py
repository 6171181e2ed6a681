"""The webhook beside other webhooks: KAI's, which must be called after it, and injectors of sidecars."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kai import keys
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import (
    Canary,
    Serving,
    bare_pod,
    ca_of,
    configured,
    ensure_namespaces,
    from_files,
    has_share,
    kubectl,
    managed_namespace,
    our_configurations,
    serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.other_webhooks import (
    as_kai,
    kai_configuration,
    others_configuration,
    patching,
    with_sidecar_in_front,
)
from tests.support.webhook_recorder import Recorder, recording
from webhook.registration.configurations import CONFIGURATION_NAME

NAMESPACE = managed_namespace("crowded", gpu_fraction="0.5", priority="train")
PODS = "/api/v1/namespaces/crowded/pods"
KAI_0_13 = ("--kai-version", "0.13.4")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """Run the webhook with KAI's version; it is not registered in the cluster yet."""
    folder = tmp_path_factory.mktemp("webhook")
    async with KubeClient(plane.access()) as client:
        await ensure_namespaces(client, NAMESPACE)
        runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
        await Administrator(client).ensure({**runtime, "metadata": {"name": "nvidia"}})  # KAI sets it
    async with serving(folder / "log", *from_files(folder, NAMESPACE), *KAI_0_13) as webhook:
        yield webhook


def containers(pod: dict[str, Any]) -> list[str]:
    return [container["name"] for container in pod["spec"]["containers"]]


def wired_up(pod: dict[str, Any]) -> list[str]:
    """Return the containers to which KAI has allocated a GPU."""
    return [
        container["name"]
        for container in pod["spec"]["containers"]
        if any(variable["name"] == keys.GPU_PORTION_ENV for variable in container.get("env", ()))
    ]


def actions(webhook: Serving, pod: str) -> list[str]:
    """Return kaishare's actions for a pod, call by call."""
    return [line["action"] for line in webhook.logged("decision") if line["name"] == pod]


def seen(other: Recorder, pod: str) -> list[dict[str, Any]]:
    """Return a pod as another webhook received it, call by call."""
    objects = (request["object"] for _, request in other.calls)
    return [each for each in objects if each["metadata"]["name"] == pod]


@pytest.mark.parametrize(
    ("name", "is_seen_by_kai"),
    [(CONFIGURATION_NAME, True), ("z-kaishare", False), ("mutating-kaishare", False)],
)
async def test_kai_handles_kaishares_pods_only_if_kaishares_name_sorts_before_its_own(
    admin: Administrator, ours: Serving, tmp_path: Path, name: str, is_seen_by_kai: bool
) -> None:
    canary = Canary(admin.client, "crowded")
    async with recording(tmp_path, patching(as_kai)) as kai:
        configurations = our_configurations(ours.target, ca_of(ours.log.parent), name=name)
        async with configured(admin.client, kai_configuration(kai), *configurations):
            await canary.until_called(kai)
            await canary.until_mutated()
            pod = await canary.pod(name=f"pod-of-{name}")
        await canary.until_unchanged()
        calls = seen(kai, f"pod-of-{name}")
    assert has_share(pod), "nothing fails at admission"
    if is_seen_by_kai:
        assert wired_up(pod) == ["main"]
        assert calls[0]["metadata"]["annotations"]["gpu-fraction"] == "0.5"
        assert actions(ours, f"pod-of-{name}") == ["injected", "unchanged"], (
            "asked again, since KAI changed it"
        )
    else:
        assert calls == []
        assert wired_up(pod) == []


@pytest.mark.parametrize("name", ["a-sidecars", "kai-50-sidecars", "z-sidecars"])
async def test_an_injected_first_sidecar_does_not_get_the_share(
    admin: Administrator, ours: Serving, tmp_path: Path, name: str
) -> None:
    canary, pod_name = Canary(admin.client, "crowded"), f"pod-beside-{name}"
    (tmp_path / "injector").mkdir()
    async with (
        recording(tmp_path, patching(as_kai)) as kai,
        recording(tmp_path / "injector", patching(with_sidecar_in_front)) as injector,
    ):
        configurations = our_configurations(ours.target, ca_of(ours.log.parent))
        others = (kai_configuration(kai), others_configuration(name, injector))
        async with configured(admin.client, *others, *configurations):
            await canary.until_called(kai)
            await canary.until_called(injector)
            await canary.until_mutated()
            pod = await admin.post(PODS, bare_pod(pod_name))
            await admin.delete(f"{PODS}/{pod_name}")
        await canary.until_unchanged()
    assert containers(pod) == ["sidecar", "main"]
    assert has_share(pod), "for the container main"
    assert wired_up(pod) == ["main"]
    assert actions(ours, pod_name) == ["injected", "unchanged"]


async def test_where_kais_version_is_unknown_a_container_behind_a_sidecar_keeps_its_gpu(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    """KAI before 0.9.12 gives the share to the first container, whatever the pod says."""
    canary = Canary(admin.client, "crowded")
    options = from_files(tmp_path, NAMESPACE)
    async with (
        serving(tmp_path / "log", *options) as webhook,
        recording(tmp_path, patching(with_sidecar_in_front)) as injector,
    ):
        configurations = our_configurations(webhook.target, ca_of(tmp_path))
        async with configured(admin.client, others_configuration("a-sidecars", injector), *configurations):
            await canary.until_called(injector)
            await canary.until_mutated()
            manifest = bare_pod("behind", namespace="crowded")
            result = await kubectl(
                plane, "create", "--dry-run=server", "-o", "json", "-f", "-", manifest=manifest
            )
        await canary.until_unchanged()
    assert result.status == 0, result.errors
    assert result.errors.startswith("Warning: "), result.errors
    assert '"gpu-fraction"' not in result.output
    assert '"nvidia.com/gpu": "1"' in result.output
    assert '"schedulerName": "kai-scheduler"' in result.output
    assert [line["reason"] for line in webhook.logged("decision") if line["name"] == "behind"] == [
        "container-not-first"
    ]
