"""Installs the webhook and the admission policies beside each other, each for namespaces of its own."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from console.render.policy_manifests import MUTATING, VALIDATING, objects_of
from kai import kaishare_keys, keys
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from kai.pod import PodView, decode_pod
from kai.releases import Version
from kube.answers import ApiError
from kube.client import KubeClient
from tests.comparisons.generated_clusters import CLASS, GeneratedCluster, GeneratedNamespace
from tests.support.admission_policies import applied
from tests.support.cluster_webhook import Canary, ca_of, configured, from_cluster, serving
from tests.support.control_plane import ControlPlane
from tests.support.kinds import made, object_path
from tests.support.waiting import until
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode
from webhook.registration.configurations import mutating_configuration, validating_configuration

Json = dict[str, Any]
FORM: Final = "forms.example.com/form"
"""Label of a namespace: the form that decides about its pods."""
PLAIN, WEBHOOK, POLICY = "plain", "webhook", "policy"


@dataclass(frozen=True, kw_only=True)
class Forms:
    """A cluster in which both forms decide by the same settings."""

    client: KubeClient
    cluster: GeneratedCluster
    number: str
    """Distinguishes the objects of this cluster from those of others."""

    @property
    def rules(self) -> DecisionSettings:
        settings = self.cluster.settings
        excluded = EXCLUDED_NAMESPACES
        if settings.excluded is not None:
            names = settings.excluded & {namespace.name for namespace in self.cluster.namespaces}
            excluded |= {f"{name}-{form}" for name in names for form in (WEBHOOK, POLICY)}
        return DecisionSettings(
            kai_version=Version.parse(settings.kai_version) if settings.kai_version else None,
            inject_shares=settings.inject_shares,
            default_mode=Mode(settings.default_mode),
            default_priority_class=CLASS if settings.has_default_class else None,
            excluded_namespaces=excluded,
        )

    @property
    def options(self) -> list[str]:
        options = [option for option in self.cluster.settings.options if "--exclude" not in option]
        return [*options, f"--exclude-namespaces={','.join(sorted(self.rules.excluded_namespaces))}"]

    @staticmethod
    def view(pod: Json) -> PodView:
        return decode_pod(json.dumps(pod).encode())


def _objects(namespace: GeneratedNamespace, form: str, number: str) -> Iterator[Json]:
    for item in replace(namespace, name=f"{namespace.name}-{form}").objects:
        if item["kind"] == "Namespace":
            labels = item["metadata"]["labels"]
            labels[FORM] = f"{form}-{number}"
            if form == PLAIN:
                labels.pop(keys.QUEUE_LABEL, None)
        yield item


async def _apply(client: KubeClient, item: Json) -> None:
    path = object_path(item)
    await client.request(
        "PATCH",
        path,
        params={"fieldManager": "tests", "force": "true"},
        body=json.dumps(item).encode(),
        content_type="application/apply-patch+yaml",
    )


def _only_for(form: str, number: str, selector: Json) -> None:
    expressions = selector.setdefault("matchExpressions", [])
    expressions.append({"key": FORM, "operator": "In", "values": [f"{form}-{number}"]})


def _policies(forms: Forms) -> Iterator[Json]:
    for item in [*objects_of(MUTATING, forms.rules), *objects_of(VALIDATING, forms.rules)]:
        spec = item["spec"]
        if item["metadata"]["name"].endswith("namespaces"):
            continue  # it would judge the namespaces of all forms
        item["metadata"]["name"] += f"-forms-{forms.number}"
        if "policyName" in spec:
            spec["policyName"] += f"-forms-{forms.number}"
        else:
            _only_for(POLICY, forms.number, spec["matchConstraints"]["namespaceSelector"])
        yield item


@asynccontextmanager
async def both_forms(plane: ControlPlane, folder: Path, forms: Forms) -> AsyncIterator[None]:
    """Run the webhook, install the policies, and wait until both act."""
    client, number = forms.client, forms.number
    canary = GeneratedNamespace(
        name=f"canary-{number}",
        labels={keys.QUEUE_LABEL: "queue-a", kaishare_keys.MODE: "enforce"},
        annotations={},
        limits="none",
    )
    for namespace in (canary, *forms.cluster.namespaces):
        for form in (PLAIN, WEBHOOK, POLICY):
            for item in _objects(namespace, form, number):
                await _apply(client, item)
    own = folder / f"webhook-{number}"
    own.mkdir()
    async with serving(own / "log", *from_cluster(plane, own), *forms.options) as webhook:
        configurations = []
        for build in (mutating_configuration, validating_configuration):
            configuration = build(webhook.target, ca_bundle=ca_of(own), name=f"forms-{number}")
            hooks = [hook for hook in configuration["webhooks"] if "namespaces" not in hook["name"]]
            for hook in hooks:
                hook |= {"failurePolicy": "Fail", "timeoutSeconds": 30}  # no answer is no case
                _only_for(WEBHOOK, number, hook["namespaceSelector"])
            configurations.append({**configuration, "webhooks": hooks})
        async with configured(client, *configurations), applied(client, list(_policies(forms))):
            for form in (WEBHOOK, POLICY):
                await until(partial(_acts, Canary(client, f"canary-{number}-{form}")), f"the {form} acts")
            await asyncio.sleep(0.5)  # every namespace has reached both
            yield


async def _acts(canary: Canary) -> bool:
    """Whether pods are changed, and those that opt out are refused."""
    try:
        if not await canary.is_mutated():
            return False
    except ApiError as error:
        if error.status in (403, 422):  # the policy that refuses is read before the one that changes
            return False
        raise
    try:
        await canary.pod(scheduler="other")
    except ApiError as error:
        return error.status in (400, 403, 422)
    return False


@asynccontextmanager
async def default_class(client: KubeClient, *, exists: bool) -> AsyncIterator[None]:
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    names = {CLASS: exists, "inference": False}
    for name, is_default in names.items():
        item = made("PriorityClass", name, value=10, globalDefault=is_default)
        await client.request("POST", path, body=json.dumps(item).encode())
    try:
        await asyncio.sleep(0.3)  # the API server's own plugin reads a cache
        yield
    finally:
        for name in names:
            await client.request("DELETE", f"{path}/{name}")
