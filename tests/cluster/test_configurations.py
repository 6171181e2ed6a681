"""The configurations on a real API server: which pods and namespaces cost a call, and which do not.

What is left out must be exactly what `decide` and `verify` leave alone whatever else the pod says.
"""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.administrator import Administrator
from tests.support.decisions import decide
from tests.support.kube_user import ADMINISTRATOR, Asker
from tests.support.pods import view
from tests.support.registration import UrlTarget, mutating_configuration, validating_configuration
from tests.support.waiting import until
from tests.support.webhook_recorder import Recorder, recording
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.reasons import Reason
from webhook.policy.verify import verify

QUEUE = {"kai.scheduler/queue": "queue-a"}
NAMESPACES = {
    "hooked": QUEUE,
    "hooked-observe": {**QUEUE, "kaishare.dev/mode": "observe"},
    "hooked-enforce": {**QUEUE, "kaishare.dev/mode": "enforce"},
    "hooked-off": {**QUEUE, "kaishare.dev/mode": "off"},
    "hooked-unknown-mode": {**QUEUE, "kaishare.dev/mode": "Enforce"},
    "hooked-empty-queue": {"kai.scheduler/queue": ""},
    "hooked-excluded": {**QUEUE, "kaishare.dev/mode": "enforce"},
    "hooked-unmanaged": {"kaishare.dev/mode": "enforce"},
}
RULES = DecisionSettings(excluded_namespaces=frozenset({"hooked-excluded"}))
MUTATE, VALIDATE, VALIDATE_NAMESPACES = "/mutate", "/validate/pods", "/validate/namespaces"
LEFT_TO_SELECTORS = {Reason.MIRROR_POD, Reason.NODE_NAME_SET, Reason.DAEMONSET, Reason.OPTED_OUT}
LEFT_BY_WHO_ASKS = {Reason.MIRROR_POD, Reason.NODE_NAME_SET, Reason.DAEMONSET}


@pytest.fixture
async def recorder(admin: Administrator, asker: Asker, tmp_path: Path) -> AsyncIterator[Recorder]:
    for name, labels in NAMESPACES.items():
        await admin.ensure({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    async with recording(tmp_path) as recorder:
        for build in (mutating_configuration, validating_configuration):
            made = build(UrlTarget(recorder.url), ca_bundle=recorder.ca_bundle, excluded={"hooked-excluded"})
            await admin.create(made)

        async def in_force() -> bool:
            await create(asker, "hooked-enforce", pod())
            return recorder.paths() == [MUTATE, VALIDATE]

        await until(in_force, "the configurations are in force")
        yield recorder


def pod(**metadata: Any) -> dict[str, Any]:
    node = metadata.pop("node", None)
    spec = {"containers": [{"name": "main", "image": "example.invalid/image"}], "restartPolicy": "Never"}
    if node is not None:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **metadata}, "spec": spec}


async def create(asker: Asker, namespace: str, made: dict[str, Any], user: str = ADMINISTRATOR) -> int:
    """Create a pod as a dry run; return the status."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    return (await asker.send("POST", path, made, user=user, dry_run=True)).status


def owner(kind: str) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": kind, "name": "owner", "uid": "1"}


RESOURCE = {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}


def of_daemon_set(api_version: str = "apps/v1", **changes: Any) -> dict[str, Any]:
    """A DaemonSet's pod; changes are for its metadata, its spec (`spec=`) and its container (`container=`)."""
    spec, main = changes.pop("spec", {}), changes.pop("container", {})
    made = pod(ownerReferences=[{**owner("DaemonSet"), "apiVersion": api_version}], **changes)
    made["spec"] |= spec
    made["spec"]["containers"][0] |= main
    return made


def amounts(resource: str, amount: str = "1") -> dict[str, Any]:
    return {"resources": {"limits": {resource: amount}, "requests": {resource: amount}}}


def init_container(**fields: Any) -> dict[str, Any]:
    return {"initContainers": [{"name": "init", "image": "example.invalid/image", **fields}]}


def containers(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": f"c{number}", "image": "example.invalid/image", **fields} for number in range(count)]


def devices(count: int) -> dict[str, Any]:
    names = {f"example.com/d{number}": "1" for number in range(count)}
    return {"resources": {"limits": names, "requests": names}}


def owned_by(count: int) -> dict[str, Any]:
    """A DaemonSet's pod with this number of owners."""
    made = of_daemon_set()
    made["metadata"]["ownerReferences"] += [{**owner("ReplicaSet"), "uid": f"{n}"} for n in range(1, count)]
    return made


LONG_KEYS = [f"{'.'.join(['k' * 62] * 4)}/{'n' * 59}{number:04}" for number in range(1000)]
"""The longest names of labels, which the conditions compare with KAI's keys."""
CLAIMS = [{"name": "gpu", "resourceClaimName": "gpu"}]
DAEMON_SET_PODS = {
    "plain": (of_daemon_set(), []),
    "plain with much": (
        of_daemon_set(labels={"app": "cni"}, annotations={"a": "b"}, container={"resources": RESOURCE}, spec=init_container()),
        [],
    ),
    "1000 labels": (of_daemon_set(labels={f"a{number}": "" for number in range(1000)}), []),
    "1000 labels with long names": (of_daemon_set(labels=dict.fromkeys(LONG_KEYS, "")), []),
    "a word that begins like a key of KAI": (of_daemon_set(annotations={"gpu-memory-note": "x"}), []),
    # The expression takes quadratic time: 26 s for 70,000 labels, 12 s for 8,000 containers.
    "100 containers": (of_daemon_set(spec={"containers": containers(100)}), []),
    "101 containers": (of_daemon_set(spec={"containers": containers(101)}), [VALIDATE]),
    "101 init containers": (of_daemon_set(spec={"initContainers": containers(101)}), [VALIDATE]),
    "500 amounts": (of_daemon_set(spec={"containers": containers(2, **devices(125))}), []),
    "502 amounts": (of_daemon_set(container=devices(251)), [VALIDATE]),
    "504 amounts": (of_daemon_set(spec={"initContainers": containers(2, **devices(126))}), [VALIDATE]),
    "no init containers": (of_daemon_set(spec={"initContainers": []}), []),
    "100 owners": (owned_by(100), []),
    "101 owners": (owned_by(101), [MUTATE, VALIDATE]),
    "1001 labels": (of_daemon_set(labels={f"a{number}": "" for number in range(1001)}), [VALIDATE]),
    "1001 annotations": (of_daemon_set(annotations={f"a{number}": "" for number in range(1001)}), [VALIDATE]),
    "claims without an item": (of_daemon_set(container={"resources": {"claims": []}}), []),
    "default scheduler": (of_daemon_set(spec={"schedulerName": "default-scheduler"}), []),
    "no scheduler": (of_daemon_set(spec={"schedulerName": ""}), []),
    "network device": (of_daemon_set(container=amounts("nvidia.com/hostdev")), []),
    "another DaemonSet": (of_daemon_set("apps.kruise.io/v1alpha1"), [MUTATE, VALIDATE]),
    "queue": (of_daemon_set(labels={"kai.scheduler/queue": "queue-b"}), [VALIDATE]),
    "own queue": (of_daemon_set(labels={"kai.scheduler/queue": "queue-a"}), [VALIDATE]),
    "group": (of_daemon_set(labels={"runai-gpu-group/a": "b"}), [VALIDATE]),
    "vCluster": (of_daemon_set(labels={"vcluster.loft.sh/a": "b"}), [VALIDATE]),
    "share": (of_daemon_set(annotations={"gpu-fraction": "0.5"}), [VALIDATE]),
    "memory": (of_daemon_set(annotations={"nvidia.com/container.main.gpu-memory.limit": "1Gi"}), [VALIDATE]),
    "KAI's key": (of_daemon_set(annotations={"runai/shared-gpu-configmap": "x"}), [VALIDATE]),
    "KAI": (of_daemon_set(spec={"schedulerName": "kai-scheduler"}), [VALIDATE]),
    "other scheduler": (of_daemon_set(spec={"schedulerName": "volcano"}), [VALIDATE]),
    "GPU": (of_daemon_set(container=amounts("nvidia.com/gpu")), [VALIDATE]),
    "GPU of zero": (of_daemon_set(container=amounts("nvidia.com/gpu", "0")), [VALIDATE]),
    "GPU of another vendor": (of_daemon_set(container=amounts("amd.com/gpu")), [VALIDATE]),
    "device class": (of_daemon_set(container=amounts("deviceclass.resource.kubernetes.io/gpu.nvidia.com")), [VALIDATE]),
    "GPU in an init container": (of_daemon_set(spec=init_container(**amounts("nvidia.com/gpu"))), [VALIDATE]),
}  # fmt: skip
DAEMON_SET_CLAIMS = {
    "claim": (of_daemon_set(spec={"resourceClaims": CLAIMS}), [VALIDATE]),
    "claim of a container": (
        of_daemon_set(spec={"resourceClaims": CLAIMS}, container={"resources": {"claims": [{"name": "gpu"}]}}),
        [VALIDATE],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "pods",
    [DAEMON_SET_PODS, pytest.param(DAEMON_SET_CLAIMS, marks=pytest.mark.kubernetes(1, 34))],
    ids=["pods", "pods with claims"],
)
async def test_a_daemon_sets_pod_costs_a_call_if_it_has_to_do_with_gpus_or_kai(
    asker: Asker, recorder: Recorder, pods: dict[str, tuple[dict[str, Any], list[str]]]
) -> None:
    policy = NamespacePolicy.from_labels("hooked-enforce", NAMESPACES["hooked-enforce"])
    assert policy is not None
    for user, (title, (made, expected)) in itertools.product(USERS[2:], pods.items()):
        assert await create(asker, "hooked-enforce", made, user) == 201, title
        assert recorder.paths() == expected, title
        verdict = verify(policy, view(made), RULES, user)
        assert VALIDATE in expected or verdict.finding.reason is Reason.DAEMONSET, title


OWNERS: tuple[list[dict[str, Any]] | None, ...] = (
    None,
    [],
    [owner("ReplicaSet")],
    [owner("ReplicaSet"), owner("DaemonSet")],
)
ANNOTATIONS: tuple[dict[str, str] | None, ...] = (None, {"a": "b"}, {"kubernetes.io/config.mirror": "x"})
NODES = (None, "", "node-1")
INJECT = (None, "false", "true")
USERS = (
    "jane",
    "system:node:node-1",
    "system:serviceaccount:kube-system:daemon-set-controller",
    "system:kube-controller-manager",
)


@pytest.mark.parametrize("user", USERS)
async def test_pods_that_are_not_sent_are_those_that_decide_and_verify_leave_alone(
    asker: Asker, recorder: Recorder, user: str
) -> None:
    labels = NAMESPACES["hooked-enforce"]
    policy = NamespacePolicy.from_labels("hooked-enforce", labels)
    assert policy is not None
    seen = set()
    for owners, annotations, node, inject in itertools.product(OWNERS, ANNOTATIONS, NODES, INJECT):
        made = pod(
            **({} if owners is None else {"ownerReferences": owners}),
            **({} if annotations is None else {"annotations": annotations}),
            **({} if inject is None else {"labels": {"kaishare.dev/inject": inject}}),
            node=node,
        )
        status = await create(asker, "hooked-enforce", made, user)
        document = view(made)
        decision = decide(policy, made, RULES)
        verdict = verify(policy, document, RULES, user)
        expected = []
        if decision.reason not in LEFT_TO_SELECTORS:
            expected.append(MUTATE)
        if annotations == ANNOTATIONS[2] and not node:
            assert status == 422, "a mirror pod must name its node; no validating webhook is asked"
        else:
            assert status == 201
            if not verdict.is_allowed or verdict.finding.reason not in LEFT_BY_WHO_ASKS:
                expected.append(VALIDATE)
        assert recorder.paths() == expected, made
        seen.add(tuple(expected))
    assert seen == {(), (VALIDATE,), (MUTATE, VALIDATE)}


async def test_namespaces_are_chosen_by_their_labels(asker: Asker, recorder: Recorder) -> None:
    paths = {}
    for name in NAMESPACES:
        assert await create(asker, name, pod()) == 201
        paths[name] = recorder.paths()
    assert paths == {
        "hooked": [MUTATE],
        "hooked-observe": [MUTATE],
        "hooked-enforce": [MUTATE, VALIDATE],
        "hooked-off": [],
        "hooked-unknown-mode": [MUTATE],  # decide counts it as default, and reports it
        "hooked-empty-queue": [MUTATE],
        "hooked-excluded": [],
        "hooked-unmanaged": [],
    }


async def test_pods_cost_a_call_when_they_are_made_and_never_again(
    admin: Administrator, recorder: Recorder
) -> None:
    kept = await admin.create(
        {"kind": "Pod", "metadata": {"name": "p", "namespace": "hooked"}, "spec": pod()["spec"]}
    )
    assert recorder.paths() == [MUTATE]
    path = f"/api/v1/namespaces/hooked/pods/{kept['metadata']['name']}"
    await admin.merge(path, {"metadata": {"labels": {"a": "b"}}})
    await admin.set_status(path, {"phase": "Running"})
    assert recorder.paths() == []


@pytest.mark.parametrize(
    ("before", "after", "calls"),
    [
        (None, None, 0),
        (None, {}, 0),
        (None, {"a": "b"}, 0),
        (None, {"kai.scheduler/queue": "q"}, 1),
        (None, {"kaishare.dev/mode": "off"}, 1),
        (None, {"kaishare.io/mode": "off"}, 1),
        (None, {"kai-scheduler/queue": "q"}, 1),
        (None, {"kueue.x-k8s.io/queue-name": "q"}, 0),
        ({"a": "b"}, {"kaishare.dev/mode": "off"}, 1),
        ({"kaishare.dev/mode": "off", "kai.scheduler/queue": "q"}, {"kaishare.dev/mode": None}, 1),
        ({"kaishare.dev/mode": "off"}, {"kaishare.dev/mode": None}, 0),
        (None, {f"a{number}": "" for number in range(999)}, 0),  # and kubernetes.io/metadata.name
        (None, {f"a{number}": "" for number in range(1000)}, 1),
    ],
)
async def test_namespaces_cost_a_call_if_they_have_a_kaishare_label(
    asker: Asker,
    recorder: Recorder,
    before: dict[str, str] | None,
    after: dict[str, str | None] | None,
    calls: int,
) -> None:
    metadata: dict[str, Any] = {"generateName": "labelled-", "labels": after if before is None else before}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    made = await asker.send("POST", "/api/v1/namespaces", body, dry_run=before is None)
    if before is not None:
        recorder.paths()
        path = f"/api/v1/namespaces/{made.body['metadata']['name']}"
        await asker.merge(path, {"metadata": {"labels": after}})
    assert recorder.paths() == [VALIDATE_NAMESPACES] * calls


async def test_an_unreachable_webhook_does_not_delay_system_pods(asker: Asker, admin: Administrator) -> None:
    for name, labels in NAMESPACES.items():
        await admin.ensure({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    for build in (mutating_configuration, validating_configuration):
        await admin.create(build(UrlTarget("https://127.0.0.1:1")))

    async def is_in_force() -> bool:
        return await create(asker, "hooked-enforce", pod()) == 500

    await until(is_in_force, "enforce fails closed")
    assert await create(asker, "hooked", pod()) == 201, "everywhere else pods go through unchanged"
    of_node = pod(annotations={"kubernetes.io/config.mirror": "x"}, node="node-1")
    _, kubelet, *daemon_sets = USERS
    for user, made in ((kubelet, of_node), *((user, of_daemon_set()) for user in daemon_sets)):
        assert await create(asker, "hooked-enforce", made, user) == 201, user
        assert await create(asker, "hooked-enforce", pod(), user) == 500, user
    label = {"metadata": {"labels": {"kaishare.dev/mode": "enforce"}}}
    answer = await asker.merge("/api/v1/namespaces/hooked-enforce", label, dry_run=True)
    assert answer.status == 200, answer.message
