"""Pods that `explain --server` asks the API server about, with their explanations and their namespaces."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from console.explain.explainer import ExplainedPod, Explainer, ServerAnswer
from console.explain.server_dry_runs import ask_server
from kube.client import KubeClient
from kube.kinds import LimitRange
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import bare_pod, managed_namespace
from tests.support.kinds import made
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy

NAMESPACE = managed_namespace("asked", gpu_fraction="0.5", priority="train")
ENFORCED = managed_namespace("asked-enforced", gpu_fraction="0.5", mode="enforce")
PLAIN = "asked-plain"
GPU = "nvidia.com/gpu"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
NAMESPACES = (NAMESPACE, ENFORCED, {"kind": "Namespace", "metadata": {"name": PLAIN, "labels": {}}})
"""The namespaces of these pods: two managed ones, and one without a policy."""

Json = dict[str, Any]


def explained(
    document: Mapping[str, Any],
    *namespaces: Json,
    namespace: str = "asked",
    defaults: Sequence[LimitRange] = (),
) -> ExplainedPod:
    policies = {}
    for item in namespaces or (NAMESPACE, ENFORCED):
        name, labels = item["metadata"]["name"], item["metadata"].get("labels") or {}
        policy = NamespacePolicy.from_labels(name, labels, item["metadata"].get("annotations") or {})
        if policy is not None:
            policies[name] = policy
    explainer = Explainer(namespace, policies, DecisionSettings(), {namespace: defaults})
    (pod,) = explainer.explain(copy.deepcopy(dict(document)))
    assert isinstance(pod, ExplainedPod)
    return pod


async def ask(client: KubeClient, document: Mapping[str, Any], **options: Any) -> ServerAnswer:
    (answer,) = await answers(client, [explained(document, **options)])
    return answer


async def answers(client: KubeClient, pods: Sequence[ExplainedPod]) -> list[ServerAnswer]:
    return [
        pod.server for pod in await ask_server(client, pods) if isinstance(pod, ExplainedPod) and pod.server
    ]


def workload(kind: str, name: str, *, pod: Json | None = None, **spec: Any) -> Json:
    """Return a workload with a GPU for its container `main`."""
    template = pod or bare_pod("")
    template = {key: template[key] for key in ("metadata", "spec")}
    template["metadata"] = {key: value for key, value in template["metadata"].items() if value}
    return made(kind, name, spec={"template": template, **spec})


def limit_range(name: str, **item: Any) -> Json:
    return made("LimitRange", name, PLAIN, spec={"limits": [{"type": "Container", **item}]})


async def created(admin: Administrator, path: str, item: Json) -> str:
    await admin.post(path, item)
    return f"{path}/{item['metadata']['name']}"
