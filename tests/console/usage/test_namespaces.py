from array import array
from dataclasses import replace
from typing import Any

import pytest

from console.cluster.webhook import WebhookScope
from console.usage.advice import ShareValue
from console.usage.advise import known_namespace, read_namespaces, read_options
from console.usage.pod_use import Peaks, PodUse
from console.usage.suggestions import Strategy
from kai.installation import SharingMode
from kube.answers import ApiError
from kube.client import KubeClient
from tests.console.usage.test_suggestions import pod
from tests.support.api_server import ApiServer, refuses
from webhook.policy.labels import Mode, PolicyMetadata

PATH = "/api/v1/namespaces"
SCOPE = WebhookScope()
LABELS = {
    "kai.scheduler/queue": "team", "size.kaishare.dev/small": "0.25", "kaishare.dev/gpu-memory": "8192",
}  # fmt: skip
VISION = {"metadata": {"name": "vision", "labels": LABELS}}


async def test_all_namespaces_or_one_are_read(server: ApiServer, client: KubeClient) -> None:
    server.path = PATH
    server.pods = {"vision": VISION, "plain": {"metadata": {"name": "plain"}}}
    known, _, _ = await read_namespaces(client, None, None)
    assert known is not None
    shares = [known["vision"].share_of(size) for size in ("small", "", "absent")]
    assert shares == [ShareValue(hundredths=25), ShareValue(mib=8192), None]
    assert known["plain"].policy is None
    server.objects = {f"{PATH}/vision": VISION}
    assert list((await read_namespaces(client, "vision", None))[0] or ()) == ["vision"]
    assert (await read_namespaces(client, "absent", None))[0] == {}


async def test_without_the_right_the_labels_are_unknown(server: ApiServer, client: KubeClient) -> None:
    server.refusals = {PATH: refuses(403, "Forbidden")}
    for name in (None, "vision"):
        known, (sentence,), _ = await read_namespaces(client, name, Mode.DEFAULT)
        assert known is None
        assert "403 Forbidden" in sentence
    server.refusals = {PATH: refuses(500, "InternalError")}
    with pytest.raises(ApiError, match="500"):
        await read_namespaces(client, None, None)


QUEUE = {"kai.scheduler/queue": "team"}


@pytest.mark.parametrize(
    ("labels", "scope", "words"),
    [
        (QUEUE, SCOPE, ""),
        ({}, SCOPE, "is not managed"),
        (QUEUE | {"kaishare.dev/mode": "observe"}, SCOPE, "the mode of the namespace is observe: its labels"),
        (QUEUE, WebhookScope(default_mode=Mode.OFF), "is off, the webhook's default: its labels change no pod"),
        (QUEUE | {"kaishare.dev/mode": "default"}, WebhookScope(default_mode=Mode.OBSERVE), ""),
        (QUEUE, WebhookScope(excluded=["vision"]), "excludes the namespace"),
        (QUEUE, WebhookScope(reads_labels=False), "from files"),
        ({"kai.scheduler/queue": "Team!"}, SCOPE, "kai.scheduler/queue of the namespace is invalid"),
    ],
)  # fmt: skip
def test_labels_may_change_no_pod(labels: dict[str, str], scope: WebhookScope, words: str) -> None:
    reason = known_namespace("vision", PolicyMetadata(labels), scope).without_effect
    assert words in reason
    assert bool(reason) is bool(words)


SERVERS = {
    "served": {"command": ["vllm", "serve", "M"]},
    "own": {"env": [{"name": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": "0.4"}]},
    "plain": {"command": ["python", "train.py"]},
}


def filling(name: str, namespace: str = "team", **changes: Any) -> PodUse:
    """Return the use of a pod that fills its share."""
    use = pod(name)
    share = use.share_bytes
    peaks = Peaks(array("d", [3600, 7200]), array("d", [share, share]))
    names = use.names._replace(namespace=namespace)
    full = {"quantile_bytes": share, "peak_bytes": share, "low_bytes": share, "peaks": peaks}
    return replace(use, names=names, **{**full, **changes})


async def test_what_pods_run_that_take_what_they_are_given(server: ApiServer, client: KubeClient) -> None:
    server.path = "/api/v1/namespaces/team/pods"
    server.pods = {
        name: {"metadata": {"name": name, "uid": name}, "spec": {"containers": [{"name": "main", **fields}]}}
        for name, fields in SERVERS.items()
    }
    uses = [*map(filling, SERVERS), filling("elsewhere", "other"), filling("gone", is_current=False)]
    read = await read_options(client, uses, None)
    label = "kaishare.dev/framework-memory=set"
    assert read == {
        "served": f"vLLM: change --gpu-memory-utilization with the share, or label the namespace {label}",
        "own": f"JAX: change XLA_PYTHON_CLIENT_MEM_FRACTION with the share, or label the namespace {label}",
    }
    rows = Strategy(min_hours=0).advise(uses, {}, options=read).rows
    notes = [note for row in rows for note in row.notes if "vLLM:" in note]
    assert notes == [f"1 pod of 4 with {read['served']}"]
    enforced = await read_options(client, uses, SharingMode.HAMI_CORE)
    assert enforced["served"] == "vLLM, which takes a part of its share: its option need not change"
    server.refusals = {server.path: refuses(403, "Forbidden")}
    assert await read_options(client, uses, None) == {}
