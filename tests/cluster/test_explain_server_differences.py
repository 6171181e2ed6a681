"""`explain --server` where the cluster decides otherwise than the explanation: the differences and their causes."""

import json
from pathlib import Path

import pytest

from console.explain.explainer import AnswerDifference, ServerAnswer
from kube.kinds import LIMIT_RANGES
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import (
    Canary,
    bare_pod,
    configured,
    ensure_namespaces,
    installed,
)
from tests.support.control_plane import ControlPlane
from tests.support.other_webhooks import others_configuration, patching
from tests.support.server_answers import (
    ENFORCED,
    GPU,
    NAMESPACE,
    NAMESPACES,
    Json,
    ask,
    created,
    limit_range,
)
from tests.support.waiting import until
from tests.support.webhook_recorder import recording


@pytest.fixture
async def namespaces(admin: Administrator) -> None:
    """Create the namespaces of these tests."""
    await ensure_namespaces(admin.client, *NAMESPACES)


async def test_a_webhook_that_is_down(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, namespaces: None
) -> None:
    async with installed(plane, admin.client, tmp_path, NAMESPACE, ENFORCED) as webhook:
        await webhook.kill()
        ignored = await ask(admin.client, bare_pod("p"))
        failed = await ask(admin.client, bare_pod("p"), namespace="asked-enforced")
    assert ignored.is_admitted
    assert "did not answer (failurePolicy Ignore)" in ignored.causes[0]
    assert (failed.is_admitted, failed.refused_by) == (False, "webhook pods.validate.kaishare.dev")
    assert failed.refusal.startswith(
        'Internal error occurred: failed calling webhook "pods.validate.kaishare.dev"'
    )
    assert failed.causes == [
        "webhook pods.validate.kaishare.dev did not answer, and its failurePolicy is Fail"
    ]
    assert not failed.differences


async def test_a_limit_range_that_gives_a_gpu(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, namespaces: None
) -> None:
    item = limit_range("gives-gpus", default={GPU: "2"})
    item["metadata"]["namespace"] = "asked"
    async with installed(plane, admin.client, tmp_path, NAMESPACE):
        path = await created(admin, "/api/v1/namespaces/asked/limitranges", item)
        try:

            async def differs() -> ServerAnswer | None:
                answer = await ask(admin.client, bare_pod("p", gpus=0))
                return answer if answer.differences else None

            answer = await until(differs, "the LimitRange is known")
            known = LIMIT_RANGES.decode(json.dumps(item))
            expected = await ask(admin.client, bare_pod("p", gpus=0), defaults=[known])
        finally:
            await admin.delete(path)
    message = "LimitRanger plugin set: nvidia.com/gpu request for container main; nvidia.com/gpu limit for container main"
    assert f"a LimitRange of the namespace fills in GPUs: {message}" in answer.causes
    fields = {difference.field for difference in answer.differences}
    assert "container main: limit nvidia.com/gpu" in fields
    assert answer.fields["container main: limit nvidia.com/gpu"] == "2"
    assert not expected.differences
    assert not expected.causes


def with_another_share(pod: Json) -> Json:
    annotations = pod["metadata"].get("annotations") or {}
    return {**pod, "metadata": {**pod["metadata"], "annotations": {**annotations, "gpu-fraction": "0.75"}}}


@pytest.mark.parametrize(
    ("name", "reason"), [("zz-other-share", None), ("a-other-share", "own-share")], ids=["after", "before"]
)
async def test_another_webhook_changes_the_share(
    plane: ControlPlane,
    admin: Administrator,
    tmp_path: Path,
    namespaces: None,
    name: str,
    reason: str | None,
) -> None:
    canary = Canary(admin.client, "asked")
    (tmp_path / "other").mkdir()
    async with (
        installed(plane, admin.client, tmp_path, NAMESPACE),
        recording(tmp_path / "other", patching(with_another_share)) as other,
        configured(admin.client, others_configuration(name, other)),
    ):
        await canary.until_called(other)
        answer = await ask(admin.client, bare_pod("p"))
    assert AnswerDifference("annotation gpu-fraction", "0.5", "0.75") in answer.differences
    (cause,) = answer.causes
    if reason is None:
        assert cause == (
            "another webhook or admission policy changed annotation gpu-fraction after kaishare's decision;"
            " API servers do not tell its name"
        )
    else:
        assert cause.startswith(
            f'kaishare decided "{reason}", and the decision here is "whole-gpu-converted"'
        )
