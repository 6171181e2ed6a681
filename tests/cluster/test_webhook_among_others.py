"""The webhook beside other webhooks and LimitRanges, how an API server reaches it, and the fate of pods if it cannot."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from certs.authority import Authority
from kai import keys
from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import (
    Canary,
    Serving,
    bare_pod,
    ca_of,
    configured,
    ensure_namespaces,
    failed_open,
    from_cluster,
    from_files,
    has_share,
    installed,
    is_unchanged,
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
from tests.support.waiting import until
from tests.support.webhook_recorder import Recorder, recording
from webhook.registration.configurations import CONFIGURATION_NAME, VALIDATE_PODS

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
        asked_again = ["injected", "unchanged"]  # since KAI changed it
        await until(lambda: actions(ours, f"pod-of-{name}") == asked_again, "the log has both decisions")
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
    await until(lambda: actions(ours, pod_name) == ["injected", "unchanged"], "the log has both decisions")


# A LimitRange's default for nvidia.com/gpu, which the API server adds after the first round of webhooks.

GPU = "nvidia.com/gpu"
LIMITED = managed_namespace("limited", gpu_fraction="0.5", priority="train")


def reasons(webhook: Serving, pod: dict[str, Any]) -> list[str]:
    """The reasons of the webhook's decisions about a pod, round by round."""
    name = pod["metadata"]["name"]
    return [line["reason"] for line in webhook.logged("decision") if line["name"] == name]


@pytest.mark.parametrize("amount", ["0", "1"])
async def test_a_gpu_from_a_limit_range_is_removed_again(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, amount: str
) -> None:
    async with installed(plane, admin.client, tmp_path, LIMITED) as webhook:
        limits = {"limits": [{"type": "Container", "default": {GPU: amount}}]}
        metadata = {"name": f"gives-{amount}", "namespace": "limited"}
        await admin.create({"kind": "LimitRange", "metadata": metadata, "spec": limits})
        numbers = count()

        async def decided_twice() -> dict[str, Any] | None:
            """Create a pod; the API server applies the LimitRange only after a moment."""
            wanted = bare_pod(f"put-back-{amount}-{next(numbers)}", namespace="limited")
            pod = await admin.create(wanted)
            await until(lambda: reasons(webhook, wanted), "the pod is decided about")
            twice = reasons(webhook, wanted) == ["whole-gpu-converted", "gpu-removed-again"]
            return pod if twice else None

        pod = await until(decided_twice, "a pod is decided about twice")
        assert pod["metadata"]["annotations"]["gpu-fraction"] == "0.5"
        for container in pod["spec"]["containers"]:
            for kind in ("limits", "requests"):
                assert GPU not in container.get("resources", {}).get(kind, {})


REACHED = managed_namespace("reached", gpu_fraction="0.5", priority="train")
ENFORCED = managed_namespace("reached-enforced", gpu_fraction="0.5", priority="train", mode="enforce")
UNMANAGED = {"kind": "Namespace", "metadata": {"name": "unmanaged"}}
MANY = 200


async def create_many(client: KubeClient, namespace: str, count: int) -> list[dict[str, Any]]:
    """Create pods as a dry run, 16 at a time."""
    canary, turns = Canary(client, namespace), asyncio.Semaphore(16)

    async def create(number: int) -> dict[str, Any]:
        async with turns:
            return await canary.pod(name=f"pod-{number}")

    return await asyncio.gather(*map(create, range(count)))


async def test_an_unreachable_webhook_leaves_managed_pods_unchanged_and_other_pods_unaffected(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    await ensure_namespaces(admin.client, UNMANAGED, ENFORCED)
    async with installed(plane, admin.client, tmp_path, REACHED, ENFORCED) as webhook:
        await until_enforced(admin)
        await webhook.kill()
        before = await failed_open(admin.client)
        assert all(is_unchanged(pod) for pod in await create_many(admin.client, "unmanaged", MANY))
        assert await failed_open(admin.client) == before, "no call was tried"

        assert all(is_unchanged(pod) for pod in await create_many(admin.client, "reached", 20))
        assert await failed_open(admin.client) == before + 20

        with pytest.raises(ApiError, match=rf'500.*failed calling webhook "{VALIDATE_PODS}"'):
            await admin.post("/api/v1/namespaces/reached-enforced/pods", bare_pod("refused"))

        label = ("label", "namespace", "unmanaged", "kaishare.dev/gpu-fraction=2")
        result = await kubectl(plane, *label)
        assert (result.status, result.output) == (0, "namespace/unmanaged labeled\n"), result.errors
        result = await kubectl(plane, "label", "namespace", "unmanaged", "kaishare.dev/gpu-fraction-")
        assert result.status == 0, result.errors

        again = from_cluster(plane, tmp_path)
        async with serving(tmp_path / "again", *again, listen=webhook.admission.port):
            await Canary(admin.client, "reached").until_mutated()


async def until_enforced(admin: Administrator) -> None:
    """Wait until the API server uses the validating configuration, too."""

    async def is_denied() -> bool:
        out = bare_pod("out", labels={"kaishare.dev/inject": "false"})
        try:
            await admin.post("/api/v1/namespaces/reached-enforced/pods", out, dryRun="All")
        except ApiError as error:
            return error.status == 403
        return False

    await until(is_denied, "pods are validated")


async def test_a_foreign_certificate_costs_no_pod(admin: Administrator, tmp_path: Path) -> None:
    await ensure_namespaces(admin.client, REACHED)
    async with serving(tmp_path / "log", *from_files(tmp_path, REACHED)) as webhook:
        stranger = Authority.create(now=datetime.now(UTC)).pair.certificate_pem
        before = await failed_open(admin.client)
        async with configured(admin.client, *our_configurations(webhook.target, stranger)):
            canary = Canary(admin.client, "reached")

            async def is_tried() -> bool:
                assert is_unchanged(await canary.pod())
                return await failed_open(admin.client) > before

            await until(is_tried, "the configuration is taken up")
        assert await webhook.answered() == 0
