"""`explain --server` on the real API server: its answers equal the API server's, its rights, and what it sends."""

import contextlib
import copy
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from console.explain.explainer import ExplainedPod
from console.explain.manifest_pods import TemplateError
from console.explain.server_dry_runs import pod_to_create, written_fields
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import (
    bare_pod,
    ensure_namespaces,
    installed,
)
from tests.support.control_plane import ControlPlane
from tests.support.kube_user import Answer, Asker
from tests.support.markers import scaled
from tests.support.pod_strategies import pods as any_pods
from tests.support.server_answers import (
    ENFORCED,
    NAMESPACE,
    NAMESPACES,
    Json,
    answers,
    explained,
    workload,
)
from tests.support.waiting import until

PODS = int(os.environ.get("KAISHARE_GENERATED_PODS", scaled(60)))
"""Number of generated pods of each kind; a larger one takes longer and finds more."""


@pytest.fixture
async def namespaces(admin: Administrator) -> None:
    """Create the namespaces of these tests."""
    await ensure_namespaces(admin.client, *NAMESPACES)


# --- the answer equals the API server's -------------------------------------------------------------------


async def plain_dry_run(asker: Asker, namespace: str, pod: Mapping[str, Any]) -> Answer:
    """Create a pod by dry run as a client that knows nothing of explain."""
    document = {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}
    return await asker.send("POST", f"/api/v1/namespaces/{namespace}/pods", document, dry_run=True)


def unescaped(warnings: Sequence[str]) -> list[str]:
    return [text.replace('\\"', '"').replace("\\\\", "\\") for text in warnings]


def words(message: str) -> list[str]:
    """Return the words of a message, sorted, without the random end of a generated name.

    The API server lists several errors in any order.
    """
    return sorted(re.findall(r"[A-Za-z0-9.\[\]]+", re.sub(r'"case-[a-z0-9]{5}"', '"case-"', message)))


def collected(count: int) -> list[Json]:
    """Return pods of every shape that the API can decode; some are not valid.

    Pods with amounts that the API server rewrites before it calls webhooks are left out: it stores "1 " as 1,
    and 10^30 as 1, too (seen on Kubernetes 1.36.3). The decision here is about the amount as written.
    """
    made: list[Json] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(any_pods())
    def collect(pod: Json) -> None:
        text = json.dumps(pod)
        if not re.search(r'[0-9.]{19}|"[0-9]+ +"|" +[0-9]+"', text):
            made.append(json.loads(text))

    collect()
    return made


async def test_the_answer_is_the_api_servers_own_about_any_pod(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, namespaces: None
) -> None:
    items = []
    for number, pod in enumerate(collected(PODS)):
        if isinstance(pod.get("metadata"), dict):
            pod["metadata"].pop("namespace", None)
        with contextlib.suppress(TemplateError):
            items.append(explained(pod, namespace=("asked", "asked-enforced")[number % 2]))
    assert len(items) > PODS / 2
    seen = Counter[str]()
    async with installed(plane, admin.client, tmp_path, NAMESPACE, ENFORCED), Asker(plane) as asker:
        for item, answer in zip(items, await answers(admin.client, items), strict=True):
            ours = await plain_dry_run(asker, item.namespace, item.created)
            assert answer.is_admitted == (ours.status == 201), (item.created, answer, ours.message)
            assert words(answer.refusal) == words(ours.message), item.created
            assert list(answer.warnings) == unescaped(ours.warnings)
            assert not answer.differences, (json.dumps(item.created), answer)
            assert answer.fields == (written_fields(ours.body) if answer.is_admitted else {})
            seen[answer.refused_by] += 1
    assert {"", "the API server", "webhook pods.validate.kaishare.dev"} <= seen.keys(), seen


# --- rights, names and what is sent ------------------------------------------------------------------------


async def test_pods_have_the_names_and_owners_of_their_controllers(
    admin: Administrator, controllers: None
) -> None:
    name = "asked-controlled"
    await ensure_namespaces(admin.client, {"kind": "Namespace", "metadata": {"name": name, "labels": {}}})
    pod = bare_pod("", gpus=0, labels={"app": "named"})
    once = copy.deepcopy(pod)
    once["spec"]["restartPolicy"] = "Never"
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    mounting = copy.deepcopy(pod)
    mounting["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    selector = {"matchLabels": {"app": "named"}}
    workloads = [
        workload("Deployment", "named-web", pod=pod, selector=selector),
        workload("StatefulSet", "named-db", pod=mounting, selector=selector, serviceName="db", volumeClaimTemplates=[claim]),
        workload("Job", "named-job", pod=once),
    ]  # fmt: skip
    items = [explained(item, namespace=name) for item in workloads]
    admitted = await answers(admin.client, items)
    assert [(answer.is_admitted, answer.refusal) for answer in admitted] == [(True, "")] * 3
    paths = [("deployments", "apps"), ("statefulsets", "apps"), ("jobs", "batch")]
    for document, (resource, group) in zip(workloads, paths, strict=True):
        await admin.post(f"/apis/{group}/v1/namespaces/{name}/{resource}", document)
    try:
        for item, document in zip(items, workloads, strict=True):
            await compare_with_controller(admin, item, document["metadata"]["name"])
    finally:
        for document, (resource, group) in zip(workloads, paths, strict=True):
            await admin.delete(
                f"/apis/{group}/v1/namespaces/{name}/{resource}/{document['metadata']['name']}"
            )
        for stored in (await admin.read(f"/api/v1/namespaces/{name}/pods"))["items"]:
            await admin.delete(f"/api/v1/namespaces/{name}/pods/{stored['metadata']['name']}")


async def compare_with_controller(admin: Administrator, item: ExplainedPod, name: str) -> None:
    """Compare the pod that is sent with the one that the controller creates."""

    async def pods() -> list[Json]:
        listed = (await admin.read(f"/api/v1/namespaces/{item.namespace}/pods"))["items"]
        return [pod for pod in listed if pod["metadata"]["name"].startswith(f"{name}-")]

    stored, sent = (await until(pods, f"{name} has a pod"))[0], pod_to_create(item)
    assert sent["metadata"].get("labels", {}).keys() == stored["metadata"]["labels"].keys()
    depth = stored["metadata"]["generateName"].count("-")
    assert sent["metadata"]["generateName"].count("-") == depth
    if item.pod.kind == "StatefulSet":
        assert sent["metadata"]["name"] == stored["metadata"]["name"]
        assert sent["spec"]["volumes"] == stored["spec"]["volumes"]
        assert sent["spec"]["hostname"] == stored["spec"]["hostname"]
    (ours,), (theirs,) = sent["metadata"]["ownerReferences"], stored["metadata"]["ownerReferences"]
    for key in ("apiVersion", "kind", "controller"):
        assert ours[key] == theirs[key]
    assert ours["name"].count("-") == theirs["name"].count("-")
    assert ours.keys() == theirs.keys() - {"blockOwnerDeletion"}
