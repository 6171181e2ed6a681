"""Compares the webhook with the admission policies, for tests/cluster/test_admission_forms.py.

Pods are created by dry run on a real API server, in two namespaces with the same policy: one where the webhook
decides, and one where the admission policies do. The answers and the pods that come out must be equal, except
for the closed list of differences (`docs.form_differences`), whose outcome is computed for each pod.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from string import Formatter
from typing import Any, Final

from console.render.policy_manifests import MUTATING, VALIDATING, objects_of
from docs.form_differences import DifferenceName
from kai import kaishare_keys, keys
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from kai.pod import PodView, decode_pod
from kai.releases import Version
from kube.answers import ApiError
from kube.client import KubeClient
from tests.comparisons.expected_forms import differences_of_pod, expected
from tests.comparisons.form_pods import RESTORING, CreatedPod, directed, form_cluster, generated
from tests.comparisons.generated_clusters import CLASS, GeneratedCluster, GeneratedNamespace
from tests.support.admission_policies import applied
from tests.support.cluster_webhook import Canary, ca_of, configured, from_cluster, serving
from tests.support.control_plane import ControlPlane
from tests.support.kinds import made, object_path
from tests.support.kube_user import Asker
from tests.support.registration import mutating_configuration, validating_configuration
from tests.support.waiting import until
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode, NamespacePolicy
from webhook.policy.patch import mutate
from webhook.policy.reasons import Reason
from webhook.policy.verify import verify

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
    params, body = {"fieldManager": "tests", "force": "true"}, json.dumps(item).encode()
    await client.request("PATCH", path, params=params, body=body, content_type="application/apply-patch+yaml")


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


_AT_ONCE: Final = 16


@dataclass(kw_only=True)
class Tally:
    """Counts, and the pods that differ otherwise than they may."""

    reasons: Counter[str] = field(default_factory=Counter)
    denials: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    differences: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Stored:
    status: int
    pod: Json = field(default_factory=dict)
    message: str = ""

    @property
    def is_created(self) -> bool:
        return self.status == 201

    def __str__(self) -> str:
        return f"{self.status} {self.message} {json.dumps(self.pod)[:6000]}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    forms: Forms
    asker: Asker
    tally: Tally
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def compare(self, pods: Sequence[tuple[GeneratedNamespace, CreatedPod]]) -> None:
        await asyncio.gather(*(self._compare_one(namespace, pod) for namespace, pod in pods))

    async def _compare_one(self, namespace: GeneratedNamespace, created: CreatedPod) -> None:
        async with self.gate:
            plain, webhook, policy = [
                await create(self.asker, f"{namespace.name}-{form}", created)
                for form in (PLAIN, WEBHOOK, POLICY)
            ]
        problem = self._judge(namespace, created, plain, webhook, policy)
        if problem:
            lines = (
                f"DIFFERENCE: {problem}", f"settings: {self.forms.cluster.settings}",
                f"namespace: {json.dumps(dict(namespace.labels))} {json.dumps(dict(namespace.annotations))}",
                f"limits: {namespace.limits}", f"created by {created.user}: {json.dumps(created.pod)[:6000]}",
                f"webhook: {webhook}", f"policy: {policy}",
            )  # fmt: skip
            self.tally.unexpected.append("\n  ".join(lines))

    def _judge(
        self,
        namespace: GeneratedNamespace,
        created: CreatedPod,
        plain: Stored,
        webhook: Stored,
        policy: Stored,
    ) -> str | None:
        """Count a pod; return what differs otherwise than it may."""
        tally, rules, user = self.tally, self.forms.rules, created.user
        if not plain.is_created:
            return self._judge_refused(namespace, created, plain, webhook, policy)
        name = f"{namespace.name}-{WEBHOOK}"
        labelled = NamespacePolicy.from_labels(
            name, namespace.labels, namespace.annotations, default_mode=rules.default_mode
        )
        mutation = mutate(labelled, json.dumps(plain.pod).encode(), rules)
        tally.reasons[mutation.decision.reason.code] += 1
        if webhook.is_created == policy.is_created:
            if not webhook.is_created:
                tally.results["denied by both"] += 1
                return self._judge_denied(namespace, name, plain, policy, user)
            if webhook.pod == policy.pod:
                tally.results["equal"] += 1
                return None
        outcome = expected(namespace.labels, namespace.annotations, name, plain.pod, rules, user)
        if not outcome.differences:
            return "the answers differ"
        tally.results["different as listed"] += 1
        tally.differences[" + ".join(outcome.differences)] += 1
        is_restored = namespace.limits in RESTORING  # the API server adds a GPU after the first round
        if outcome.is_denied == policy.is_created and not is_restored:
            return f"the listed difference is that the pod is {'denied' if outcome.is_denied else 'admitted'}"
        if not policy.is_created:
            return None
        made = without_empty(outcome.pod)
        if is_restored:
            made, policy = _metadata(made), Stored(status=201, pod=_metadata(policy.pod))
        return (
            None
            if made == policy.pod
            else f"the pod is not that of the listed difference: {json.dumps(made)[:6000]}"
        )

    def _judge_refused(
        self,
        namespace: GeneratedNamespace,
        created: CreatedPod,
        plain: Stored,
        webhook: Stored,
        policy: Stored,
    ) -> str | None:
        """Judge a pod that the API server refuses, unless its GPU is converted."""
        if webhook.is_created == policy.is_created:
            self.tally.results["refused"] += 1
            return None
        listed = list(differences_of_pod(created.pod))
        if namespace.annotations:
            listed.append(DifferenceName.SELECTORS)
        if listed and policy.status in (plain.status, 403):
            self.tally.results["different as listed"] += 1
            self.tally.differences[f"{' + '.join(listed)}, and refused"] += 1
            return None
        return "one is refused"

    def _judge_denied(
        self, namespace: GeneratedNamespace, name: str, plain: Stored, policy: Stored, user: str
    ) -> str | None:
        """Count the denials of a pod that both refuse; return a problem if the policies have another reason."""
        outcome = expected(namespace.labels, namespace.annotations, name, plain.pod, self.forms.rules, user)
        labelled = NamespacePolicy.from_labels(name, namespace.labels, namespace.annotations)
        view = self.forms.view(outcome.pod)
        denials = verify(labelled, view, self.forms.rules, user).denials
        self.tally.denials.update(finding.reason.code for finding in denials)
        is_exact = not outcome.differences and namespace.limits not in RESTORING
        if is_exact and not any(_sentence_of(finding.reason) in policy.message for finding in denials):
            return f"the reasons are {', '.join(finding.reason.code for finding in denials)}"
        return None


def _sentence_of(reason: Reason) -> str:
    return max((text for text, *_ in Formatter().parse(reason.text)), key=len)


def _metadata(pod: Json) -> Json:
    return {key: pod["metadata"].get(key) for key in ("labels", "annotations")}


def without_empty(pod: Json) -> Json:
    """Return the pod without empty limits and requests, which the API server drops."""
    for group in ("containers", "initContainers"):
        for container in pod["spec"].get(group) or ():
            if "resources" in container:
                amounts = container["resources"]
                container["resources"] = {kind: amount for kind, amount in amounts.items() if amount}
    return pod


async def create(asker: Asker, namespace: str, created: CreatedPod) -> Stored:
    """Create a pod by dry run; return it without what differs between two creations."""
    written = created.pod.get("metadata") or {}
    metadata = {key: value for key, value in written.items() if key != "namespace"}
    own = {"metadata": {**metadata, "namespace": namespace}}
    body = {"apiVersion": "v1", "kind": "Pod", **created.pod, **own}
    path = f"/api/v1/namespaces/{namespace}/pods"
    answer = await asker.send("POST", path, body, user=created.user, dry_run=True)
    if answer.status != 201:
        return Stored(status=answer.status, message=answer.message[:1000])
    kept = answer.body
    for key in ("uid", "creationTimestamp", "managedFields", "generation", "namespace"):
        kept["metadata"].pop(key, None)
    # With several LimitRanges the API server mentions one of them.
    annotations = kept["metadata"].get("annotations", {})
    annotations.pop("kubernetes.io/limit-ranger", None)
    if not annotations:
        kept["metadata"].pop("annotations", None)
    if "generateName" in kept["metadata"] and not metadata.get("name"):
        kept["metadata"].pop("name", None)
    kept.pop("status", None)
    return Stored(status=201, pod=kept)


async def compare_forms(
    plane: ControlPlane, client: KubeClient, folder: Path, *, number: int, clusters: int, namespaces: int, pods: int, directed_pods: int
) -> Tally:  # fmt: skip
    """Compare both forms in generated clusters."""
    tally = Tally()
    for index in range(clusters):
        chance = random.Random(f"{number}-{index}")
        name = f"{number}-{index}"
        cluster = form_cluster(chance, number + index, f"forms-{name}", namespaces)
        forms = Forms(client=client, cluster=cluster, number=name)
        made = [*generated(chance.getrandbits(32), pods), *directed(chance, directed_pods)]
        async with (
            Asker(plane) as asker,
            default_class(client, exists=cluster.settings.has_default_class),
            both_forms(plane, folder, forms),
        ):
            comparison = Comparison(forms=forms, asker=asker, tally=tally)
            await comparison.compare([(chance.choice(cluster.namespaces), pod) for pod in made])
    return tally
