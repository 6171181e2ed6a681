"""`explain --server` on the real API server: its answers equal the API server's, and who refuses a pod is named."""

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from console.explain.explainer import ServerAnswer
from console.explain.server_dry_runs import written_fields
from kube.kinds import LIMIT_RANGES
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import bare_pod, ensure_namespaces, installed
from tests.support.control_plane import ControlPlane
from tests.support.kube_user import Answer, Asker
from tests.support.markers import scaled
from tests.support.pod_strategies import pods as any_pods
from tests.support.server_answers import (
    ADMISSION,
    ENFORCED,
    GPU,
    NAMESPACE,
    NAMESPACES,
    PLAIN,
    Json,
    answers,
    ask,
    created,
    explained,
    limit_range,
)
from tests.support.waiting import until
from webhook.policy.templates import TemplateError

PODS = int(os.environ.get("KAISHARE_GENERATED_PODS", scaled(60)))
"""Number of generated pods of each kind; a larger one takes longer and finds more."""


@pytest.fixture
async def namespaces(admin: Administrator) -> None:
    """Create the namespaces of these tests."""
    await ensure_namespaces(admin.client, *NAMESPACES)


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


def of_admission(kind: str, name: str, **spec: Any) -> Json:
    version = ADMISSION.removeprefix("/apis/")
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def policy(action: str) -> list[tuple[str, Json]]:
    """Return a policy that holds for every pod, and its binding."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    chosen = {"matchLabels": {"kubernetes.io/metadata.name": PLAIN}}
    spec = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": chosen},
        "validations": [{"expression": "false", "message": 'no "pods", please'}],
    }
    kind, binding = "ValidatingAdmissionPolicy", {"policyName": "asked", "validationActions": [action]}
    bound = of_admission(f"{kind}Binding", "asked", **binding)
    made = {"policies": of_admission(kind, "asked", **spec), "policybindings": bound}
    return [(f"{ADMISSION}/validatingadmission{resource}", item) for resource, item in made.items()]


def limits(**item: Any) -> list[tuple[str, Json]]:
    return [(f"/api/v1/namespaces/{PLAIN}/limitranges", limit_range("at-most", **item))]


HARD = {"requests.nvidia.com/gpu": "1"}
QUOTA = {"kind": "ResourceQuota", "metadata": {"name": "gpu-quota"}, "spec": {"hard": HARD}}
BY_POLICY = "ValidatingAdmissionPolicy 'asked' with binding 'asked'"
QUOTAS = [(f"/api/v1/namespaces/{PLAIN}/resourcequotas", QUOTA)]
REFUSALS: dict[str, tuple[list[tuple[str, Json]], Json, str, str]] = {
    "quota": (QUOTAS, {"limits": {GPU: "1"}}, "quota gpu-quota", "exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=1,"),
    "limit": (limits(max={"cpu": "1"}), {"limits": {"cpu": "2"}}, "a LimitRange", "maximum cpu usage per Container is 1, but limit is 2"),
    "ratio": (limits(maxLimitRequestRatio={"memory": "1"}), {"limits": {"memory": "2Gi"}, "requests": {"memory": "1Gi"}},
        "a LimitRange", "memory max limit to request ratio per Container is 1, but provided ratio is 2.000000"),
    "policy": (policy("Deny"), {}, "ValidatingAdmissionPolicy asked", f'pods "p" is forbidden: {BY_POLICY} denied request: no "pods", please'),
    "policy that warns": (policy("Warn"), {}, "", f'Validation failed for {BY_POLICY}: no "pods", please'),
}  # fmt: skip
"""Objects, the resources of the pod, and who refuses it with which words; an empty name for a warning."""


@pytest.mark.parametrize("title", REFUSALS)
async def test_who_refuses_a_pod_is_named(admin: Administrator, namespaces: None, title: str) -> None:
    objects, resources, refused_by, words = REFUSALS[title]
    pod = bare_pod("p", gpus=0)
    pod["spec"]["containers"][0]["resources"] = resources

    async def is_answered(expected: bool) -> ServerAnswer | None:
        answer = await ask(admin.client, pod, namespace=PLAIN)
        return answer if bool(answer.refusal or answer.warnings) is expected else None

    paths = [await created(admin, path, item) for path, item in objects]
    try:
        if title == "quota":  # the controller that counts does not run here
            await admin.merge(f"{paths[0]}/status", {"status": {"hard": HARD, "used": HARD}})
        answer = await until(lambda: is_answered(True), "the objects are known")
    finally:
        for path in reversed(paths):
            await admin.delete(path)
        await until(lambda: is_answered(False), "the objects have no effect any more")
    assert (answer.is_admitted, answer.refused_by) == (not refused_by, refused_by)
    assert words in (answer.refusal if refused_by else answer.warnings[0])
    assert not answer.differences


async def test_a_limit_range_that_gives_a_gpu(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, namespaces: None
) -> None:
    item = limit_range("gives-gpus", default={GPU: "2"})
    item["metadata"]["namespace"] = "asked"
    pod = bare_pod("p", gpus=0)
    async with installed(plane, admin.client, tmp_path, NAMESPACE):
        path = await created(admin, "/api/v1/namespaces/asked/limitranges", item)
        try:

            async def differs() -> ServerAnswer | None:
                answer = await ask(admin.client, pod)
                return answer if answer.differences else None

            answer = await until(differs, "the LimitRange is known")
            expected = await ask(admin.client, pod, defaults=[LIMIT_RANGES.decode(json.dumps(item))])
        finally:
            await admin.delete(path)
    message = "LimitRanger plugin set: nvidia.com/gpu request for container main; nvidia.com/gpu limit for container main"
    assert f"a LimitRange of the namespace fills in GPUs: {message}" in answer.causes
    assert answer.fields["container main: limit nvidia.com/gpu"] == "2"
    assert not expected.differences
    assert not expected.causes
