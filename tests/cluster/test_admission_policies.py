"""The admission policies on a real API server: large objects, failures at run time, and edits of namespaces."""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from console.render.expressions import MOST_CONTAINERS, MOST_ENTRIES, MOST_KEYS
from console.render.policy_manifests import MUTATING, VALIDATING, objects_of
from kai import keys
from kai.kaishare_keys import FRACTION, MAX_FRACTION, MODE, REASON, SIZE, SIZE_PREFIX
from kube.answers import ApiError
from kube.client import KubeClient
from tests.comparisons.generated_clusters import generated_cluster
from tests.support.admission_policies import applied
from tests.support.cluster_webhook import (
    Canary,
    api_figures,
    bare_pod,
    ensure_namespaces,
    managed_namespace,
)
from tests.support.control_plane import ControlPlane
from tests.support.kube_user import MERGE, Asker
from tests.support.markers import nightly
from tests.support.pods import view
from tests.support.waiting import until
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode, NamespacePolicy, PolicyMetadata, label_problems
from webhook.policy.sizes import MOST_SIZES
from webhook.policy.verify import Requester, verify

CHECKS = "apiserver_mutating_admission_policy_check_total"
TEAM = "policies-team"
EDITS = 150
MOST_CPU_SECONDS = 1.0
"""CPU time of the API server for one object, beside what the object costs without policies."""
pytestmark = pytest.mark.kubernetes(1, 36)


@pytest.fixture
async def client(own_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    async with KubeClient(own_plane.access()) as connected:
        yield connected


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
    figures = await api_figures(client, CHECKS)
    return sum(value for labels, value in figures.items() if 'error_type="no_error"' not in labels)


def large_pod(containers: int, labels: int, **named: str) -> dict[str, Any]:
    """Return a pod with a GPU in its first container, and with variables, limits and annotations in each."""
    pod = bare_pod("large")
    amounts = {"cpu": "1", "memory": "1Gi", "rdma/nic": "1"}
    pod["spec"]["containers"] = [
        {
            "name": f"c{index}",
            "image": "example.invalid/image",
            "env": [{"name": f"SOME_VARIABLE_{number}", "value": "some value"} for number in range(4)],
            "resources": {"limits": amounts if index else amounts | {keys.GPU_RESOURCE: "1"}},
        }
        for index in range(containers)
    ]
    entries = {f"example.com/some-key-{index}": "value" for index in range(labels)}
    pod["metadata"] |= {"labels": entries | named, "annotations": entries}
    return pod


async def stored(client: KubeClient, namespace: str, pod: Mapping[str, Any]) -> dict[str, Any]:
    path = f"/api/v1/namespaces/{namespace}/pods"
    body = json.dumps(pod).encode()
    answer = await client.request("POST", path, params={"dryRun": "All"}, body=body, seconds=60)
    kept: dict[str, Any] = json.loads(answer)
    return kept


async def test_the_expressions_stay_within_the_api_servers_budget(client: KubeClient) -> None:
    sizes = {f"{SIZE_PREFIX}s{number:04}": "0.25" for number in range(2000)}
    first = dict(list(sizes.items())[:MOST_SIZES])
    namespaces = [
        managed_namespace(name, gpu_fraction="0.5") for name in (TEAM, "policies-sizes", "policies-many")
    ]
    namespaces[1]["metadata"]["labels"] |= first | {f"example.com/key-{n}": "x" for n in range(200)}
    namespaces[2]["metadata"]["labels"] |= sizes
    await ensure_namespaces(client, *namespaces)
    before = await failures(client)
    async with mutating(client, TEAM):
        for namespace in namespaces:
            name = namespace["metadata"]["name"]
            pod = await stored(client, name, large_pod(50, 200))
            assert pod["metadata"]["annotations"][REASON] == "whole-gpu-converted"
            assert pod["spec"]["schedulerName"] == "kai-scheduler"
        for number, reason in ((15, "whole-gpu-converted"), (16, "policy-invalid"), (1999, "policy-invalid")):
            named = await stored(client, "policies-many", large_pod(50, 200, **{SIZE: f"s{number:04}"}))
            assert named["metadata"]["annotations"][REASON] == reason
        most = await stored(client, "policies-many", large_pod(400, MOST_KEYS))
        assert most["metadata"]["annotations"][REASON] == "whole-gpu-converted"
        larger = await stored(client, "policies-many", large_pod(1, MOST_KEYS + 1))
        assert larger["spec"]["schedulerName"] == "default-scheduler"
        assert REASON not in larger["metadata"]["annotations"]
    assert await failures(client) == before


def of_container(**fields: Any) -> dict[str, Any]:
    """Return a pod with a GPU whose container has these fields."""
    pod = bare_pod("largest")
    pod["spec"]["containers"][0] |= fields
    return pod


def with_containers(count: int, sidecars: int = 0, limits: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a pod with a GPU in its first container, and with limits in the others."""
    pod = bare_pod("largest")
    made = [
        {"name": f"c{number}", "image": "example.invalid/image", "resources": {"limits": limits or {}}}
        for number in range(1, count + sidecars)
    ]
    pod["spec"]["containers"] += made[: count - 1]
    pod["spec"]["initContainers"] = [{**each, "restartPolicy": "Always"} for each in made[count - 1 :]]
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
    "containers with other GPUs": (with_containers(999, limits={"example.com/gpu": "1"}), CONVERTED, 403),
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
        with_metadata(
            ownerReferences=[{"apiVersion": "v1", "kind": "X", "name": "n", "uid": f"u{n}"} for n in range(9000)]
        ),
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
@pytest.mark.parametrize("titles", [list(LARGEST)[::2], nightly(list(LARGEST))], ids=["some", "all"])
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


GPU_CONTAINERS = (
    (0, "1"), (1, "1"), (0, "S1"), (1, "S1"), (0, "1 1"), (0, "S1 1"), (0, "1 S1"), (0, "S1 S1"), (0, "2"), (1, ""), (2, ""),
    (0, "S0 1"), (0, "S1 0"),
)  # fmt: skip
"""GPUs of the regular container, and of init containers in their order; `S` is a sidecar."""


def with_gpus(regular: int, init: str) -> dict[str, Any]:
    """Return a pod with GPUs, in KAI and in its queue."""
    pod = bare_pod("counted", gpus=regular, labels={keys.QUEUE_LABEL: "queue-a"})
    pod["spec"]["schedulerName"] = keys.SCHEDULER_NAME
    pod["spec"]["initContainers"] = [
        {
            "name": f"i{number}",
            "image": "example.invalid/image",
            "resources": {"limits": {keys.GPU_RESOURCE: word[-1]}},
            **({"restartPolicy": "Always"} if word[0] == "S" else {}),
        }
        for number, word in enumerate(init.split())
    ]
    return pod


async def test_gpus_of_init_containers_count_as_for_the_webhook(client: KubeClient) -> None:
    namespace = managed_namespace("policies-counted", mode="enforce", max_gpu_fraction="1")
    await until(partial(accepts, client, namespace), "no policy acts")
    policy = NamespacePolicy.from_labels("policies-counted", namespace["metadata"]["labels"])

    async def is_refused(pod: Mapping[str, Any]) -> bool:
        try:
            await stored(client, "policies-counted", pod)
        except ApiError as error:
            return "request no more than 1" in str(error)
        return False

    async with applied(client, list(objects_of(VALIDATING, DecisionSettings()))):
        await until(partial(is_refused, with_gpus(2, "")), "the policy acts")
        refused = {case: await is_refused(with_gpus(*case)) for case in GPU_CONTAINERS}
    verdicts = {
        case: not verify(policy, view(with_gpus(*case)), DecisionSettings(), Requester("user")).is_allowed
        for case in GPU_CONTAINERS
    }
    assert refused == verdicts
    assert 3 < sum(refused.values()) < len(refused) - 3


async def test_the_largest_namespaces_are_edited_in_bounded_time(client: KubeClient) -> None:
    namespace = {
        "kind": "Namespace",
        "metadata": {"name": "policies-largest", "labels": {f"{SIZE_PREFIX}s{n}": "0.5" for n in range(15_000)}},
    }  # fmt: skip
    await until(lambda: accepts(client, namespace), "no policy acts")
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
        wrong = managed_namespace("policies-wrong", gpu_fraction="7")
        await until(lambda: refuses(client, wrong), "the policy acts")
        assert await cost() < 3 * usual + MOST_CPU_SECONDS


async def test_a_policy_that_fails_at_run_time_admits_the_pod_and_counts(client: KubeClient) -> None:
    await ensure_namespaces(client, managed_namespace(TEAM, gpu_fraction="0.5"))
    before = await failures(client)
    policy, binding = objects_of(MUTATING, DecisionSettings())
    for variable in policy["spec"]["variables"]:
        if variable["name"] == "share":
            variable["expression"] = "variables.namespaceLabels['missing']"
    async with applied(client, [policy, binding]):
        canary = Canary(client, TEAM)

        async def has_failed() -> bool:
            pod = await canary.pod(name="failing")
            assert pod["spec"]["schedulerName"] == "default-scheduler"
            return await failures(client) > before

        await until(has_failed, "the failure is counted")
    figures = await api_figures(client, CHECKS)
    assert [labels for labels in figures if 'policy="kaishare"' in labels and "no_error" not in labels]


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


async def test_edits_of_namespaces_are_refused_as_by_the_webhook(
    own_plane: ControlPlane, client: KubeClient
) -> None:
    chance = random.Random(35)
    cases = []
    for number in range(EDITS):
        before = metadata_of(chance) if chance.random() < 0.7 else ({}, {})
        after = metadata_of(chance)
        if chance.random() < 0.7:  # an edit of some keys
            labels = {
                **before[0],
                **dict(chance.sample(sorted(after[0].items()), chance.randint(1, len(after[0])))),
            }
            for key in chance.sample(sorted(labels), chance.choice((0, 0, 1))):
                del labels[key]
            after = (labels, {**before[1], **after[1]} if chance.random() < 0.5 else before[1])
        cases.append((f"edited-{number}", before, after))
    for name, before, _ in cases:
        item = {
            "kind": "Namespace",
            "metadata": {"name": name, "labels": before[0], "annotations": before[1]},
        }
        await until(partial(accepts, client, item), "no policy acts")
    counts = Counter[str]()
    items = [
        item
        for item in objects_of(VALIDATING, DecisionSettings())
        if item["metadata"]["name"].endswith("namespaces")
    ]
    async with applied(client, items), Asker(own_plane) as asker:

        async def is_enforced() -> bool:
            wrong = {"metadata": {"name": "wrong", "labels": {keys.QUEUE_LABEL: "q", FRACTION: "7"}}}
            body = {"apiVersion": "v1", "kind": "Namespace", **wrong}
            return (await asker.send("POST", "/api/v1/namespaces", body, dry_run=True)).status == 422

        await until(is_enforced, "the policy acts")
        for name, before, after in cases:
            gone = [
                {key: None for key in old if key not in new} for old, new in zip(before, after, strict=True)
            ]
            patch = {"metadata": {"labels": {**gone[0], **after[0]}, "annotations": {**gone[1], **after[1]}}}
            path = f"/api/v1/namespaces/{name}"
            answer = await asker.send("PATCH", path, patch, content_type=MERGE, dry_run=True)
            body = {
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": f"{name}-new", "labels": after[0], "annotations": after[1]},
            }  # fmt: skip
            created = await asker.send("POST", "/api/v1/namespaces", body, dry_run=True)
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


async def refuses(client: KubeClient, namespace: Mapping[str, Any]) -> bool:
    """Whether the API server refuses to create a namespace."""
    body = json.dumps({"apiVersion": "v1", **namespace}).encode()
    try:
        await client.request("POST", "/api/v1/namespaces", params={"dryRun": "All"}, body=body)
    except ApiError as error:
        return error.status == 422
    return False


async def test_an_edit_with_two_thousand_sizes_is_judged(own_plane: ControlPlane, client: KubeClient) -> None:
    labels = {f"{SIZE_PREFIX}s{number:04}": "0.25" for number in range(2000)}
    namespace = managed_namespace("edited-sizes")
    namespace["metadata"]["labels"] |= labels
    await until(lambda: accepts(client, namespace), "no policy acts")
    items = [
        item
        for item in objects_of(VALIDATING, DecisionSettings())
        if item["metadata"]["name"].endswith("namespaces")
    ]
    async with applied(client, items), Asker(own_plane) as asker:
        path = "/api/v1/namespaces/edited-sizes"

        async def edited(**labels: str) -> int:
            patch = {"metadata": {"labels": labels}}
            return (await asker.send("PATCH", path, patch, content_type=MERGE, dry_run=True)).status

        async def is_enforced() -> bool:
            return await edited(**{MODE: "never"}) == 422

        await until(is_enforced, "the policy acts")
        assert await edited(**{f"{SIZE_PREFIX}s0001": "0.5"}) == 200
        assert await edited(**{f"{SIZE_PREFIX}s0001": "7"}) == 422
        assert await edited(**{f"{SIZE_PREFIX}s1999": "0.5"}) == 422
        assert await edited(**{f"{SIZE_PREFIX}new": "0.5"}) == 422
        assert await edited(**{"example.com/team": "blue"}) == 200
