"""`explain --server` on the real API server: what it answers about pods, and what refuses them."""

import asyncio
import contextlib
import copy
import difflib
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings

from kube.client import KubeClient
from tests.support.administrator import Administrator, right
from tests.support.cluster_webhook import (
    Canary,
    bare_pod,
    configured,
    ensure_namespaces,
    installed,
    managed_namespace,
)
from tests.support.control_plane import ControlPlane
from tests.support.guard import ENFORCED as GUARDED
from tests.support.guard import GUARD, guard_on
from tests.support.kube_user import Answer, Asker
from tests.support.markers import scaled
from tests.support.operator_jobs import generated_pods
from tests.support.other_webhooks import others_configuration, patching, with_sidecar_in_front
from tests.support.pod_strategies import pods as any_pods
from tests.support.webhook_process import until
from tests.support.webhook_recorder import recording
from webhook.explain.decision.explainer import ExplainedPod, Explainer
from webhook.explain.decision.limit_ranges import ContainerDefaults
from webhook.explain.decision.server_answer import AnswerDifference, ServerAnswer
from webhook.explain.manifests.pods import TemplateError
from webhook.explain.server.dry_runs import ask_server, pod_to_create
from webhook.policy.decide import Rules
from webhook.policy.labels import NamespacePolicy

PODS = int(os.environ.get("KAISHARE_GENERATED_PODS", scaled(60)))
"""Number of generated pods of each kind; a larger one takes longer and finds more."""
NAMESPACE = managed_namespace("asked", gpu_fraction="0.5", priority="train")
ENFORCED = managed_namespace("asked-enforced", gpu_fraction="0.5", mode="enforce")
PLAIN = "asked-plain"
GPU = "nvidia.com/gpu"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"

Json = dict[str, Any]


def explained(
    document: Mapping[str, Any],
    *namespaces: Json,
    namespace: str = "asked",
    defaults: Sequence[ContainerDefaults] = (),
) -> ExplainedPod:
    """Return the decision about the only pod of a document, with the policies of namespaces."""
    policies = {}
    for item in namespaces or (NAMESPACE, ENFORCED):
        name, labels = item["metadata"]["name"], item["metadata"].get("labels") or {}
        policy = NamespacePolicy.from_labels(name, labels, item["metadata"].get("annotations") or {})
        if policy is not None:
            policies[name] = policy
    explainer = Explainer(namespace, policies, Rules(), {namespace: defaults})
    (pod,) = explainer.explain(copy.deepcopy(dict(document)))
    assert isinstance(pod, ExplainedPod)
    return pod


async def ask(client: KubeClient, document: Mapping[str, Any], **options: Any) -> ServerAnswer:
    """Return the answer about the only pod of a document."""
    (answer,) = await ask_server(client, [explained(document, **options)])
    return answer


def workload(kind: str, name: str, *, pod: Json | None = None, **spec: Any) -> Json:
    """Return a workload with a GPU for its container `main`."""
    template = pod or bare_pod("")
    template = {key: template[key] for key in ("metadata", "spec")}
    template["metadata"] = {key: value for key, value in template["metadata"].items() if value}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


@pytest.fixture
async def namespaces(admin: Administrator) -> None:
    """Create the namespaces of these tests."""
    await ensure_namespaces(
        admin.client, NAMESPACE, ENFORCED, {"kind": "Namespace", "metadata": {"name": PLAIN, "labels": {}}}
    )


# --- the answer equals the API server's -------------------------------------------------------------------


async def plain_dry_run(asker: Asker, namespace: str, pod: Mapping[str, Any]) -> Answer:
    """Create a pod by dry run as a client that knows nothing of explain."""
    document = {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}
    return await asker.send("POST", f"/api/v1/namespaces/{namespace}/pods", document, dry_run=True)


def changed_lines(before: Answer, after: Answer) -> Counter[str]:
    """Return the lines that differ between two pods that one API server completed in different namespaces."""
    texts = []
    for answer in (before, after):
        pod = copy.deepcopy(answer.body)
        metadata = {key: value for key, value in pod["metadata"].items() if key in ("labels", "annotations")}
        for container in pod["spec"]["containers"]:
            amounts = container.get("resources") or {}
            limits, requests = amounts.get("limits") or {}, amounts.get("requests") or {}
            amounts["requests"] = {key: value for key, value in requests.items() if limits.get(key) != value}
            container["resources"] = {key: value for key, value in amounts.items() if value}
            if not container["resources"]:
                del container["resources"]
        visible = {"metadata": metadata, "spec": pod["spec"]}
        if visible["spec"]["schedulerName"] == "default-scheduler":
            del visible["spec"]["schedulerName"]
        texts.append(yaml.safe_dump(visible, width=1000, allow_unicode=True).splitlines())
    return signed(difflib.ndiff(*texts))


def signed(lines: Any) -> Counter[str]:
    """Return the added and removed lines without their indentation, and without the heads of maps."""
    return Counter(
        line[:1] + line[1:].strip() for line in lines if line[:1] in "+-" and not line.endswith((":", ": {}"))
    )


async def test_the_answer_is_the_api_servers_own_about_operators_pods(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, namespaces: None
) -> None:
    items = [
        explained(pod | {"metadata": pod["metadata"] | {"namespace": "asked"}})
        for pod in generated_pods(29, PODS)
    ]
    async with installed(plane, admin.client, tmp_path, NAMESPACE), Asker(plane) as asker:
        answers = await ask_server(admin.client, items)
        seen = Counter[str]()
        for item, answer in zip(items, answers, strict=True):
            ours = await plain_dry_run(asker, "asked", item.created)
            without = await plain_dry_run(asker, PLAIN, item.created)
            assert (answer.is_admitted, answer.refusal) == (ours.status == 201, ours.message)
            assert list(answer.warnings) == unescaped(ours.warnings)
            assert signed(answer.changes) == changed_lines(without, ours), item.created
            assert not answer.differences, (item.created, answer)
            assert not answer.causes
            seen[item.mutation.decision.reason.code] += 1
    assert {"distributed", "whole-gpu-converted", "own-share", "several-gpus"} <= seen.keys()


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
        answers = await ask_server(admin.client, items)
        for item, answer in zip(items, answers, strict=True):
            ours = await plain_dry_run(asker, item.namespace, item.created)
            assert answer.is_admitted == (ours.status == 201), (item.created, answer, ours.message)
            assert words(answer.refusal) == words(ours.message), item.created
            assert list(answer.warnings) == unescaped(ours.warnings)
            assert not answer.differences, (json.dumps(item.created), answer)
            seen[answer.refused_by] += 1
    assert {"", "the API server", "webhook pods.validate.kaishare.dev"} <= seen.keys(), seen


CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}}
FULL = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "full-", "labels": {"a": "b"}},
    "spec": {
        "hostNetwork": True,
        "serviceAccountName": "any",
        "initContainers": [{"name": "init", "image": "host:5000/x@sha256:" + "ab" * 32}],
        "containers": [
            {
                "name": "main",
                "image": "x:1",
                "stdin": False,
                "ports": [{"containerPort": 80}],
                "env": [
                    {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                    {"name": "C", "value": ""},
                ],
                "resources": {"limits": {"cpu": "1000m", "memory": "0.5Gi"}, "requests": {"cpu": 0.5}},
                "livenessProbe": {"httpGet": {"port": 80}},
                "readinessProbe": {"tcpSocket": {"port": 80}},
                "startupProbe": {"grpc": {"port": 5}},
                "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
                "securityContext": {"privileged": False},
                "volumeMounts": [{"name": "map", "mountPath": "/map", "readOnly": False}],
            }
        ],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "x", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "nodeSelector": {},
        "affinity": None,
        "volumes": [
            {"name": "map", "configMap": {"name": "c"}},
            {"name": "secret", "secret": {"secretName": "s"}},
            {"name": "host", "hostPath": {"path": "/x"}},
            {"name": "none"},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "0.5Gi"}},
            {
                "name": "projected",
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"path": "t"}},
                        {
                            "downwardAPI": {
                                "items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]
                            }
                        },
                    ]
                },
            },
            {
                "name": "downward",
                "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]},
            },
            {"name": "claim", "ephemeral": {"volumeClaimTemplate": {"spec": CLAIM}}},
            {
                "name": "iscsi",
                "iscsi": {"targetPortal": "192.0.2.1", "iqn": "iqn.2001-04.com.example:storage", "lun": 0},
            },
            {"name": "rbd", "rbd": {"monitors": ["192.0.2.1"], "image": "x"}},
            {"name": "azure", "azureDisk": {"diskName": "x", "diskURI": "https://example.invalid/blob"}},
        ],
    },
}


async def test_the_api_servers_defaults_are_no_changes(admin: Administrator, namespaces: None) -> None:
    answer = await ask(admin.client, FULL, namespace=PLAIN)
    assert (answer.is_admitted, answer.refusal, answer.changes) == (True, "", [])
    assert not answer.differences


# --- what refuses a pod -----------------------------------------------------------------------------------


def limit_range(name: str, **item: Any) -> Json:
    limits = {"limits": [{"type": "Container", **item}]}
    return {
        "kind": "LimitRange",
        "metadata": {"name": name, "namespace": PLAIN},
        "spec": limits,
        "apiVersion": "v1",
    }


async def created(admin: Administrator, path: str, item: Json) -> str:
    """Create an object, and return its path."""
    await admin.post(path, item)
    return f"{path}/{item['metadata']['name']}"


async def test_a_quota_refuses(admin: Administrator, namespaces: None) -> None:
    hard = {"requests.nvidia.com/gpu": "1"}
    quota = {"kind": "ResourceQuota", "metadata": {"name": "gpu-quota"}, "spec": {"hard": hard}}
    path = await created(admin, f"/api/v1/namespaces/{PLAIN}/resourcequotas", quota)
    try:
        # The controller that counts does not run here.
        status = {"status": {"hard": hard, "used": {"requests.nvidia.com/gpu": "1"}}}
        await admin.merge(f"{path}/status", status)

        async def is_refused() -> ServerAnswer | None:
            answer = await ask(admin.client, bare_pod("p"), namespace=PLAIN)
            return answer if answer.is_admitted is False else None

        answer = await until(is_refused, "the quota is known")
    finally:
        await admin.delete(path)
    assert answer.refused_by == "quota gpu-quota"
    assert answer.refusal == (
        'pods "p" is forbidden: exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=1,'
        " used: requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=1"
    )
    assert not answer.differences


async def test_pod_security_refuses_and_warns(admin: Administrator) -> None:
    level = "pod-security.kubernetes.io"
    name = "asked-secured"
    labels = {f"{level}/enforce": "baseline", f"{level}/warn": "restricted"}
    await ensure_namespaces(admin.client, {"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    pod = bare_pod("p")
    answer = await ask(admin.client, pod, namespace=name)
    assert answer.is_admitted
    (warning,) = answer.warnings
    assert warning.startswith(
        'would violate PodSecurity "restricted:latest": allowPrivilegeEscalation != false'
    )
    assert warning.endswith('seccompProfile.type to "RuntimeDefault" or "Localhost")'), "it is whole"
    pod["spec"]["hostNetwork"] = True
    answer = await ask(admin.client, pod, namespace=name)
    assert (answer.is_admitted, answer.refused_by) == (False, "Pod Security baseline")
    assert answer.refusal.endswith(
        'violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)'
    )


async def test_a_limit_range_refuses(admin: Administrator, namespaces: None) -> None:
    item = limit_range("at-most", max={"cpu": "1"}, maxLimitRequestRatio={"memory": "1"})
    path = await created(admin, f"/api/v1/namespaces/{PLAIN}/limitranges", item)
    try:
        for resources, words in (
            ({"limits": {"cpu": "2"}}, "maximum cpu usage per Container is 1, but limit is 2"),
            (
                {"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"memory": "1Gi"}},
                "memory max limit to request ratio per Container is 1, but provided ratio is 2.000000",
            ),
        ):
            pod = bare_pod("p", gpus=0)
            pod["spec"]["containers"][0]["resources"] = resources

            async def refusal(pod: Json = pod) -> ServerAnswer | None:
                answer = await ask(admin.client, pod, namespace=PLAIN)
                return answer if answer.is_admitted is False else None

            answer = await until(refusal, "the LimitRange is known")
            assert answer.refused_by == "a LimitRange"
            assert words in answer.refusal
    finally:
        await admin.delete(path)


@contextlib.asynccontextmanager
async def admission_policy(admin: Administrator, name: str, actions: Sequence[str]) -> AsyncIterator[None]:
    """Refuse every pod of the plain namespace, or warn of it, by a ValidatingAdmissionPolicy."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    chosen = {"matchLabels": {"kubernetes.io/metadata.name": PLAIN}}
    spec = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": chosen},
        "validations": [{"expression": "false", "message": 'no "pods", please'}],
    }
    version = "admissionregistration.k8s.io/v1"
    policy = {
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }
    binding = {
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": f"{name}-binding"},
        "spec": {"policyName": name, "validationActions": list(actions)},
    }
    paths = [
        await created(admin, f"{ADMISSION}/validatingadmissionpolicies", policy),
        await created(admin, f"{ADMISSION}/validatingadmissionpolicybindings", binding),
    ]
    try:
        yield
    finally:
        for path in reversed(paths):
            await admin.delete(path)

        async def is_gone() -> bool:
            answer = await ask(admin.client, bare_pod("p"), namespace=PLAIN)
            return bool(answer.is_admitted and not answer.warnings)

        await until(is_gone, "the policy has no effect any more")


@pytest.mark.parametrize("action", ["Deny", "Warn"])
async def test_an_admission_policy_refuses_or_warns(
    admin: Administrator, namespaces: None, action: str
) -> None:
    name = f"asked-{action.lower()}"
    async with admission_policy(admin, name, [action]):

        async def answered() -> ServerAnswer | None:
            answer = await ask(admin.client, bare_pod("p"), namespace=PLAIN)
            return answer if answer.refusal or answer.warnings else None

        answer = await until(answered, "the policy takes effect")
    message = f"ValidatingAdmissionPolicy '{name}' with binding '{name}-binding'"
    if action == "Deny":
        assert (answer.is_admitted, answer.refused_by) == (False, f"ValidatingAdmissionPolicy {name}")
        assert answer.refusal == f'pods "p" is forbidden: {message} denied request: no "pods", please'
    else:
        assert answer.is_admitted
        assert answer.warnings == (f'Validation failed for {message}: no "pods", please',)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spec": {"containers": [{"name": "main"}]}}, "spec.containers[0].image: Required value"),
        ({"spec": {"containers": [{"name": "main", "image": "i", "env": "x"}]}}, "cannot unmarshal string"),
        ({"metadata": {}}, "name or generateName is required"),
        ({"metadata": {"name": "p", "labels": {"a": "b c"}}}, 'Invalid value: "b c"'),
    ],
)
async def test_a_malformed_pod_is_refused_by_the_api_server(
    admin: Administrator, namespaces: None, change: Json, words: str
) -> None:
    answer = await ask(admin.client, bare_pod("p") | change, namespace=PLAIN)
    assert (answer.is_admitted, answer.refused_by) == (False, "the API server")
    assert words in answer.refusal
    assert not answer.differences


async def test_enforce_denies_as_predicted(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, namespaces: None
) -> None:
    pod = bare_pod("p", labels={"kaishare.dev/inject": "false"})
    async with installed(plane, admin.client, tmp_path, NAMESPACE, ENFORCED):
        answer = await ask(admin.client, pod, namespace="asked-enforced")
    assert (answer.is_admitted, answer.refused_by) == (False, "webhook pods.validate.kaishare.dev")
    assert 'the label kaishare.dev/inject: "false" is not allowed here' in answer.refusal
    assert not answer.differences
    assert not answer.causes


# --- where the cluster decides otherwise -------------------------------------------------------------------


async def test_a_denial_that_was_not_predicted_is_a_difference(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, namespaces: None
) -> None:
    lenient = managed_namespace("asked-enforced", gpu_fraction="0.5")
    pod = explained(
        bare_pod("p", labels={"kaishare.dev/inject": "false"}), lenient, namespace="asked-enforced"
    )
    async with installed(plane, admin.client, tmp_path, NAMESPACE, ENFORCED):
        (answer,) = await ask_server(admin.client, [pod])
    assert answer.differences == [AnswerDifference("verdict", "admitted", "denied")]
    assert "the policy or the settings of the cluster's webhook differ" in answer.causes[0]


async def test_a_webhook_that_is_not_installed(admin: Administrator, namespaces: None) -> None:
    answer = await ask(admin.client, bare_pod("p"))
    assert answer.is_admitted
    assert {difference.field for difference in answer.differences} == {
        "spec.schedulerName",
        "label kai.scheduler/queue",
        "label priorityClassName",
        "annotation gpu-fraction",
        "annotation gpu-fraction-container-name",
        "annotation kaishare.dev/reason",
        "container main: limit nvidia.com/gpu",
        "container main: request nvidia.com/gpu",
    }
    first = answer.differences[0]
    assert first.sentence == "spec.schedulerName: default-scheduler in the cluster, kai-scheduler here"
    (cause,) = answer.causes
    assert cause.startswith("kaishare's webhook did not change the pod: it is not installed")
    assert answer.changes == []


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
            known = ContainerDefaults("asked", "gives-gpus", {GPU: "2"}, {GPU: "2"})
            expected = await ask(admin.client, bare_pod("p", gpus=0), defaults=[known])
        finally:
            await admin.delete(path)
    message = "LimitRanger plugin set: nvidia.com/gpu request for container main; nvidia.com/gpu limit for container main"
    assert f"a LimitRange of the namespace fills in GPUs: {message}" in answer.causes
    fields = {difference.field for difference in answer.differences}
    assert "container main: limit nvidia.com/gpu" in fields
    assert any(f"kubernetes.io/limit-ranger: '{message}'" in line for line in answer.changes)
    assert not expected.differences
    assert not expected.causes


async def test_another_webhook_adds_a_sidecar(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, namespaces: None
) -> None:
    canary = Canary(admin.client, "asked")
    (tmp_path / "injector").mkdir()
    async with (
        installed(plane, admin.client, tmp_path, NAMESPACE),
        recording(tmp_path / "injector", patching(with_sidecar_in_front)) as injector,
        configured(admin.client, others_configuration("zz-sidecars", injector)),
    ):
        await canary.until_called(injector)
        answer = await ask(admin.client, bare_pod("p"))
    assert signed(answer.changes) == Counter(
        [
            "+kai.scheduler/queue: queue-a",
            "+priorityClassName: train",
            "+gpu-fraction: '0.5'",
            "+gpu-fraction-container-name: main",
            "+kaishare.dev/reason: whole-gpu-converted",
            "+schedulerName: kai-scheduler",
            "+- name: sidecar",
            "+image: example.invalid/sidecar",
            "-nvidia.com/gpu: '1'",
        ]
    ), answer.changes
    assert not answer.differences, "the share belongs to main, as predicted"
    assert not answer.causes


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
            f'kaishare\'s webhook decided "{reason}", and the decision here is "whole-gpu-converted"'
        )


async def test_the_clusters_policy_differs_from_the_one_that_was_used(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, namespaces: None
) -> None:
    edited = managed_namespace("asked", gpu_fraction="0.25", mode="observe")
    items = [explained(bare_pod("p"), edited), explained(bare_pod("p"), {"metadata": {"name": "none"}})]
    async with installed(plane, admin.client, tmp_path, NAMESPACE):
        observed, unmanaged = await ask_server(admin.client, items)
    for answer, words in ((observed, "mode is observe"), (unmanaged, "the pod is left alone")):
        assert AnswerDifference("annotation gpu-fraction", None, "0.5") in answer.differences
        (cause,) = answer.causes
        assert words in cause
        assert 'decided "whole-gpu-converted"' in cause


async def test_mode_observe_is_no_difference(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, namespaces: None
) -> None:
    observed = managed_namespace("asked-observed", gpu_fraction="0.5", mode="observe")
    async with installed(plane, admin.client, tmp_path, NAMESPACE, observed):
        (answer,) = await ask_server(
            admin.client, [explained(bare_pod("p"), observed, namespace="asked-observed")]
        )
    assert (answer.is_admitted, answer.changes, answer.differences, answer.causes) == (True, [], [], [])


async def test_a_daemon_set_of_an_enforced_namespace(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, namespaces: None
) -> None:
    pod = {"metadata": {}, "spec": {"containers": [{"name": "main", "image": "example.invalid/image"}]}}
    item = explained(workload("DaemonSet", "agent", pod=pod), namespace="asked-enforced")
    assert not item.is_denied
    async with installed(plane, admin.client, tmp_path, NAMESPACE, ENFORCED):
        (answer,) = await ask_server(admin.client, [item])
    assert (answer.is_admitted, answer.refused_by) == (False, "webhook pods.validate.kaishare.dev")
    (cause,) = answer.causes
    assert "from the DaemonSet controller only" in cause
    assert answer.differences == [AnswerDifference("verdict", "admitted", "denied")]


# --- rights, names and what is sent ------------------------------------------------------------------------


async def test_the_right_to_create_pods_is_enough(
    plane: ControlPlane, admin: Administrator, namespaces: None
) -> None:
    creator = await admin.token("asked-creator", right("pods", "create"))
    stranger = await admin.token("asked-stranger")
    deployment = workload("Deployment", "web")
    async with KubeClient(plane.access(creator)) as client:
        answer = await ask(client, deployment)
    assert answer.is_admitted, answer
    async with KubeClient(plane.access(stranger)) as client:
        answer = await ask(client, deployment)
    assert answer.is_admitted is None
    assert (answer.problem, answer.refused_by) == ("you may not create pods in namespace asked", "RBAC")
    assert 'cannot create resource "pods"' in answer.refusal


@pytest.mark.parametrize(
    ("namespace", "problem"),
    [
        ("asked-nowhere", "namespace asked-nowhere does not exist in this cluster"),
        ("../../nodes", '"../../nodes" is not a name of a namespace'),
    ],
)
async def test_a_namespace_that_does_not_exist(admin: Administrator, namespace: str, problem: str) -> None:
    answer = await ask(admin.client, bare_pod("p"), namespace=namespace)
    assert (answer.is_admitted, answer.problem, answer.changes) == (None, problem, ())


async def test_nothing_is_stored(plane: ControlPlane, admin: Administrator, namespaces: None) -> None:
    await ask_server(admin.client, [explained(workload(kind, "stored")) for kind in ("Job", "Deployment")])
    await ask(admin.client, bare_pod("stored"))
    assert (await admin.read("/api/v1/namespaces/asked/pods"))["items"] == []
    requests = [line for line in plane.audited() if line.get("objectRef", {}).get("namespace") == "asked"]
    assert requests
    assert all("dryRun=All" in line["requestURI"] for line in requests)


async def test_a_stored_pod_is_sent_again(admin: Administrator, namespaces: None) -> None:
    """`kubectl get -o yaml` of a pod has its uid, its resourceVersion and its status, and its name is taken."""
    stored = await admin.create(bare_pod("there", namespace=PLAIN))
    answer = await ask(admin.client, stored, namespace=PLAIN)
    assert (answer.is_admitted, answer.changes, answer.differences) == (True, [], [])
    assert answer.notes == ["a pod named there exists, so the answer is for a pod with a generated name"]


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
    answers = await ask_server(admin.client, items)
    assert [(answer.is_admitted, answer.refusal) for answer in answers] == [(True, "")] * 3
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


# --- the guard, on for the rest of the file ----------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(plane: ControlPlane) -> Iterator[None]:
    with guard_on(plane, GUARD / "deny"):
        yield


def test_the_guard_refuses(plane: ControlPlane, guarded: None) -> None:
    async def answered() -> ServerAnswer:
        async with KubeClient(plane.access()) as client:
            pod = bare_pod("p", annotations={"received-resource-type": "Fraction"})
            return await ask(client, pod, namespace=GUARDED)

    answer = asyncio.run(answered())
    assert (answer.is_admitted, answer.refused_by) == (False, "ValidatingAdmissionPolicy kaishare-guard-keys")
    assert "only KAI may write" in answer.refusal
