"""Compares `explain --policies cluster` with a cluster's webhook: `python -m tests.comparisons.preview`.

Generated pods and workloads are created by dry run in generated namespaces of a real API server, whose calls
to the real webhook are recorded. The command `explain` answers about the same manifests with the role view.
Every difference is printed whole, and the exit status is 1.
"""

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from console.cluster.webhook import read_settings
from console.explain.cluster_facts import DecisionFacts, read_facts
from console.explain.explainer import ExplainedPod, Explainer, explain
from console.explain.manifest_sources import SourceDocument, read_documents
from console.explain.policy_edits import NamespaceEdits, Policies
from kai import keys
from kube.answers import ApiError
from kube.client import KubeClient, find_access
from service.documents import DocumentError
from tests.comparisons.answers import Creation, PodCreator
from tests.comparisons.differences import DENIED, ComparedPod, cause_of_refusal, differences, outcome
from tests.comparisons.generated_clusters import (
    CLASS,
    GeneratedCluster,
    GeneratedNamespace,
    WebhookSettings,
    generated_cluster,
)
from tests.comparisons.generated_workloads import CreatedPod, GeneratedWorkload, Written, generated_workloads
from tests.support.cluster_webhook import (
    Serving,
    bare_pod,
    ca_of,
    configured,
    from_cluster,
    serving,
)
from tests.support.control_plane import ControlPlane, assets_folder, control_plane
from tests.support.helm_release import kept, let_go, path_of, token_of, until_kind_is_deleted
from tests.support.kube_user import Asker
from tests.support.waiting import until
from tests.support.webhook_process import trust_of
from tests.support.webhook_recorder import proxied
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.patch import Mutation
from webhook.registration.configurations import (
    UrlTarget,
    mutating_configuration,
    validating_configuration,
)
from webhook.settings.decision_options import DEFAULT_CLASS, KnownSettings
from webhook.settings.published_settings import NAME, SettingsError

Json = dict[str, Any]
PREFIX: Final = "preview"
HOME: Final = "preview-home"
"""The namespace of the published settings and of the reader's account."""
READER: Final = "preview-reader"
_GROUP: Final = "rbac.authorization.k8s.io"
_NAMESPACES: Final = 24
_PODS_AT_ONCE: Final = 400
_SCHEMA: Final = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Answers that differ, with everything that is needed to see it again."""

    settings: WebhookSettings
    namespace: GeneratedNamespace
    workload: GeneratedWorkload
    pod: ComparedPod
    sentences: Sequence[str]

    def __str__(self) -> str:
        space, creation = self.namespace, self.pod.creation
        parts = [
            *(f"DIFFERENCE: {sentence}" for sentence in self.sentences),
            f"webhook: {self.settings}",
            f"namespace: {json.dumps(dict(space.labels))} {json.dumps(dict(space.annotations))}, limits: {space.limits}",
            f"manifest: {json.dumps(self.workload.write(self.workload.template).manifest)}",
            f"created: {json.dumps(self.pod.created)}",
            f"explain: {json.dumps({key: value for key, value in self.pod.printed.items() if key != 'pod'})}",
            f"decisions: {json.dumps(list(creation.decisions.values()))}",
            f"answer: {creation.answer.status} {creation.answer.message}",
        ]
        return "\n  ".join(parts)


@dataclass(kw_only=True)
class Tally:
    """Counts of the comparisons, and the differences."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    """Manifests that `explain` refuses while the API server creates their pods."""

    def count(self, **words: str) -> None:
        """Add one to a word of each kind."""
        for kind, word in words.items():
            self.counts.setdefault(kind, Counter())[word] += 1

    def __str__(self) -> str:
        lines = []
        for kind, words in self.counts.items():
            lines.append(f"{kind.replace('_', ' ')}:")
            lines += [f"  {count:6} {word}" for word, count in words.most_common()]
        return "\n".join(lines)


@dataclass(kw_only=True)
class Previews:
    """Clusters that share a control plane, one after the other."""

    plane: ControlPlane
    client: KubeClient
    folder: Path
    tally: Tally = field(default_factory=Tally)
    _clusters: int = 0

    async def compare(self, cluster: GeneratedCluster, workloads: Sequence[GeneratedWorkload]) -> None:
        """Compare the answers about workloads, which are spread over the cluster's namespaces."""
        self._clusters += 1
        folder = self.folder / f"cluster-{self._clusters}"
        folder.mkdir()
        async with self._installed(cluster, folder) as (creator, kubeconfig):
            comparison = _Comparison(
                cluster=cluster, creator=creator, kubeconfig=kubeconfig, folder=folder, tally=self.tally
            )
            await comparison.run(workloads)

    @contextlib.asynccontextmanager
    async def _installed(
        self, cluster: GeneratedCluster, folder: Path
    ) -> AsyncIterator[tuple[PodCreator, Path]]:
        """Create the cluster's objects, run its webhook, and install the configurations with a proxy."""
        settings = cluster.settings
        canary = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": f"{PREFIX}-canary",
                "labels": {keys.QUEUE_LABEL: "queue-a", "kaishare.dev/mode": "enforce"},
            },
        }
        spaces = [item for namespace in cluster.namespaces for item in namespace.objects]
        objects = [*_shared_objects(settings), *spaces, canary]
        objects += [_viewer(namespace.name) for namespace in cluster.namespaces]
        names = [item["metadata"]["name"] for item in objects if item["kind"] == "Namespace"]
        try:
            async with kept(self.client, objects):
                token = await token_of(self.client, READER, HOME)
                options = [
                    *from_cluster(self.plane, folder),
                    *settings.options,
                    f"--settings-namespace={HOME}",
                ]
                async with serving(folder / "log", *options) as webhook:
                    await self._until_published(settings)
                    async with self._registered(settings, webhook, folder) as creator:
                        yield creator, self.plane.kubeconfig(token=token)
        finally:
            for name in names:
                await self._delete_namespace(name)
            for item in objects:
                if item["kind"] == "CustomResourceDefinition":
                    await until_kind_is_deleted(self.client, path_of(item))

    @contextlib.asynccontextmanager
    async def _registered(
        self, settings: WebhookSettings, webhook: Serving, folder: Path
    ) -> AsyncIterator[PodCreator]:
        url = f"https://{webhook.admission}"
        connector = aiohttp.TCPConnector(ssl=trust_of(folder / "tls"))
        async with (
            proxied(folder, url, ca_of(folder)) as proxy,
            Asker(self.plane) as asker,
            aiohttp.ClientSession(connector=connector, trust_env=False) as session,
        ):
            target, excluded = UrlTarget(proxy.url), settings.skipped_by_configuration
            configurations = [
                build(target, ca_bundle=proxy.ca_bundle, excluded=excluded)
                for build in (mutating_configuration, validating_configuration)
            ]
            canary = _Canary(asker, settings)
            async with configured(self.client, *configurations):
                await until(canary.is_reviewed, "the API server calls the webhook")
                yield PodCreator(asker=asker, proxy=proxy, log=webhook.log, session=session, url=url)
            await until(canary.is_ignored, "the API server no longer calls the webhook")

    async def _until_published(self, settings: WebhookSettings) -> None:
        """Wait until the webhook's settings are in its ConfigMap, the default class included."""

        async def is_published() -> bool:
            try:
                published = await read_settings(self.client, HOME)
            except SettingsError:
                return False
            is_known = published.rules.default_priority_class == (
                CLASS if settings.has_default_class else None
            )
            return DEFAULT_CLASS in published.known and is_known

        await until(is_published, "the settings are published")

    async def _delete_namespace(self, name: str) -> None:
        try:
            await self.client.request("DELETE", f"/api/v1/namespaces/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
        await let_go(self.client, name)


@dataclass(frozen=True)
class _Canary:
    """Dry-run creations that show which configuration the API server follows."""

    asker: Asker
    settings: WebhookSettings

    async def is_reviewed(self) -> bool:
        """Whether both webhooks are called, and the default PriorityClass is the expected one."""
        changed, opted_out = await self._create(), await self._create(labels={"kaishare.dev/inject": "false"})
        if changed.status != 201 or opted_out.status != 403:
            return False
        expected = CLASS if self.settings.has_default_class else None
        spec = changed["spec"]
        is_changed: bool = spec["schedulerName"] == keys.SCHEDULER_NAME
        return is_changed and spec.get("priorityClassName") == expected

    async def is_ignored(self) -> bool:
        """Whether no webhook is called."""
        pods = [await self._create(), await self._create(labels={"kaishare.dev/inject": "false"})]
        schedulers = [pod["spec"]["schedulerName"] for pod in pods if pod.status == 201]
        return len(schedulers) == len(pods) and keys.SCHEDULER_NAME not in schedulers

    async def _create(self, **metadata: Any) -> "_Created":
        pod = bare_pod("canary", gpus=0, **metadata)
        answer = await self.asker.send("POST", f"/api/v1/namespaces/{PREFIX}-canary/pods", pod, dry_run=True)
        return _Created(answer.body, status=answer.status)


class _Created(dict[str, Any]):
    """A pod with the status of its creation."""

    def __init__(self, pod: Json, *, status: int) -> None:
        super().__init__(pod)
        self.status = status


def _shared_objects(settings: WebhookSettings) -> list[Json]:
    """Return the objects that every cluster needs besides its namespaces."""
    role = {
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["get"]}]
    }
    objects: list[Json] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": HOME}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": READER, "namespace": HOME}},
        {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": {"name": NAME, "namespace": HOME}, **role},
        _binding(HOME, {"kind": "Role", "name": NAME}),
    ]
    for kind, scope in (("Fleet", "Cluster"), ("Crew", "Namespaced")):
        names = {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()}
        version = {"name": "v1", "served": True, "storage": True, "schema": _SCHEMA}
        spec = {"group": "example.com", "scope": scope, "names": names, "versions": [version]}
        metadata = {"name": f"{kind.lower()}s.example.com"}
        objects.append(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": metadata,
                "spec": spec,
            }
        )
    for name, value in ((CLASS, 5), ("inference", 6), ("train", 4)):
        is_default = name == CLASS and settings.has_default_class
        objects.append(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
                "globalDefault": is_default,
            }
        )
    return objects


def _viewer(namespace: str) -> Json:
    """Return the grant of the role view: its rules, since no controller aggregates them here."""
    return _binding(namespace, {"kind": "ClusterRole", "name": "system:aggregate-to-view"})


def _binding(namespace: str, role: Json) -> Json:
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": READER, "namespace": namespace},
        "roleRef": {"apiGroup": _GROUP, **role},
        "subjects": [{"kind": "ServiceAccount", "name": READER, "namespace": HOME}],
    }


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """A workload in a namespace."""

    namespace: GeneratedNamespace
    workload: GeneratedWorkload
    written: Written
    source: SourceDocument


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """The comparison of a list of workloads in one cluster."""

    cluster: GeneratedCluster
    creator: PodCreator
    kubeconfig: Path
    folder: Path
    tally: Tally

    async def run(self, workloads: Sequence[GeneratedWorkload]) -> None:
        spaces = self.cluster.namespaces
        placed = []
        for index, workload in enumerate(workloads):
            each = await self._readable(spaces[index % len(spaces)], workload)
            if each is not None:
                placed.append(each)
        explained, facts = await self._explained(placed)
        printed = await asyncio.to_thread(self._printed, placed)
        policies = _policies(facts, self.cluster)
        explainer = Explainer(spaces[-1].name, policies.by_namespace, facts.rules, facts.defaults)
        chosen: list[tuple[_Placed, ExplainedPod, Json, CreatedPod]] = []
        position = 0
        for each, items in zip(placed, explained, strict=True):
            for item in items:
                output = printed[position]
                position += 1
                if not isinstance(item, ExplainedPod):
                    self.tally.count(results="explain: pods not predictable")
                elif item.pod.path not in each.written.pods:
                    self.tally.count(results="a template of which no pod is created")
                else:
                    chosen.append((each, item, output, each.written.pods[item.pod.path]))
        assert position == len(printed)
        creations = await self.creator.create([(each.namespace.name, pod) for each, _, _, pod in chosen])
        reviewed = await self._reviewed(chosen, creations)
        again = await self._created_again(chosen, creations)
        for index, ((each, item, output, pod), creation) in enumerate(zip(chosen, creations, strict=True)):
            compared = ComparedPod(
                explained=item,
                printed=output,
                created=pod.pod,
                creation=creation,
                reviewed=reviewed.get(index),
                again=again.get(index),
                mutations=[_mutation(explainer, call.request) for call in creation.mutations],
            )
            self._count(each, compared)

    async def _readable(self, namespace: GeneratedNamespace, workload: GeneratedWorkload) -> _Placed | None:
        """Place a workload into a namespace; None if `explain` ends with an error for its manifest."""
        written = _in_namespace(workload.write(workload.template), namespace.name)
        if namespace is self.cluster.namespaces[-1]:  # the one of the option --namespace
            written = replace(written, manifest=_moved(written.manifest, None))
        try:
            text = json.dumps(written.manifest)
            (source,) = read_documents(text, "manifest")
            for _ in explain([source], Explainer("default", {}, DecisionSettings())):
                pass
        except DocumentError as error:
            pods = [(namespace.name, pod) for pod in written.pods.values()]
            for creation in await self.creator.create(pods):
                refused = creation.answer.status != 201
                word = "refused by both" if refused else "refused by explain alone"
                self.tally.count(results=f"explain: unusable manifest, {word}")
                if not refused:
                    self.tally.unusable.append(f"{error}: {json.dumps(written.manifest)[:1000]}")
            return None
        return _Placed(namespace=namespace, workload=workload, written=written, source=source)

    async def _explained(self, placed: Sequence[_Placed]) -> tuple[list[list[Any]], DecisionFacts]:
        """Explain in this process, as the command does; return the items of each manifest."""
        access = await find_access(str(self.kubeconfig))
        names = [namespace.name for namespace in self.cluster.namespaces]
        async with KubeClient(access) as client:
            facts = await read_facts(client, KnownSettings(), names=names, settings_namespace=HOME)
        assert not facts.notes, facts.notes
        policies = _policies(facts, self.cluster)
        explainer = Explainer(names[-1], policies.by_namespace, facts.rules, facts.defaults)
        return [list(explain([each.source], explainer)) for each in placed], facts

    def _printed(self, placed: Sequence[_Placed]) -> list[Json]:
        """Return the output of the command `explain -o json`."""
        manifests = self.folder / "manifests.json"
        items = [each.written.manifest for each in placed]
        manifests.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        command = [
            sys.executable, "-m", "console", "explain", "--policies", "cluster", "-n", self.cluster.namespaces[-1].name,
            "--kubeconfig", str(self.kubeconfig), "--settings-namespace", HOME, "-f", str(manifests), "-o", "json",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, timeout=300, check=False)
        errors = done.stderr.decode()
        assert done.returncode in (0, 1), errors[-2000:]
        assert "not known" not in errors, errors[-2000:]
        printed: list[Json] = json.loads(done.stdout)
        return printed

    async def _reviewed(
        self, chosen: Sequence[tuple[_Placed, ExplainedPod, Json, CreatedPod]], creations: Sequence[Creation]
    ) -> dict[int, Json]:
        """Send the pods to the webhook that the API server has created without a review."""
        unsent = [
            index
            for index, creation in enumerate(creations)
            if creation.answer.status == 201 and not creation.mutations
        ]
        pods = [(chosen[index][0].namespace.name, creations[index].pod) for index in unsent]
        return dict(zip(unsent, await self.creator.reviewed(pods), strict=True))

    async def _created_again(
        self, chosen: Sequence[tuple[_Placed, ExplainedPod, Json, CreatedPod]], creations: Sequence[Creation]
    ) -> dict[int, Creation]:
        """Create the pods of the manifests with the patches of `explain`."""
        patched: dict[int, tuple[str, CreatedPod]] = {}
        for index, ((each, item, output, _), creation) in enumerate(zip(chosen, creations, strict=True)):
            if creation.answer.status != 201 or not output["patch"]:
                continue
            template = {**each.workload.template, **item.after}
            written = _in_namespace(each.workload.write(template), each.namespace.name)
            patched[index] = (each.namespace.name, written.pods[item.pod.path])
        return dict(zip(patched, await self.creator.create(list(patched.values())), strict=True))

    def _count(self, each: _Placed, compared: ComparedPod) -> None:
        explained, settings = compared.explained, self.cluster.settings
        sentences = differences(compared)
        result = outcome(compared.creation)
        self.tally.count(results=result)
        if compared.creation.answer.status != 201 and result != DENIED:
            self.tally.count(refusals=cause_of_refusal(compared.creation.answer))
        decision, policy = explained.mutation.decision, explained.policy
        if result != "refused without a review":
            self.tally.count(
                reasons=f"{decision.action.value} {decision.reason.code}",
                kinds=each.workload.kind,
                modes="(not managed)" if policy is None else policy.mode.value,
                releases=str(settings.kai_version),
                limit_ranges=each.namespace.limits,
                reviews=f"{len(compared.creation.mutations)} of /mutate, {len(compared.creation.validations)} of /validate/pods",
            )
            for again in compared.mutations[1:]:
                self.tally.count(second_reviews=f"{again.decision.action.value} {again.decision.reason.code}")
            for finding in explained.verdict.denials if explained.verdict else ():
                if result == DENIED:
                    self.tally.count(denials=finding.reason.code)
            if compared.again is not None:
                self.tally.count(results="patched manifest created")
        if sentences:
            self.tally.count(results="DIFFERENT")
            self.tally.differences.append(
                Difference(
                    settings=settings,
                    namespace=each.namespace,
                    workload=each.workload,
                    pod=compared,
                    sentences=sentences,
                )
            )


def _policies(facts: DecisionFacts, cluster: GeneratedCluster) -> Policies:
    default_mode = facts.rules.default_mode
    return Policies.collect(
        facts.namespaces, [cluster.namespaces[-1].name], NamespaceEdits(), default_mode=default_mode
    )


def _in_namespace(written: Written, namespace: str) -> Written:
    """Return a manifest and its pods in a namespace."""
    return Written(
        manifest=_moved(written.manifest, namespace),
        pods={
            path: CreatedPod(pod=_moved(created.pod, namespace), user=created.user)
            for path, created in written.pods.items()
        },
    )


def _moved(item: Json, namespace: str | None) -> Json:
    """Return an object in a namespace; None for an object that names none."""
    metadata = {key: value for key, value in (item.get("metadata") or {}).items() if key != "namespace"}
    return {**item, "metadata": metadata if namespace is None else {**metadata, "namespace": namespace}}


def _mutation(explainer: Explainer, request: Mapping[str, Any]) -> Mutation:
    """Return what `explain` computes for the pod of a review."""
    pod = {"apiVersion": "v1", "kind": "Pod", **request["object"]}
    (explained,) = explainer.explain(pod)
    assert isinstance(explained, ExplainedPod)
    return explained.mutation


async def compare_generated(
    plane: ControlPlane,
    client: KubeClient,
    folder: Path,
    *,
    number: int,
    pods: int,
    at_once: int = _PODS_AT_ONCE,
    namespaces: int = _NAMESPACES,
    seconds: float = float("inf"),
) -> Tally:
    """Compare generated workloads until there are enough of them, or the time is over.

    Args:
        plane: the control plane.
        client: an administrator of it.
        folder: folder for logs and manifests.
        number: the seed.
        pods: number of workloads.
        at_once: number of workloads in one cluster.
        namespaces: number of namespaces of one cluster.
        seconds: time after which no further cluster begins.
    """
    previews = Previews(plane=plane, client=client, folder=folder)
    ends = time.monotonic() + seconds
    for index, count in enumerate(_parts(pods, at_once)):
        if time.monotonic() > ends:
            break
        chance = random.Random(f"{number}-{index}")
        cluster = generated_cluster(chance, number + index, f"{PREFIX}-{number}-{index}", namespaces)
        await previews.compare(cluster, generated_workloads(chance.getrandbits(32), count))
    return previews.tally


def _parts(total: int, most: int) -> Iterator[int]:
    while total > 0:
        yield min(total, most)
        total -= most


async def _run(options: argparse.Namespace, plane: ControlPlane, folder: Path) -> Tally:
    async with KubeClient(plane.access()) as client:
        return await compare_generated(
            plane, client, folder, number=options.seed, pods=options.pods, seconds=options.seconds
        )


def main() -> int:
    """Compare, print the counts and the differences; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.comparisons.preview", description=__doc__)
    parser.add_argument("--pods", type=int, default=5000, help="number of workloads (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed (default %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=900, help="time after which no further cluster begins"
    )
    options = parser.parse_args()
    assets = assets_folder()
    if assets is None:
        sys.stderr.write("KUBEBUILDER_ASSETS must name a folder with etcd and kube-apiserver\n")
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with control_plane(assets, folder) as plane:
            tally = asyncio.run(_run(options, plane, folder))
    for difference in tally.differences:
        sys.stdout.write(f"{difference}\n\n")
    for manifest in tally.unusable:
        sys.stdout.write(f"refused by explain alone: {manifest}\n")
    sys.stdout.write(f"{tally}\n")
    return int(bool(tally.differences))


if __name__ == "__main__":
    sys.exit(main())
