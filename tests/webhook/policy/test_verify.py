"""Enforce, row by row as docs/policy.md has it: the pods that are denied, and the correction in the denial."""

import json
from typing import Any

import pytest

from kai.releases import Version
from tests.support.decisions import decide, ours, policy_of
from tests.support.kai_standin import mutated_by_kai
from tests.support.pods import container, gpu_container, pod, view
from tests.support.webhook_server import RunningWebhook, review_of
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.patch import apply_to_document, mutate
from webhook.policy.reasons import Reason
from webhook.policy.verify import Verification, verify

ENFORCE = {"kai.scheduler/queue": "queue-a", "kaishare.dev/mode": "enforce"}
JANE = "jane"
KUBELET = "system:node:gpu-node-0"
DAEMON_SETS = "system:serviceaccount:kube-system:daemon-set-controller"
MANAGER = "system:kube-controller-manager"


def settled(*containers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a pod that already satisfies the policy."""
    labels = {"kai.scheduler/queue": "queue-a"} | (fields.pop("labels", None) or {})
    return pod(*containers, labels=labels, **{"schedulerName": "kai-scheduler", **fields})


def judged(
    document: dict[str, Any], username: str = JANE, namespace: str = "team-a", **labels: str
) -> Verification:
    policy = policy_of(ENFORCE | ours(**labels), namespace=namespace)
    return verify(policy, view(document), DecisionSettings(), username)


def codes(verdict: Verification) -> list[str]:
    return [finding.reason.code for finding in verdict.denials]


def owned(kind: str) -> dict[str, Any]:
    return {"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "owner"}]}


MIRROR = {"kubernetes.io/config.mirror": "0123"}

OF_DAEMON_SET = owned("DaemonSet")


def daemon(*containers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a DaemonSet's pod as its controller creates it."""
    return pod(*containers, metadata=OF_DAEMON_SET, **fields)


def asking(resource: str, amount: str = "1") -> dict[str, Any]:
    return container(limits={resource: amount}, requests={resource: amount})


# title, pod, expected denials, part of the message
DAEMON_SET_PODS: list[tuple[str, dict[str, Any], list[str], str]] = [
    ("plain", daemon(), [], ""),
    ("in the namespace's queue", daemon(labels={"kai.scheduler/queue": "queue-a"}), [], ""),
    ("with a network device", daemon(asking("nvidia.com/hostdev")), [], ""),
    ("with a GPU resource of zero", daemon(asking("nvidia.com/gpu", "0")), [], ""),
    ("with all devices visible", daemon(container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])), [], ""),
    ("of a scheduler that is not KAI's", daemon(schedulerName="volcano"), [], ""),
    ("with a share", daemon(annotations={"gpu-fraction": "0.1"}), ["daemonset-gpu-denied"], "gpu-fraction"),
    ("with memory", daemon(annotations={"gpu-memory": "1"}), ["daemonset-gpu-denied"], "gpu-memory"),
    ("with a container's memory", daemon(annotations={"nvidia.com/container.main.gpu-memory.limit": "1Gi"}),
     ["daemonset-gpu-denied"], "share of its own"),
    *((f"with {name}", daemon(asking(name)), ["daemonset-gpu-denied"], name) for name in (
        "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "nvidia.com/A100", "amd.com/gpu",
        "example.com/vgpu", "deviceclass.resource.kubernetes.io/gpu.nvidia.com")),
    ("with a GPU in an init container", daemon(init=[gpu_container("init")]), ["daemonset-gpu-denied"], "nvidia.com/gpu"),
    ("with a MIG annotation", daemon(annotations={"nvidia.com/mig-1g.5gb": "1"}),
     ["daemonset-gpu-denied", "reserved-key"], "MIG"),
    ("with a claim", daemon(resourceClaims=[{"name": "gpu"}]), ["daemonset-gpu-denied"], "ResourceClaim"),
    ("with a container's claim", daemon(container(claims=[{"name": "gpu"}])), ["daemonset-gpu-denied"], "ResourceClaim"),
    ("of KAI's scheduler", daemon(schedulerName="kai-scheduler"), ["daemonset-gpu-denied"], "kai-scheduler"),
    ("in another queue", daemon(labels={"kai.scheduler/queue": "queue-b"}), ["daemonset-gpu-denied"], "queue-b"),
    ("in an empty queue", daemon(labels={"kai.scheduler/queue": ""}), ["daemonset-gpu-denied"], "another queue"),
    ("with KAI's label", daemon(labels={"runai-gpu-group": "x"}), ["reserved-key"], "runai-gpu-group"),
    ("with vCluster's label", daemon(labels={"vcluster.loft.sh/managed-by": "x"}), ["reserved-key"], "vCluster"),
    ("with everything", daemon(gpu_container(), schedulerName="kai-scheduler", labels={"kai.scheduler/queue": "b"},
     annotations={"gpu-fraction": "0.1", "pod-group-name": "x"}), ["daemonset-gpu-denied"] * 4 + ["reserved-key"], ""),
]  # fmt: skip


@pytest.mark.parametrize("username", [DAEMON_SETS, MANAGER])
@pytest.mark.parametrize("case", DAEMON_SET_PODS, ids=lambda case: case[0])
def test_a_daemon_sets_pod_has_nothing_to_do_with_gpus_or_kai(
    case: tuple[str, dict[str, Any], list[str], str], username: str
) -> None:
    _, document, denials, message = case
    verdict = judged(document, username)
    assert codes(verdict) == denials
    assert message in verdict.message
    assert denials or verdict.finding.reason is Reason.DAEMONSET
    assert codes(judged(document, JANE)) == ["daemonset-denied"]


def test_the_policys_scheduler_counts() -> None:
    assert judged(settled(schedulerName="kai-b"), scheduler="kai-b").is_allowed
    assert codes(judged(settled(), scheduler="kai-b")) == ["wrong-scheduler"]
    for scheduler, denied in (("kai-b", True), ("kai-scheduler", True), ("default-scheduler", False)):
        verdict = judged(daemon(schedulerName=scheduler), DAEMON_SETS, scheduler="kai-b")
        assert verdict.is_allowed is not denied, "KAI's scheduler counts for DaemonSets beside the policy's"
    plain = judged(daemon(), DAEMON_SETS, scheduler="default-scheduler")
    assert plain.is_allowed, "the default scheduler is not KAI's"


@pytest.mark.parametrize(("api_version", "kind"), [("v1", "Namespace"), ("v1", "ConfigMap"), ("scheduling.run.ai/v2", "Queue")])  # fmt: skip
def test_owners_are_not_looked_at(api_version: str, kind: str) -> None:
    owner = {"apiVersion": api_version, "kind": kind, "name": "team-b"}
    verdict = judged(settled(metadata={"ownerReferences": [owner]}))
    assert verdict.finding.reason is Reason.VERIFIED


# title, pod, requesting user, expected denials, reason when admitted
TABLE: list[tuple[str, dict[str, Any], str, list[str], str]] = [
    ("a pod as the policy asks", settled(), JANE, [], "verified"),
    ("a mirror pod by its kubelet", pod(annotations=MIRROR, nodeName="n"), KUBELET, [], "mirror-pod"),
    ("a mirror pod by a user", pod(annotations=MIRROR, nodeName="n"), JANE, ["node-name-denied"], ""),
    ("the mirror annotation by a user", settled(annotations=MIRROR), JANE, ["mirror-denied"], ""),
    ("nodeName by a kubelet", pod(nodeName="n"), KUBELET, [], "node-name-set"),
    ("nodeName by a user", settled(nodeName="n"), JANE, ["node-name-denied"], ""),
    ("nodeName by one called like a kubelet", settled(nodeName="n"), "system:nodes", ["node-name-denied"], ""),
    ("a DaemonSet's pod by its controller", pod(metadata=owned("DaemonSet")), DAEMON_SETS, [], "daemonset"),
    ("a DaemonSet's pod by the controller manager", pod(metadata=owned("DaemonSet")), MANAGER, [], "daemonset"),
    ("a DaemonSet as owner by a user", settled(metadata=owned("DaemonSet")), JANE, ["daemonset-denied"], ""),
    ("a DaemonSet as owner by another controller", settled(metadata=owned("DaemonSet")),
     "system:serviceaccount:team-a:daemon-set-controller", ["daemonset-denied"], ""),
    ("a ReplicaSet's pod", settled(metadata=owned("ReplicaSet")), JANE, [], "verified"),
    ("opted out", settled(labels={"kaishare.dev/inject": "false"}), JANE, ["opt-out-denied"], ""),
    ("inject: true", settled(labels={"kaishare.dev/inject": "true"}), JANE, [], "verified"),
    ("another scheduler", settled(schedulerName="volcano"), JANE, ["wrong-scheduler"], ""),
    ("the default scheduler of an unpatched pod", settled(schedulerName="default-scheduler"), JANE,
     ["wrong-scheduler"], ""),
    ("no queue in an unpatched pod", pod(schedulerName="kai-scheduler"), JANE, ["wrong-queue"], ""),
    ("another queue", settled(labels={"kai.scheduler/queue": "queue-b"}), JANE, ["wrong-queue"], ""),
    ("a mirror pod that its node owns", pod(annotations=MIRROR, nodeName="n", metadata=owned("Node")), KUBELET, [], "mirror-pod"),
    ("everything at once", pod(labels={"kaishare.dev/inject": "false", "kai.scheduler/queue": "b"}), JANE,
     ["opt-out-denied", "wrong-scheduler", "wrong-queue"], ""),
]  # fmt: skip


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case[0])
def test_the_table_under_enforce(case: tuple[str, dict[str, Any], str, list[str], str]) -> None:
    _, document, username, denials, reason = case
    verdict = judged(document, username)
    assert codes(verdict) == denials
    assert verdict.is_allowed is not bool(denials)
    assert verdict.finding.reason.code == (denials[0] if denials else reason)
    for finding in verdict.denials:
        assert finding.sentence.rpartition(": ")[2].startswith(("remove", "set")), "the correction is named"


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case[0])
def test_no_pod_is_denied_elsewhere(case: tuple[str, dict[str, Any], str, list[str], str]) -> None:
    _, document, username, _, _ = case
    for mode, reason in (
        ("default", Reason.NOT_ENFORCED),
        ("observe", Reason.NOT_ENFORCED),
        ("off", Reason.MODE_OFF),
    ):
        verdict = judged(document, username, mode=mode)
        assert (verdict.is_allowed, verdict.finding.reason) == (True, reason)
    assert judged(document, username, namespace="kube-system").finding.reason is Reason.NAMESPACE_EXCLUDED
    unmanaged = verify(None, view(document), DecisionSettings(), username)
    assert (unmanaged.is_allowed, unmanaged.finding.reason) == (True, Reason.NOT_MANAGED)


def test_a_bad_queue_value_denies_with_its_own_text() -> None:
    policy = policy_of(ENFORCE | {"kai.scheduler/queue": ""})
    verdict = verify(policy, view(settled()), DecisionSettings(), JANE)
    assert codes(verdict) == ["policy-invalid"]
    assert "kai.scheduler/queue" in verdict.message
    assert verify(policy, view(daemon()), DecisionSettings(), DAEMON_SETS).is_allowed


# The cap, in its three forms and between the two units.

CAPS: list[tuple[str, dict[str, str], dict[str, Any], list[str]]] = [
    ("fraction within", {"max_gpu_fraction": "0.5"}, settled(annotations={"gpu-fraction": "0.5"}), []),
    ("fraction above", {"max_gpu_fraction": "0.5"}, settled(annotations={"gpu-fraction": "0.51"}), ["above-cap"]),
    ("fraction times devices", {"max_gpu_fraction": "0.5"},
     settled(annotations={"gpu-fraction": "0.3", "gpu-fraction-num-devices": "2"}), ["above-cap"]),
    ("three times 0.1 is 0.3", {"max_gpu_fraction": "0.3"},
     settled(annotations={"gpu-fraction": "0.1", "gpu-fraction-num-devices": "3"}), []),
    ("a fraction that is no number", {"max_gpu_fraction": "0.5"}, settled(annotations={"gpu-fraction": "nan"}), ["above-cap"]),
    ("memory within", {"max_gpu_memory": "2000"}, settled(annotations={"gpu-memory": "2000"}), []),
    ("memory above", {"max_gpu_memory": "2000"}, settled(annotations={"gpu-memory": "2001"}), ["above-cap"]),
    ("memory times devices", {"max_gpu_memory": "2000"},
     settled(annotations={"gpu-memory": "1500", "gpu-fraction-num-devices": "2"}), ["above-cap"]),
    ("a container's memory", {"max_gpu_memory": "2000"},
     settled(annotations={"nvidia.com/container.main.gpu-memory.request": "3Gi"}), ["above-cap"]),
    ("a container's limit alone", {"max_gpu_memory": "2000"},
     settled(annotations={"nvidia.com/container.main.gpu-memory.limit": "3Gi"}), ["above-cap"]),
    ("a whole GPU", {"max_gpu_fraction": "0.99"}, settled(gpu_container()), ["above-cap"]),
    ("whole GPUs in a form that only the API server reads", {"max_gpu_fraction": "0.99"},
     settled(gpu_container(count="1e0001")), ["cap-unit"]),
    ("memory of more containers than are read", {"max_gpu_memory": "2000"},
     settled(annotations={f"nvidia.com/container.c{n}.gpu-memory.request": "1" for n in range(257)}), ["cap-unit"]),
    ("memory of as many containers as are read", {"max_gpu_memory": "2000"},
     settled(annotations={f"nvidia.com/container.c{n}.gpu-memory.request": "1Mi" for n in range(256)}), []),
    ("a whole GPU kept", {"max_gpu_fraction": "0.99"},
     settled(gpu_container(), annotations={"kaishare.dev/whole-gpu": "true"}), ["above-cap"]),
    ("a whole GPU within 1", {"max_gpu_fraction": "1"}, settled(gpu_container()), []),
    ("two whole GPUs above 1", {"max_gpu_fraction": "1"}, settled(gpu_container(count="2")), ["above-cap"]),
    ("a GPU for each sidecar and the container", {"max_gpu_fraction": "1"},
     settled(gpu_container(), init=[gpu_container("a", restartPolicy="Always")]), ["above-cap"]),
    ("a GPU for a sidecar alone", {"max_gpu_fraction": "1"}, settled(init=[gpu_container("a", restartPolicy="Always")]), []),
    ("an init container behind a sidecar", {"max_gpu_fraction": "1"},
     settled(init=[gpu_container("a", restartPolicy="Always"), gpu_container("b")]), ["above-cap"]),
    ("an init container before a sidecar", {"max_gpu_fraction": "1"},
     settled(init=[gpu_container("b"), gpu_container("a", restartPolicy="Always")]), []),
    ("init containers one after the other", {"max_gpu_fraction": "1"},
     settled(gpu_container(), init=[gpu_container("a"), gpu_container("b", restartPolicy=None)]), []),
    *((f"{name} cannot be compared", {"max_gpu_fraction": "0.5"}, settled(asking(name)), ["cap-unit"]) for name in (
        "nvidia.com/mig-7g.80gb", "nvidia.com/gpu.shared", "nvidia.com/A100", "amd.com/gpu",
        "deviceclass.resource.kubernetes.io/gpu.nvidia.com")),
    ("a claim cannot be compared", {"max_gpu_memory": "9"}, settled(resourceClaims=[{"name": "gpu"}]), ["cap-unit"]),
    ("a network device", {"max_gpu_fraction": "0.5"}, settled(asking("nvidia.com/rdma_shared")), []),
    ("a shared GPU of zero", {"max_gpu_fraction": "0.5"}, settled(asking("nvidia.com/gpu.shared", "0")), []),
    ("a shared GPU beside a share", {"max_gpu_fraction": "0.5"},
     settled(asking("nvidia.com/gpu.shared"), annotations={"gpu-fraction": "0.5"}), ["cap-unit"]),
    ("a share and a whole GPU beside it", {"max_gpu_fraction": "1"},
     settled(container("a"), gpu_container("b"), annotations={"gpu-fraction": "0.5"}), ["above-cap"]),
    ("a whole GPU behind an unreadable share", {"max_gpu_fraction": "0.5"},
     settled(gpu_container(), annotations={"nvidia.com/container.x.gpu-memory.request": "much"}), ["above-cap"]),
    ("no GPU at all", {"max_gpu_fraction": "0.5"}, settled(), []),
    ("memory under a cap on fractions", {"max_gpu_fraction": "0.5"}, settled(annotations={"gpu-memory": "1"}), ["cap-unit"]),
    ("a fraction under a cap on memory", {"max_gpu_memory": "2000"}, settled(annotations={"gpu-fraction": "0.1"}), ["cap-unit"]),
    ("a whole GPU under a cap on memory", {"max_gpu_memory": "2000"}, settled(gpu_container()), ["cap-unit"]),
]  # fmt: skip


@pytest.mark.parametrize("case", CAPS, ids=lambda case: case[0])
def test_caps(case: tuple[str, dict[str, str], dict[str, Any], list[str]]) -> None:
    _, labels, document, expected = case
    assert codes(judged(document, **labels)) == expected
    policy = policy_of({"kai.scheduler/queue": "queue-a"} | ours(**labels))
    warned = {finding.reason.code for finding in decide(policy, document, DecisionSettings()).warnings}
    assert warned & {"above-cap", "cap-unit"} == set(expected)


def test_a_share_that_is_withheld_does_not_hide_another_gpu() -> None:
    labels = {
        "kai.scheduler/queue": "queue-a",
        "kaishare.dev/gpu-fraction": "0.5",
        "kaishare.dev/max-gpu-fraction": "0.5",
    }
    shared = container("b", limits={"nvidia.com/gpu.shared": "8"})
    decision = decide(policy_of(labels), pod(gpu_container(), shared), DecisionSettings())
    assert [warning.reason for warning in decision.warnings] == [
        Reason.OTHER_GPU_RESOURCE,
        Reason.ABOVE_CAP,
        Reason.CAP_UNIT,
    ]
    assert "nvidia.com/gpu.shared" in decision.warnings[2].warning


@pytest.mark.parametrize("name", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "amd.com/gpu"])
@pytest.mark.parametrize("amount", ["0", "0m", "0.0"])
def test_an_amount_of_zero_asks_for_nothing(name: str, amount: str) -> None:
    assert judged(settled(asking(name, amount)), max_gpu_fraction="0.5").is_allowed
    assert judged(daemon(asking(name, amount)), DAEMON_SETS).is_allowed


# Keys only KAI, or vCluster, may write.

RESERVED = [
    ("labels", "runai-gpu-group"), ("labels", "runai-gpu-group/fde0f5a5"),
    ("annotations", "received-resource-type"), ("annotations", "pod-group-name"),
    ("annotations", "kai.scheduler/skip-podgrouper"),
    ("labels", "vcluster.loft.sh/namespace"), ("annotations", "vcluster.loft.sh/object-name"),
    ("annotations", "runai/shared-gpu-configmap"), ("labels", "kai.scheduler/subgroup-name"),
    ("annotations", "kai.scheduler/last-start-timestamp"), ("annotations", "kai.scheduler/unknown"),
    ("annotations", "nvidia.com/mig-1g.5gb"), ("annotations", "run.ai/reserve_for_gpu_index"),
    ("labels", "shared-gpu-pod-name"), ("labels", "vcluster.loft.sh/managed-by"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "key"), RESERVED, ids=lambda value: value)
def test_a_reserved_key_is_a_warning_in_default_and_a_denial_under_enforce(where: str, key: str) -> None:
    document = settled(**{where: {key: "x"}})
    verdict = judged(document)
    assert codes(verdict) == ["reserved-key"]
    assert key in verdict.message
    unpatched = pod(**{where: {key: "x"}})
    warnings = decide(policy_of({"kai.scheduler/queue": "queue-a"}), unpatched, DecisionSettings()).warnings
    assert [finding.reason for finding in warnings] == [Reason.RESERVED_KEY]


@pytest.mark.parametrize(
    "key",
    [
        "vcluster.loft.sh", "runai-gpu", "gpu-type", "kai-scheduler/x", "nvidia.com/mig", "example.com/gpu-fraction",
        "gpu-memory-note", "gpu-memory-class", "gpu-fraction-doc", "runai-gpu-group-unknown", "pod-group-names",
        "kai.scheduler/task-priority", "kai.scheduler/preemptibility", "gpu-fraction.limit", "gpu-memory.limit", "user",
    ],
)  # fmt: skip
def test_keys_that_users_may_write_are_allowed(key: str) -> None:
    assert judged(settled(labels={key: "x"})).is_allowed


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"app": "kai-resource-reservation"},
         'label "app" with the value "kai-resource-reservation" is reserved for KAI: remove it'),
        ({"app": "scaling-pod"}, 'label "app" with the value "scaling-pod" is reserved for KAI: remove it'),
        ({"spark-app-name": "a", "spark-app-selector": "pg-b", "project": "website"}, ""),
        ({"app": "kai-resource-reservations"}, ""),
    ],
)  # fmt: skip
def test_some_values_are_reserved(labels: dict[str, str], message: str) -> None:
    verdict = judged(settled(labels=labels))
    assert codes(verdict) == (["reserved-key"] if message else [])
    assert verdict.message == message


@pytest.mark.parametrize("key", ["vcluster.loft.sh/object-name", "vcluster.loft.sh/namespace"])
def test_vclusters_keys_are_allowed_on_a_synced_pod(key: str) -> None:
    synced = {"vcluster.loft.sh/managed-by": "team"}
    assert judged(settled(labels=synced | {key: "x"}), vcluster="true").is_allowed
    assert judged(settled(labels=synced, annotations={key: "x"}), vcluster="true").is_allowed
    assert codes(judged(settled(labels={key: "x"}), vcluster="true")) == ["reserved-key"]
    assert codes(judged(settled(labels=synced | {"runai-gpu-group": "x"}), vcluster="true")) == [
        "reserved-key"
    ]


def test_a_tenants_own_label_proves_no_syncer() -> None:
    """Anyone with rights to create pods can write vCluster's label."""
    forged = settled(labels={"vcluster.loft.sh/managed-by": "v"}, annotations={"vcluster.loft.sh/name": "x"})
    for labels in ({}, {"vcluster": "yes"}):
        verdict = judged(forged, **labels)
        assert codes(verdict) == ["reserved-key"] * 2
        assert "is reserved for vCluster (kaishare.dev/vcluster): remove it" in verdict.message


@pytest.mark.parametrize("owner", [None, "ReplicaSet"])
@pytest.mark.parametrize("version", [None, Version(0, 9, 8), Version(0, 13, 0), Version(0, 17, 0)], ids=str)
def test_kais_fields_are_neither_denied_nor_told(owner: str | None, version: Version | None) -> None:
    rules = DecisionSettings(kai_version=version)
    policy = policy_of(ENFORCE | {"kaishare.dev/gpu-fraction": "0.5"})
    created = pod(gpu_container(), metadata=owned(owner) if owner else {})
    first = mutate(policy, json.dumps(created).encode(), rules)
    admitted = mutated_by_kai(apply_to_document(first.sent, created))
    assert "runai/shared-gpu-configmap" in admitted["metadata"]["annotations"]
    second = mutate(policy, json.dumps(admitted).encode(), rules)
    assert (second.sent, second.decision.warnings) == ((), ())
    verdict = verify(policy, view(admitted), rules, JANE)
    assert verdict.is_allowed, verdict.message


def test_fields_that_kai_wrote_into_an_init_container_are_recognised() -> None:
    document = settled(
        container("main"),
        init=[container("setup")],
        annotations={"gpu-fraction": "0.5", "gpu-fraction-container-name": "setup"},
    )
    assert judged(mutated_by_kai(document, init=True)).is_allowed


def test_a_configmap_that_no_container_reads_was_not_written_by_kai() -> None:
    spoofed = mutated_by_kai(settled(annotations={"gpu-fraction": "0.5"}))
    spoofed["metadata"]["annotations"]["runai/shared-gpu-configmap"] = "somebody-elses-shared-gpu"
    assert codes(judged(spoofed)) == ["reserved-key"]


FORTY = "a-name-of-exactly-40-characters-in-total"
# the pod, the ConfigMap it names before KAI sees it, which KAI then keeps and reads
NAMED = [
    ("case", "victim-abcdefg-shared-gpu", False),
    ("case-2", "case-abcdefg-shared-gpu", False),
    ("case", "case-2-abcdefg-shared-gpu", False),
    ("case", "case-abcdefg", False),
    ("case", "case-abcdefg-foo", False),
    ("case", "case-abcdefg-shared-gpu-x", False),
    ("case", "case", False),
    ("case", "", False),
    ("case", "case-abcdefg-shared-gpu", True),
    (FORTY, f"{FORTY[:33]}-abcdefg-shared-gpu", True),
    (FORTY, f"{FORTY[:30]}-abcdefg-shared-gpu", True),  # as v0.17 shortens it
    (FORTY, f"{FORTY[:20]}-abcdefg-shared-gpu", False),
    (FORTY, f"another{FORTY[7:33]}-abcdefg-shared-gpu", False),
]


@pytest.mark.parametrize(("name", "named", "is_own"), NAMED)
def test_an_authors_name_is_denied_though_kai_reads_it(name: str, named: str, is_own: bool) -> None:
    written = {"gpu-fraction": "0.5", "runai/shared-gpu-configmap": named}
    spoofed = mutated_by_kai(settled(metadata={"name": name}, annotations=written))
    assert spoofed["metadata"]["annotations"]["runai/shared-gpu-configmap"] == named
    assert codes(judged(spoofed)) == ([] if is_own else ["reserved-key"])


# Over HTTPS.


async def test_answers_over_https(webhook: RunningWebhook) -> None:
    document = settled(gpu_container(count="2"), labels={"kai.scheduler/queue": "queue-b"})
    response = await webhook.review(review_of(document, "guarded"), "/validate/pods")
    assert response["allowed"] is False
    assert response["status"] == {
        "code": 403,
        "reason": "Forbidden",
        "message": 'the pod\'s queue is "queue-b": set the label kai.scheduler/queue to queue-a;'
        " the pod requests 2 whole GPUs: request no more than 1 (kaishare.dev/max-gpu-fraction)",
    }
    assert response["auditAnnotations"] == {"action": "denied", "reason": "wrong-queue,above-cap"}
    series = 'kaishare_webhook_requests_total{action="denied",reason="wrong-queue",webhook="validate-pods"}'
    assert await webhook.figure(series) == 1
    line = webhook.log[-1]
    assert (line["webhook"], line["action"], len(line["denials"])) == ("validate-pods", "denied", 2)
    for review in (
        review_of(settled(gpu_container()), "guarded"),
        review_of(pod(nodeName="n"), "guarded", userInfo={"username": KUBELET}),
        review_of(pod(), "guarded", operation="UPDATE"),
    ):
        admitted = await webhook.review(review, "/validate/pods")
        assert admitted == {"uid": admitted["uid"], "allowed": True}
    body = json.dumps(review_of({"spec": {"containers": 1}}, "guarded")).encode()
    problem = b"the pod cannot be read: spec.containers: expected array | null, got int\n"
    assert await webhook.post(body, "/validate/pods") == (400, problem)


async def test_an_internal_error_leaves_the_review_to_the_failure_policy(
    webhook: RunningWebhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Verification:
        raise RuntimeError("a bug")

    monkeypatch.setattr("webhook.admission.validating.verify", broken)
    body = json.dumps(review_of(settled(), "guarded")).encode()
    answer = (500, b"an internal error; the log has its traceback\n")
    assert await webhook.post(body, "/validate/pods") == answer
    assert await webhook.figure('kaishare_webhook_errors_total{stage="validate-pods"}') == 1
    assert any("a bug" in line.get("traceback", "") for line in webhook.log)


@pytest.mark.parametrize(
    ("label", "annotations"),
    [
        ("max_gpu_fraction", {"gpu-fraction": "0" * 400 + "0.95"}),
        ("max_gpu_fraction", {"gpu-fraction": "0.4", "gpu-fraction-num-devices": "0" * 400 + "4"}),
        ("max_gpu_memory", {"gpu-memory": "0" * 400 + "80000"}),
        ("max_gpu_memory", {"nvidia.com/container.main.gpu-memory.request": "0" * 60 + "80Gi"}),
        ("max_gpu_memory", {"nvidia.com/container.main.gpu-memory.request": "80e0009"}),
    ],
)
def test_an_amount_that_only_kai_reads_passes_below_no_cap(label: str, annotations: dict[str, str]) -> None:
    cap = {"max_gpu_fraction": "0.5", "max_gpu_memory": "1000"}[label]
    assert codes(judged(settled(annotations=annotations), **{label: cap})) == ["cap-unit"]
