"""The admission policies on a real API server: large objects, edits of namespaces, and each difference from the webhook."""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest

from console.render.expressions import MOST_CONTAINERS, MOST_ENTRIES, MOST_KEYS, MOST_OF_NAMESPACE
from console.render.policy_manifests import MUTATING, VALIDATING, objects_of
from docs.form_differences import DIFFERENCES, DifferenceName
from kai import keys
from kai.installation import SharingMode
from kai.kaishare_keys import FRACTION, MAX_FRACTION, MODE, REASON, SIZE, SIZE_PREFIX
from kube.answers import ApiError
from kube.client import KubeClient
from tests.comparisons.generated_clusters import generated_cluster
from tests.support.admission_policies import applied
from tests.support.cluster_webhook import Canary, api_figures, bare_pod, ensure_namespaces, managed_namespace
from tests.support.control_plane import ControlPlane
from tests.support.decisions import decide
from tests.support.kinds import made
from tests.support.kube_user import ADMINISTRATOR, MERGE, Answer, Asker
from tests.support.markers import nightly
from tests.support.pods import GPU, view
from tests.support.waiting import until
from webhook.policy.decide import Decision
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode, NamespacePolicy, PolicyMetadata, label_problems
from webhook.policy.verify import verify

CHECKS_TOTAL = "apiserver_mutating_admission_policy_check_total"
TEAM = "policies-team"
EDITS = 150
MOST_CPU_SECONDS = 1.0
"""CPU time of the API server for one object, beside what the object costs without policies."""
pytestmark = pytest.mark.kubernetes(1, 36)


@pytest.fixture(scope="module")
def plane(own_plane: ControlPlane) -> ControlPlane:
    return own_plane


@asynccontextmanager
async def mutating(
    client: KubeClient, namespace: str, *, rules: DecisionSettings | None = None
) -> AsyncIterator[None]:
    async with applied(client, list(objects_of(MUTATING, rules or DecisionSettings()))):
        await Canary(client, namespace).until_mutated()
        yield
    await Canary(client, namespace).until_unchanged()


async def failures(client: KubeClient) -> float:
    """Return how many evaluations of the policy have failed."""
    figures = await api_figures(client, CHECKS_TOTAL)
    return sum(value for labels, value in figures.items() if 'error_type="no_error"' not in labels)


async def stored(client: KubeClient, namespace: str, pod: Mapping[str, Any]) -> dict[str, Any]:
    path = f"/api/v1/namespaces/{namespace}/pods"
    body = json.dumps(pod).encode()
    answer = await client.request("POST", path, params={"dryRun": "All"}, body=body, seconds=60)
    kept: dict[str, Any] = json.loads(answer)
    return kept


def of_container(**fields: Any) -> dict[str, Any]:
    """Return a pod with a GPU whose container has these fields."""
    pod = bare_pod("largest")
    pod["spec"]["containers"][0] |= fields
    return pod


def with_containers(count: int, sidecars: int = 0, limits: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a pod with a GPU in its first container, and with limits in the others."""
    pod = bare_pod("largest")
    usual = {"image": "example.invalid/image", "resources": {"limits": limits or {}}}
    others = [{"name": f"c{number}", **usual} for number in range(1, count + sidecars)]
    pod["spec"]["containers"] += others[: count - 1]
    pod["spec"]["initContainers"] = [{**each, "restartPolicy": "Always"} for each in others[count - 1 :]]
    return pod


def with_metadata(**entries: Any) -> dict[str, Any]:
    pod = bare_pod("largest")
    pod["metadata"] |= entries
    return pod


def with_tolerations(count: int) -> dict[str, Any]:
    pod = bare_pod("largest")
    pod["spec"]["tolerations"] = [{"key": f"key-{each}", "operator": "Exists"} for each in range(count)]
    return pod


LONG = "x" * 240
CONVERTED, UNCHANGED = "whole-gpu-converted", ""
LARGEST: Mapping[str, tuple[dict[str, Any], str, int]] = {
    "a long option": (of_container(args=["torchrun " + "--nnodes 1 " * 110_000]), CONVERTED, 201),
    "a long option without a value": (of_container(args=["torchrun " + "--nnodes=" * 120_000]), "distributed", 201),
    "a long word": (of_container(args=["x" * 1_300_000]), CONVERTED, 201),
    "a long variable": (of_container(env=[{"name": "WORLD_SIZE", "value": "1" * 1_200_000}]), CONVERTED, 201),
    "one variable often": (of_container(env=[{"name": "RANK", "value": "x"}] * (MOST_ENTRIES - 2)), CONVERTED, 201),
    "too many variables": (of_container(env=[{"name": "RANK", "value": "x"}] * 30_000), UNCHANGED, 403),
    "containers": (with_containers(MOST_CONTAINERS, MOST_CONTAINERS), CONVERTED, 201),
    "containers that name GPUs": (with_containers(256, limits={keys.GPU_RESOURCE: "0"}), CONVERTED, 201),
    "sidecars with GPUs": (with_containers(1, 999, {keys.GPU_RESOURCE: "1"}), "many-gpu-containers", 403),
    "containers with other GPUs": (with_containers(999, limits={"example.com/gpu": "1"}), "other-gpu-resource", 403),
    "too many containers": (with_containers(8000), UNCHANGED, 403),
    "long keys": (
        with_metadata(**{key: {f"{LONG}.x/{n}": "x" for n in range(MOST_KEYS)} for key in ("labels", "annotations")}),
        CONVERTED,
        201,
    ),
    "too many labels": (with_metadata(labels={f"example.com/{n}": "x" for n in range(15_000)}), UNCHANGED, 403),
    "shares": (
        with_metadata(annotations={f"nvidia.com/container.{n}.gpu-memory.limit": "1" for n in range(MOST_KEYS)}),
        "own-share",
        403,
    ),
    "a long name of a ConfigMap": (with_metadata(annotations={keys.SHARED_GPU_CONFIGMAP: "a" * 250_000}), CONVERTED, 403),
    "tolerations": (with_tolerations(MOST_KEYS - 2), CONVERTED, 201),
    "too many tolerations": (with_tolerations(30_000), UNCHANGED, 403),
    "too many owners": (
        with_metadata(ownerReferences=[{"apiVersion": "v1", "kind": "X", "name": "n", "uid": f"u{n}"} for n in range(9000)]),
        UNCHANGED,
        403,
    ),
}  # fmt: skip
"""Pods up to the API server's own limits, the reason in mode default, and the answer under enforce."""


async def cpu_seconds(client: KubeClient) -> float:
    """Return the CPU time of the API server so far."""
    (seconds,) = (await api_figures(client, "process_cpu_seconds_total")).values()
    return seconds


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.parametrize("titles", [list(LARGEST)[::6], nightly(list(LARGEST))], ids=["some", "all"])
async def test_the_largest_pods_are_decided_in_bounded_time(client: KubeClient, titles: list[str]) -> None:
    plain, enforced = "policies-plain", "policies-enforced"
    namespaces = [
        managed_namespace(TEAM, gpu_fraction="0.5", gpu_toleration="inject"),
        managed_namespace(
            enforced, gpu_fraction="0.5", gpu_toleration="inject", mode="enforce", max_gpu_fraction="1"
        ),
        {"kind": "Namespace", "metadata": {"name": plain}},
    ]
    await ensure_namespaces(client, *namespaces)
    before = await failures(client)
    spent = 0.0

    async def cost(namespace: str, pod: Mapping[str, Any]) -> tuple[float, int, str]:
        """Create a pod; return the CPU time, the status, and the reason or the message."""
        nonlocal spent
        try:
            metadata = (await stored(client, namespace, pod))["metadata"]
            status, answer = 201, metadata.get("annotations", {}).get(REASON, "")
        except ApiError as error:
            status, answer = error.status, str(error)
        began, spent = spent, await cpu_seconds(client)
        return spent - began, status, answer

    async with applied(client, list(objects_of(VALIDATING, DecisionSettings()))), mutating(client, TEAM):
        spent = await cpu_seconds(client)
        for title in titles:
            pod, reason, status = LARGEST[title]
            usual, usual_status, _ = await cost(plain, pod)
            assert usual_status == 201, title
            seconds, _, answer = await cost(TEAM, pod)
            assert answer == reason, title
            assert seconds < 3 * usual + MOST_CPU_SECONDS, title
            seconds, answered, answer = await cost(enforced, pod)
            assert answered == status, f"{title}: {answer}"
            assert "cost limit" not in answer, title
            assert seconds < 3 * usual + MOST_CPU_SECONDS, title
    assert await failures(client) == before


async def test_the_largest_namespaces_are_edited_in_bounded_time(client: KubeClient, asker: Asker) -> None:
    largest = namespace("policies-largest", ({f"{SIZE_PREFIX}s{n}": "0.5" for n in range(15_000)}, {}))
    await until(lambda: accepts(client, largest), "no policy acts")
    path = "/api/v1/namespaces/policies-largest"

    async def cost() -> float:
        began = await cpu_seconds(client)
        await client.request(
            "PATCH", path, params={"dryRun": "All"}, seconds=60, body=b'{"metadata": {"labels": {"a": "b"}}}',
            content_type="application/merge-patch+json",
        )  # fmt: skip
        return await cpu_seconds(client) - began

    usual = await cost()
    async with applied(client, list(objects_of(VALIDATING, DecisionSettings()))):
        await until(partial(refuses, asker), "the policy acts")
        assert await cost() < 3 * usual + MOST_CPU_SECONDS


def metadata_of(chance: random.Random) -> tuple[dict[str, str], dict[str, str]]:
    """Return labels and annotations of a namespace; some labels are not those of a policy."""
    (namespace,) = generated_cluster(chance, chance.randrange(4), "edited", 1).namespaces
    labels = dict(namespace.labels)
    if chance.random() < 0.15:
        labels["kaishare.dev/over-share-grace"] = chance.choice(
            ("29s", "30s", "24h", "25h", "1d", "999999999h")
        )
    if chance.random() < 0.1:
        labels[MAX_FRACTION] = chance.choice(("0.2", "0.99", "1"))
    return labels, dict(namespace.annotations)


def is_refused(after: PolicyMetadata, before: PolicyMetadata) -> bool:
    """Whether `/validate/namespaces` refuses the edit, not counting selectors that cannot be read."""
    problems = label_problems(after, before)
    judged = [each for each in problems.first if "is not a selector" not in each.wrong]
    return bool(judged) and (problems.ends_enforce or problems.mode not in (Mode.OBSERVE, Mode.OFF))


async def test_edits_of_namespaces_are_refused_as_by_the_webhook(asker: Asker, client: KubeClient) -> None:
    chance = random.Random(35)
    cases = []
    for number in range(EDITS):
        before = metadata_of(chance) if chance.random() < 0.7 else ({}, {})
        after = metadata_of(chance)
        if chance.random() < 0.7:  # an edit of some keys
            edits = chance.sample(sorted(after[0].items()), chance.randint(1, len(after[0])))
            labels = {**before[0], **dict(edits)}
            for key in chance.sample(sorted(labels), chance.choice((0, 0, 1))):
                del labels[key]
            after = (labels, {**before[1], **after[1]} if chance.random() < 0.5 else before[1])
        cases.append((f"edited-{number}", before, after))
    for name, before, _ in cases:
        await until(partial(accepts, client, namespace(name, before)), "no policy acts")
    counts = Counter[str]()
    async with applied(client, list(objects_of(VALIDATING, DecisionSettings()))):
        await until(partial(refuses, asker), "the policy acts")
        for name, before, after in cases:
            gone = [
                {key: None for key in old if key not in new} for old, new in zip(before, after, strict=True)
            ]
            patch = {"metadata": {"labels": {**gone[0], **after[0]}, "annotations": {**gone[1], **after[1]}}}
            answer = await asker.merge(f"/api/v1/namespaces/{name}", patch, dry_run=True)
            created = await asker.create(namespace(f"{name}-new", after), dry_run=True)
            own, own_before = PolicyMetadata.select(*after), PolicyMetadata.select(*before)
            edit = f"{before} -> {after}: {answer.message}"
            assert (answer.status == 422) is (own != own_before and is_refused(own, own_before)), edit
            assert (created.status == 422) is is_refused(own, PolicyMetadata()), f"{after}: {created.message}"
            counts["refused" if answer.status == 422 else "allowed"] += 1
    assert min(counts["refused"], counts["allowed"]) > EDITS / 10, counts


async def accepts(client: KubeClient, namespace: Mapping[str, Any]) -> bool:
    """Create a namespace, and return whether the API server has forgotten the policy of an earlier test."""
    try:
        await ensure_namespaces(client, namespace)
    except ApiError as error:
        if error.status != 422:
            raise
        return False
    return True


async def refuses(asker: Asker) -> bool:
    """Whether the API server refuses a namespace with a wrong label."""
    wrong = managed_namespace("policies-wrong", gpu_fraction="7")
    return (await asker.create(wrong, dry_run=True)).status == 422


def namespace(name: str, metadata: tuple[dict[str, str], dict[str, str]]) -> dict[str, Any]:
    labels, annotations = metadata
    return made("Namespace", name, labels=labels, annotations=annotations)


Json = dict[str, Any]
DIFFERING = "differing"
CLASS = "usual"


class Team:
    """A namespace under admission policies."""

    def __init__(self, client: KubeClient, asker: Asker) -> None:
        self.client = client
        self.asker = asker
        self.namespace: Json = {}

    async def label(
        self,
        annotations: Mapping[str, str] | None = None,
        others: Mapping[str, str] | None = None,
        **labels: str,
    ) -> None:
        """Give the namespace these labels and annotations, and labels of others."""
        self.namespace = managed_namespace(DIFFERING, gpu_fraction="0.5", **labels)
        self.namespace["metadata"]["labels"] |= others or {}
        self.namespace["metadata"]["annotations"] = dict(annotations or {})
        for key in annotations or ():
            self.namespace["metadata"]["labels"][key] = "0.25"
        await ensure_namespaces(self.client, self.namespace)

    @property
    def policy(self) -> NamespacePolicy:
        metadata = self.namespace["metadata"]
        made = NamespacePolicy.from_labels(DIFFERING, metadata["labels"], metadata["annotations"])
        assert made is not None
        return made

    async def create(self, pod: Json) -> Answer:
        path = f"/api/v1/namespaces/{DIFFERING}/pods"
        return await self.asker.send("POST", path, pod, user=ADMINISTRATOR, dry_run=True)

    async def set_label(self, label: str) -> int:
        """Set a label of the namespace by dry run; return the status."""
        key, _, value = label.partition("=")
        patch = {"metadata": {"labels": {key: value}}}
        path = f"/api/v1/namespaces/{DIFFERING}"
        return (await self.asker.send("PATCH", path, patch, content_type=MERGE, dry_run=True)).status

    async def until(self, pod: Json, outcome: Callable[[Answer], bool]) -> Answer:
        """Create the pod until the API server knows the new labels; return the last answer."""
        answers: list[Answer] = []

        async def is_so() -> bool:
            answers.append(await self.create(pod))
            return outcome(answers[-1])

        await until(is_so, "the labels are known")
        return answers[-1]

    def decision(self, pod: Json, rules: DecisionSettings | None = None) -> Decision:
        """Return what the webhook decides."""
        return decide(self.policy, pod, rules or DecisionSettings())

    def admits(self, pod: Json, rules: DecisionSettings | None = None) -> bool:
        """Whether the webhook admits the pod under enforce, after its own changes."""
        return verify(self.policy, view(pod), rules or DecisionSettings(), ADMINISTRATOR).is_allowed


@pytest.fixture
async def team(client: KubeClient, asker: Asker) -> AsyncIterator[Team]:
    made = Team(client, asker)
    await made.label()
    items = [*objects_of(MUTATING, DecisionSettings()), *objects_of(VALIDATING, DecisionSettings())]
    async with applied(client, items):
        await Canary(client, DIFFERING).until_mutated()
        yield made
    await made.label()
    await Canary(client, DIFFERING).until_unchanged()


def reason_of(answer: Answer) -> str:
    return str(answer.body["metadata"].get("annotations", {}).get(REASON, ""))


def has_gpu(answer: Answer) -> bool:
    return GPU in json.dumps(answer.body["spec"])


def settled(**annotations: str) -> Json:
    """Return a pod as it is after the webhook's changes."""
    pod = bare_pod("case", gpus=0, labels={keys.QUEUE_LABEL: "queue-a"}, annotations=annotations)
    pod["spec"]["schedulerName"] = keys.SCHEDULER_NAME
    return pod


async def selectors(team: Team) -> None:
    await team.label({f"{SIZE_PREFIX}serve": "app=web"})
    pod = bare_pod("case", labels={"app": "web"})
    answer = await team.until(pod, lambda answer: reason_of(answer) == "selectors-unread")
    assert has_gpu(answer)
    assert team.decision(pod).size is not None
    assert team.decision(pod, DecisionSettings(by_admission_policies=True)).reason.code == "selectors-unread"


async def commands(team: Team) -> None:
    cluster = {"name": "TF_CONFIG", "value": json.dumps({"cluster": {"worker": ["a:2222"]}})}
    for change in (
        {"env": [cluster]},
        {"command": ["torchrun", "a.py", "--nnodes=2"]},
        {"command": ["torchrun", "$(OPTIONS)", "a.py"]},
    ):
        pod = bare_pod("case")
        pod["spec"]["containers"][0] |= change
        answer = await team.create(pod)
        assert (reason_of(answer), has_gpu(answer)) == ("distributed", True)
        assert team.decision(pod).reason.code == "whole-gpu-converted"
    pod["spec"]["containers"][0]["command"] = ["torchrun", "--nnodes=1", "a.py"]
    assert reason_of(await team.create(pod)) == team.decision(pod).reason.code == "whole-gpu-converted"


async def limit_ranges(team: Team) -> None:
    limits = made("LimitRange", "gpus", DIFFERING, spec={"limits": [{"type": "Pod", "max": {GPU: "1"}}]})
    path = f"/api/v1/namespaces/{DIFFERING}/limitranges"
    await team.asker.send("POST", path, limits, user=ADMINISTRATOR)
    try:
        answer = await team.until(bare_pod("case"), lambda answer: answer.status != 201)
        assert f"maximum {GPU} usage per Pod is 1" in answer.body["message"]
        rules = DecisionSettings(gpu_limit_ranges={DIFFERING: "gpus"})
        assert team.decision(bare_pod("case"), rules).reason.code == "limit-range"
    finally:
        await team.asker.send("DELETE", f"{path}/gpus", user=ADMINISTRATOR)


async def large_pods(team: Team) -> None:
    pod = bare_pod("case", labels={f"example.com/key-{number}": "x" for number in range(MOST_KEYS + 1)})
    answer = await team.create(pod)
    assert answer.body["spec"]["schedulerName"] == keys.DEFAULT_SCHEDULER
    assert team.decision(pod).changes
    await team.label(mode="enforce")
    answer = await team.until(pod, lambda answer: answer.status == 403)
    assert "too large for kaishare's policy" in answer.message
    pod = bare_pod("case")
    pod["spec"]["tolerations"] = [{"key": f"k{each}", "operator": "Exists"} for each in range(MOST_KEYS + 1)]
    assert (await team.create(pod)).status == 403


async def large_namespaces(team: Team) -> None:
    size = f"{SIZE_PREFIX}serve"
    many = {f"example.com/key-{number}": "x" for number in range(MOST_OF_NAMESPACE - 10)}
    pod = bare_pod("case", labels={SIZE: "serve"})
    await team.label(others={**many, size: "0.25"})
    await team.until(pod, lambda answer: reason_of(answer) == "whole-gpu-converted")

    async def is_refused() -> bool:
        return await team.set_label(f"{FRACTION}=7") == 422

    await until(is_refused, "the policy of namespaces acts")
    assert await team.set_label("team=blue") == 200
    more = {f"example.com/more-{number}": "x" for number in range(20)}
    await team.label(others={**many, **more, size: "0.25"})
    answer = await team.until(pod, lambda answer: reason_of(answer) == "policy-invalid")
    assert has_gpu(answer)
    assert team.decision(pod).reason.code == "whole-gpu-converted"
    assert reason_of(await team.create(bare_pod("case"))) == "whole-gpu-converted"
    assert await team.set_label(f"{FRACTION}=7") == 200


async def plain_shares(team: Team) -> None:
    await team.label(mode="enforce", max_gpu_fraction="0.5")
    pod = settled(**{keys.GPU_FRACTION: "2.5e-1"})
    answer = await team.until(pod, lambda answer: answer.status == 403)
    assert "must be a plain number" in answer.message
    assert team.admits(pod)
    assert (await team.create(settled(**{keys.GPU_FRACTION: "0.25"}))).status == 201
    memory = "nvidia.com/container.{}.gpu-memory.{}".format
    for shares in (
        {memory("main", "request"): "10Gi", memory("b", "request"): "-9Gi"},
        {memory("main", "request"): "0", memory("main", "limit"): "9Gi"},
        {memory("x", "limit.y.gpu-memory.limit"): "9Gi", memory("x", "request.y.gpu-memory.request"): "1Mi"},
        {"runai/shared-gpu-configmap": ""},
    ):
        assert (await team.create(settled(**shares))).status == 403, shares


async def frameworks(team: Team) -> None:
    await team.label(framework_memory="set")
    pod = bare_pod("case")
    pod["spec"]["containers"][0]["command"] = ["vllm", "serve", "M"]
    answer = await team.until(pod, lambda answer: reason_of(answer) == "whole-gpu-converted")
    assert "args" not in answer.body["spec"]["containers"][0]
    mode = SharingMode.NON_MEMORY_ENFORCED
    assert team.decision(pod, DecisionSettings(gpu_sharing_mode=mode)).changes.options
    by_policies = DecisionSettings(gpu_sharing_mode=mode, by_admission_policies=True)
    assert not team.decision(pod, by_policies).changes.options


async def observe(team: Team) -> None:
    await team.label(mode="observe")
    pod = bare_pod("case")
    answer = await team.until(pod, lambda answer: answer.status == 201 and not reason_of(answer))
    assert answer.body["spec"]["schedulerName"] == keys.DEFAULT_SCHEDULER
    assert team.decision(pod).action.value == "observed"
    assert team.namespace["metadata"]["labels"][MODE] == "observe"


async def default_class(team: Team) -> None:
    await team.label(priority="train")
    item = made("PriorityClass", CLASS, value=1, globalDefault=True)
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    await team.client.request("POST", path, body=json.dumps(item).encode())
    try:
        pod = bare_pod("case")
        # While the class becomes known, the API server refuses a pod whose priority it computed twice.
        answer = await team.until(
            pod, lambda answer: answer.body.get("spec", {}).get("priorityClassName") == CLASS
        )
        assert keys.PRIORITY_LABEL not in answer.body["metadata"]["labels"]
        pod["spec"]["priorityClassName"] = CLASS
        known = DecisionSettings(default_priority_class=CLASS)
        assert team.decision(pod, known).changes.labels[keys.PRIORITY_LABEL] == "train"
    finally:
        await team.client.request("DELETE", f"{path}/{CLASS}")


async def messages(team: Team) -> None:
    pod = bare_pod("case")
    answer = await team.create(pod)
    assert (reason_of(answer), answer.warnings) == ("whole-gpu-converted", [])
    assert [finding.reason.code for finding in team.decision(pod).warnings] == ["whole-gpu-converted"]


CHECKS: Final[Mapping[DifferenceName, Callable[[Team], Awaitable[None]]]] = {
    DifferenceName.SELECTORS: selectors,
    DifferenceName.COMMANDS: commands,
    DifferenceName.LARGE_PODS: large_pods,
    DifferenceName.LARGE_NAMESPACES: large_namespaces,
    DifferenceName.PLAIN_SHARES: plain_shares,
    DifferenceName.FRAMEWORKS: frameworks,
    DifferenceName.OBSERVE: observe,
    DifferenceName.DEFAULT_CLASS: default_class,
    DifferenceName.LIMIT_RANGES: limit_ranges,
    DifferenceName.MESSAGES: messages,
}


def test_every_difference_is_described_and_checked() -> None:
    assert [each.name for each in DIFFERENCES] == list(DifferenceName) == list(CHECKS)


async def test_the_policies_differ_as_described(team: Team) -> None:
    opted_out = bare_pod("case", labels={"kaishare.dev/inject": "false"})
    for name, check in CHECKS.items():
        await team.label()
        await team.until(opted_out, lambda answer: answer.status == 201)  # mode enforce has ended
        await Canary(team.client, DIFFERING).until_mutated()
        try:
            await check(team)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
