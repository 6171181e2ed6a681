"""The webhook behind a real API server: patched pods, and pods that are left alone."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import Serving, bare_pod, has_share, installed, kubectl, managed_namespace
from tests.support.control_plane import ControlPlane
from tests.support.large_objects import deep_fields
from tests.support.waiting import until
from webhook.registration.configurations import MUTATE

MANAGED = managed_namespace("managed", gpu_fraction="0.5", priority="train")
SIZED = managed_namespace("sized")
SIZED["metadata"]["labels"] |= {"size.kaishare.dev/train": "0.5", "size.kaishare.dev/serve": "0.25"}
SIZED["metadata"]["annotations"] = {"size.kaishare.dev/train": "app=train"}
ENFORCED = managed_namespace("enforced", gpu_fraction="0.5", mode="enforce", max_gpu_fraction="0.5")
PODS = "/api/v1/namespaces/{}/pods"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """Run the webhook, which is called for pods of these namespaces."""
    async with (
        KubeClient(plane.access()) as client,
        installed(plane, client, tmp_path_factory.mktemp("webhook"), MANAGED, SIZED, ENFORCED) as webhook,
    ):
        yield webhook


async def made(admin: Administrator, namespace: str, pod: dict[str, Any], **params: str) -> dict[str, Any]:
    """Create a pod, read the stored pod, and delete it."""
    kept = await admin.post(PODS.format(namespace), pod, **params)
    path = f"{PODS.format(namespace)}/{kept['metadata']['name']}"
    kept = await admin.read(path)
    await admin.delete(path)
    return kept


@pytest.mark.parametrize("levels", [2000, 9000])
@pytest.mark.parametrize("namespace", ["managed", "enforced"])
async def test_managed_fields_nested_too_deep_for_a_decoder_change_no_answer(
    admin: Administrator, ours: Serving, namespace: str, levels: int
) -> None:
    """Any user who may create a pod can write them."""
    fields = deep_fields(levels)
    entry = {"manager": "kubectl", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    pod = bare_pod("deep", managedFields=[{**entry, "fieldsV1": "FIELDS"}])
    body = json.dumps(pod).replace('"FIELDS"', fields).encode()
    path = PODS.format(namespace)
    try:
        await admin.client.request("POST", path, body=body)
        stored = await admin.client.get(f"{path}/deep")
    finally:
        await admin.delete(path)
    assert fields.encode() in stored
    read = json.loads(stored.replace(fields.encode(), b"null"))
    shallow = await made(admin, namespace, bare_pod("deep"))
    for pod in (read, shallow):
        for key in ("managedFields", "uid", "resourceVersion", "creationTimestamp"):
            del pod["metadata"][key]
    assert read == shallow
    assert read["metadata"]["labels"]["kai.scheduler/queue"] == "queue-a"


@pytest.mark.parametrize("how", [(), ("--server-side",)], ids=["client-side", "server-side"])
@pytest.mark.parametrize(
    ("gpus", "annotations", "refusal"),
    [(1, {}, "Forbidden: pod updates may not change fields"), (0, {"gpu-fraction": "0.25"}, ""), (1, {"kaishare.dev/whole-gpu": "true"}, "")],
    ids=["a GPU that became a share", "a share of its own", "a whole GPU that is kept"],
)  # fmt: skip
async def test_a_bare_pod_can_be_applied_again_if_it_keeps_its_resources(
    plane: ControlPlane, admin: Administrator, ours: Serving, gpus: int, annotations: dict[str, str], refusal: str, how: tuple[str, ...]
) -> None:  # fmt: skip
    """The ways that docs/policy.md names for bare pods under GitOps: the resources of a pod cannot change."""
    pod = bare_pod("again", gpus=gpus, namespace="managed", annotations=annotations)
    try:
        applied = await kubectl(plane, "apply", *how, "-f", "-", manifest=pod)
        assert applied.status == 0, applied.errors
        again = await kubectl(plane, "apply", *how, "-f", "-", manifest=pod)
        assert (again.status, refusal in again.errors) == (1 if refusal else 0, True), again.errors
        stored = await admin.read(f"{PODS.format('managed')}/again")
        assert stored["spec"]["schedulerName"] == "kai-scheduler"
        assert stored["metadata"]["annotations"].items() >= annotations.items()
        assert not refusal or has_share(stored)
    finally:
        await admin.delete(f"{PODS.format('managed')}/again")


async def test_a_bare_pod_with_a_generated_name_keeps_its_gpu_and_has_a_warning(
    plane: ControlPlane, admin: Administrator, ours: Serving
) -> None:
    """Every KAI up to 0.17.0 refuses one with a share."""
    pod = bare_pod("", namespace="managed")
    pod["metadata"] = {"generateName": "some-", "namespace": "managed"}
    result = await kubectl(plane, "create", "-f", "-", "-o", "json", manifest=pod)
    assert result.status == 0, result.errors
    kept = json.loads(result.output)
    await admin.delete(f"{PODS.format('managed')}/{kept['metadata']['name']}")
    assert kept["spec"]["schedulerName"] == "kai-scheduler"
    assert kept["metadata"]["labels"]["kai.scheduler/queue"] == "queue-a"
    assert kept["metadata"]["annotations"] == {"kaishare.dev/reason": "name-unsupported"}
    assert kept["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert result.errors.startswith("Warning: ")


async def test_the_audit_log_has_the_decision(
    plane: ControlPlane, admin: Administrator, ours: Serving
) -> None:
    kept = await made(admin, "managed", bare_pod("audited"))

    def entries() -> list[dict[str, Any]]:
        return [
            entry["annotations"]
            for entry in plane.audited()
            if entry["objectRef"].get("name") == "audited" and "annotations" in entry
        ]

    assert has_share(kept)
    (annotations,) = await until(entries, "the audit log is written")
    assert annotations[f"{MUTATE}/action"] == "injected"
    assert annotations[f"{MUTATE}/reason"] == "whole-gpu-converted"


async def test_enforce_denies_pods_that_opt_out_and_admits_the_others(
    admin: Administrator, ours: Serving
) -> None:
    kept = await made(admin, "enforced", bare_pod("good"))
    assert kept["metadata"]["annotations"]["gpu-fraction"] == "0.5"
    out = bare_pod("out", labels={"kaishare.dev/inject": "false"})
    with pytest.raises(ApiError, match=r"403.*pods\.validate\.kaishare\.dev") as caught:
        await made(admin, "enforced", out)
    assert "kaishare.dev/inject" in str(caught.value)
    with pytest.raises(ApiError, match="403"):
        await made(admin, "enforced", bare_pod("much", gpus=0, annotations={"gpu-fraction": "0.75"}))


@pytest.mark.parametrize(
    ("verb", "argument", "message"),
    [
        ("label", "size.kaishare.dev/train=2", 'size.kaishare.dev/train: "2" is not allowed; allowed: 0.02'),
        ("annotate", "size.kaishare.dev/train=app in (", "allowed: a label selector as for kubectl get -l"),
    ],
)
async def test_kubectl_prints_why_a_size_or_selector_is_refused(
    plane: ControlPlane, admin: Administrator, ours: Serving, verb: str, argument: str, message: str
) -> None:
    before = (await admin.read("/api/v1/namespaces/sized"))["metadata"]
    result = await kubectl(plane, verb, "--overwrite", "namespace", "sized", argument)
    assert result.status == 1
    assert message in result.errors
    after = (await admin.read("/api/v1/namespaces/sized"))["metadata"]
    assert (after["labels"], after["annotations"]) == (before["labels"], before["annotations"])
