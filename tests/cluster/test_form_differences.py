"""Each difference between the webhook and the admission policies: what the webhook decides, and what a policy does."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import pytest

from console.render.expressions import MOST_KEYS, MOST_OF_NAMESPACE
from console.render.policy_manifests import MUTATING, VALIDATING, objects_of
from docs.form_differences import DIFFERENCES, DifferenceName
from kai import keys
from kai.kaishare_keys import FRACTION, MODE, REASON, SIZE, SIZE_PREFIX
from kube.client import KubeClient
from tests.support.admission_policies import applied
from tests.support.cluster_webhook import Canary, bare_pod, ensure_namespaces, managed_namespace
from tests.support.control_plane import ControlPlane
from tests.support.decisions import decide
from tests.support.kinds import made
from tests.support.kube_user import ADMINISTRATOR, MERGE, Answer, Asker
from tests.support.pods import GPU, view
from tests.support.waiting import until
from webhook.policy.decide import Decision
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.verify import Requester, verify

Json = dict[str, Any]
TEAM = "differing"
CLASS = "usual"
pytestmark = pytest.mark.kubernetes(1, 36)


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
        self.namespace = managed_namespace(TEAM, gpu_fraction="0.5", **labels)
        self.namespace["metadata"]["labels"] |= others or {}
        self.namespace["metadata"]["annotations"] = dict(annotations or {})
        for key in annotations or ():
            self.namespace["metadata"]["labels"][key] = "0.25"
        await ensure_namespaces(self.client, self.namespace)

    @property
    def policy(self) -> NamespacePolicy:
        metadata = self.namespace["metadata"]
        made = NamespacePolicy.from_labels(TEAM, metadata["labels"], metadata["annotations"])
        assert made is not None
        return made

    async def create(self, pod: Json) -> Answer:
        path = f"/api/v1/namespaces/{TEAM}/pods"
        return await self.asker.send("POST", path, pod, user=ADMINISTRATOR, dry_run=True)

    async def set_label(self, label: str) -> int:
        """Set a label of the namespace by dry run; return the status."""
        key, _, value = label.partition("=")
        patch = {"metadata": {"labels": {key: value}}}
        path = f"/api/v1/namespaces/{TEAM}"
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
        return verify(
            self.policy, view(pod), rules or DecisionSettings(), Requester(ADMINISTRATOR)
        ).is_allowed


@pytest.fixture
async def team(own_plane: ControlPlane) -> AsyncIterator[Team]:
    async with KubeClient(own_plane.access()) as client, Asker(own_plane) as asker:
        made = Team(client, asker)
        await made.label()
        items = [*objects_of(MUTATING, DecisionSettings()), *objects_of(VALIDATING, DecisionSettings())]
        async with applied(client, items):
            await Canary(client, TEAM).until_mutated()
            yield made
        await made.label()
        await Canary(client, TEAM).until_unchanged()


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
    limits = made("LimitRange", "gpus", TEAM, spec={"limits": [{"type": "Pod", "max": {GPU: "1"}}]})
    path = f"/api/v1/namespaces/{TEAM}/limitranges"
    await team.asker.send("POST", path, limits, user=ADMINISTRATOR)
    try:
        answer = await team.until(bare_pod("case"), lambda answer: answer.status != 201)
        assert f"maximum {GPU} usage per Pod is 1" in answer.body["message"]
        rules = DecisionSettings(gpu_limit_ranges={TEAM: "gpus"})
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


async def observe(team: Team) -> None:
    await team.label(mode="observe")
    pod = bare_pod("case")
    answer = await team.until(pod, lambda answer: answer.status == 201 and not reason_of(answer))
    assert answer.body["spec"]["schedulerName"] == keys.DEFAULT_SCHEDULER
    assert team.decision(pod).action.value == "observed"
    assert team.namespace["metadata"]["labels"][MODE] == "observe"


async def default_class(team: Team) -> None:
    await team.label(priority="train")
    item = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": CLASS},
        "value": 1,
    }
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    await team.client.request("POST", path, body=json.dumps({**item, "globalDefault": True}).encode())
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
        await Canary(team.client, TEAM).until_mutated()
        try:
            await check(team)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
