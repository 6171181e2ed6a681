"""The decision for a pod, row by row as docs/policy.md has it."""

import json
from typing import Any

import pytest

from kai.kaishare_keys import REASON, SIZE
from kai.releases import Version
from tests.support.decisions import decide, policy_of
from tests.support.pods import GPU, container, gpu_container, pod
from webhook.policy.decide import Decision
from webhook.policy.decide_share import GpuKey
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.patch import mutate
from webhook.policy.reasons import Reason

DEFAULT_SHARE = {"kaishare.dev/gpu-fraction": "0.5"}
MIG = "nvidia.com/mig-1g.5gb"


def decided(document: dict[str, Any], labels: dict[str, str] | None = None, **rules: Any) -> Decision:
    """Return the decision for a pod of namespace team-a, whose queue is `queue-a`."""
    labels = {"kai.scheduler/queue": "queue-a", **(DEFAULT_SHARE if labels is None else labels)}
    policy = policy_of({key: value for key, value in labels.items() if value is not None})
    return decide(policy, document, DecisionSettings(**rules))


def share_of(decision: Decision) -> dict[str, str]:
    """Return the injected annotations without those that record the decision, which are checked here."""
    annotations = dict(decision.changes.annotations)
    assert annotations.pop(REASON, None) == (decision.reason.code if decision.changes else None)
    assert annotations.pop(SIZE, None) == (decision.size.name if decision.size else None)
    return annotations


def outcome(decision: Decision) -> tuple[str, str]:
    return decision.action.value, decision.reason.code


def owned_by(kind: str, name: str = "owner") -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": name}
    return {"name": None, "generateName": f"{name}-", "ownerReferences": [owner]}


def required(*terms: list[tuple[str, str, list[str] | None]]) -> dict[str, Any]:
    """Return a required node affinity: alternatives of requirements."""
    written = [
        {
            "matchExpressions": [
                {"key": key, "operator": operator, "values": values} for key, operator, values in term
            ]
        }
        for term in terms
    ]
    selector = {"nodeSelectorTerms": written}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}


LEFT_ALONE = [
    ("mirror pod", pod(gpu_container(), annotations={"kubernetes.io/config.mirror": "x"}), "mirror-pod"),
    ("mirror pod with nodeName", pod(annotations={"kubernetes.io/config.mirror": "x"}, nodeName="n"), "mirror-pod"),
    ("nodeName set", pod(gpu_container(), nodeName="node-1"), "node-name-set"),
    ("owned by a DaemonSet", pod(gpu_container(), metadata=owned_by("DaemonSet")), "daemonset"),
    ("opted out", pod(gpu_container(), labels={"kaishare.dev/inject": "false"}), "opted-out"),
    ("another scheduler", pod(gpu_container(), schedulerName="volcano"), "other-scheduler"),
    ("opted out and another scheduler", pod(labels={"kaishare.dev/inject": "false"}, schedulerName="v"), "opted-out"),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["default", "observe", "enforce"])
@pytest.mark.parametrize("case", LEFT_ALONE, ids=lambda case: case[0])
def test_pods_that_are_left_alone(case: tuple[str, dict[str, Any], str], mode: str) -> None:
    _, document, reason = case
    decision = decided(document, DEFAULT_SHARE | {"kaishare.dev/mode": mode})
    assert outcome(decision) == ("skipped", reason)
    assert not decision.changes


@pytest.mark.parametrize(
    "namespace",
    ["kube-system", "kube-public", "kube-node-lease", "kai-scheduler", "kai-resource-reservation",
     "kai-scale-adjust", "gpu-operator", "nvidia-gpu-operator", "kaishare", "kaishare-agent"],
)  # fmt: skip
def test_excluded_namespaces(namespace: str) -> None:
    policy = policy_of({"kai.scheduler/queue": "q"}, namespace=namespace)
    assert outcome(decide(policy, pod(), DecisionSettings())) == ("skipped", "namespace-excluded")
    replaced = DecisionSettings(excluded_namespaces=frozenset({"other"}))
    assert outcome(decide(policy, pod(), replaced)) == ("injected", "no-default-share")


def test_a_bad_queue_leaves_pods_unpatched() -> None:
    decision = decided(pod(gpu_container()), DEFAULT_SHARE | {"kai.scheduler/queue": ""})
    assert outcome(decision) == ("skipped", "policy-invalid")
    assert "kai.scheduler/queue" in decision.finding.sentence
    assert not decision.changes


def test_a_bad_share_is_not_injected_and_the_rest_holds() -> None:
    decision = decided(pod(gpu_container()), {"kaishare.dev/gpu-fraction": "1.5"})
    assert outcome(decision) == ("injected", "policy-invalid")
    assert decision.changes.scheduler == "kai-scheduler"
    assert decision.changes.labels == {"kai.scheduler/queue": "queue-a"}
    assert share_of(decision) == {}
    assert not decision.changes.removed_gpu_keys


@pytest.mark.parametrize("own", ["default-scheduler", "", None, "kai-scheduler"])
def test_an_unset_scheduler_becomes_the_policys(own: str | None) -> None:
    changes = decided(pod(schedulerName=own)).changes
    assert changes.scheduler == (None if own == "kai-scheduler" else "kai-scheduler")
    assert changes.labels == {"kai.scheduler/queue": "queue-a"}
    if own != "kai-scheduler":
        assert (
            decided(pod(schedulerName=own), {"kaishare.dev/scheduler": "kai-b"}).changes.scheduler == "kai-b"
        )


def test_labels_fill_only_unset_fields() -> None:
    priority = {"kaishare.dev/priority": "build"}
    assert decided(pod(), priority).changes.labels == {
        "kai.scheduler/queue": "queue-a",
        "priorityClassName": "build",
    }
    own = {"kai.scheduler/queue": "mine", "priorityClassName": "train"}
    assert decided(pod(labels=own), priority).changes.labels == {}
    empty = {"kai.scheduler/queue": "", "priorityClassName": ""}
    assert set(decided(pod(labels=empty), priority).changes.labels) == set(empty)


# the pod's own class, the cluster's default class, whether the policy's label is written
CLASSES = [
    (None, None, True), ("", None, True), ("inference", None, False), ("inference", "usual", False),
    ("usual", "usual", True), ("train", None, False),
]  # fmt: skip


@pytest.mark.parametrize(("own", "default", "written"), CLASSES)
def test_a_pods_own_priority_stays(own: str | None, default: str | None, written: bool) -> None:
    decision = decided(
        pod(priorityClassName=own),
        DEFAULT_SHARE | {"kaishare.dev/priority": "train"},
        default_priority_class=default,
    )
    assert decision.changes.labels == {"kai.scheduler/queue": "queue-a"} | (
        {"priorityClassName": "train"} if written else {}
    )
    assert decision.changes.scheduler == "kai-scheduler"
    assert decision.warnings == ()


OURS = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "main"}
# title, pod after another component added nvidia.com/gpu, keys that are removed
PUT_BACK: list[tuple[str, dict[str, Any], int]] = [
    ("one GPU", pod(gpu_container(), annotations=OURS), 2),
    ("zero", pod(gpu_container(count="0"), annotations=OURS), 2),
    ("eight, everywhere", pod(gpu_container(count="8"), gpu_container("b"), init=[gpu_container("i")],
     annotations=OURS), 6),
    ("a limit alone", pod(container(limits={"nvidia.com/gpu": "1"}), annotations=OURS), 1),
    ("nothing", pod(annotations=OURS), 0),
    ("another share", pod(gpu_container(), annotations=OURS | {"gpu-fraction": "0.25"}), 0),
    ("the same share otherwise written", pod(gpu_container(), annotations=OURS | {"gpu-fraction": "0.50"}), 0),
    ("memory beside it", pod(gpu_container(), annotations=OURS | {"gpu-memory": "1"}), 0),
    ("devices beside it", pod(gpu_container(), annotations=OURS | {"gpu-fraction-num-devices": "1"}), 0),
    ("no container's name", pod(gpu_container(), annotations={"gpu-fraction": "0.5"}), 0),
    ("the name of no container", pod(gpu_container("other"), annotations=OURS), 0),
    ("an init container's name", pod(container("a"), init=[gpu_container()], annotations=OURS), 0),
    ("a GPU that is kept", pod(gpu_container(), annotations=OURS | {"kaishare.dev/whole-gpu": "true"}), 0),
    ("a claim", pod(gpu_container(), annotations=OURS, resourceClaims=[{"name": "gpu"}]), 0),
    ("another scheduler", pod(gpu_container(), annotations=OURS, schedulerName="volcano"), 0),
]  # fmt: skip


@pytest.mark.parametrize("case", PUT_BACK, ids=lambda case: case[0])
def test_a_gpu_added_beside_the_policys_share_is_removed_again(case: tuple[str, dict[str, Any], int]) -> None:
    _, document, removed = case
    decision = decided(document, DEFAULT_SHARE)
    assert len(decision.changes.removed_gpu_keys) == removed
    assert (decision.reason is Reason.GPU_REMOVED_AGAIN) is bool(removed)
    assert share_of(decision) == {}
    assert not removed or "kai-refuses" not in [warning.reason.code for warning in decision.warnings]
    policy = NamespacePolicy.from_labels("team-a", {"kai.scheduler/queue": "queue-a", **DEFAULT_SHARE})
    mutation = mutate(policy, json.dumps(document).encode(), DecisionSettings())
    assert mutation.decision.reason is decision.reason
    assert sum(operation["op"] == "remove" for operation in mutation.sent) == removed


def test_shares_that_are_switched_off_remove_nothing() -> None:
    decision = decided(pod(gpu_container(), annotations=OURS), DEFAULT_SHARE, inject_shares=False)
    assert decision.reason is Reason.OWN_SHARE
    assert decision.changes.removed_gpu_keys == ()


def test_modes_and_settings() -> None:
    plain = decided(pod(gpu_container()))
    observed = decided(pod(gpu_container()), DEFAULT_SHARE | {"kaishare.dev/mode": "observe"})
    assert outcome(observed) == ("observed", "whole-gpu-converted")
    assert observed.changes.annotations["gpu-fraction"] == "0.5"
    assert decided(pod(gpu_container()), DEFAULT_SHARE | {"kaishare.dev/mode": "enforce"}) == plain
    off = decided(pod(gpu_container()), inject_shares=False)
    assert (outcome(off), share_of(off)) == (("injected", "shares-off"), {})
    memory = decided(pod(gpu_container()), {"kaishare.dev/gpu-memory": "2000"})
    assert share_of(memory) == {"gpu-memory": "2000", "gpu-fraction-container-name": "main"}
    assert outcome(decided(pod(gpu_container()), {"kaishare.dev/mode": "off"})) == ("skipped", "mode-off")


ALL, MARKED = ({"kaishare.dev/share-for": value} for value in ("all", "marked"))
SHARED = {"kaishare.dev/gpu": "shared"}
RANK = {"env": [{"name": "WORLD_SIZE", "value": "4"}]}
SYNCED = {"vcluster.loft.sh/managed-by": "team"}
MEMORY = {"kaishare.dev/gpu-fraction": None, "kaishare.dev/gpu-memory": "2000"}

# What it is, the pod, further namespace labels, the reason, and the container that gets the share (or none).
SHARES: list[tuple[str, dict[str, Any], dict[str, str], str, str | None]] = [
    ("one whole GPU", pod(gpu_container()), {}, "whole-gpu-converted", "main"),
    ("a limit alone", pod(container(limits={GPU: "1"})), {}, "whole-gpu-converted", "main"),
    ("a request alone", pod(container(requests={GPU: "1"})), {}, "whole-gpu-converted", "main"),
    ("the limit counts before the request", pod(container(limits={GPU: "2"}, requests={GPU: "1"})), {}, "several-gpus", None),
    ("1000m", pod(gpu_container(count="1000m")), {}, "whole-gpu-converted", "main"),
    ("a number", pod(gpu_container(count=1)), {}, "whole-gpu-converted", "main"),
    ("half a GPU as a quantity", pod(gpu_container(count="500m")), {}, "unclear-quantity", None),
    ("garbage as a quantity", pod(gpu_container(count="one")), {}, "unclear-quantity", None),
    ("a sidecar without a GPU", pod(gpu_container(), container("side")), {}, "whole-gpu-converted", "main"),
    ("a sidecar with zero GPUs", pod(gpu_container(), gpu_container("side", "0")), {}, "whole-gpu-converted", "main"),
    ("as many containers as may name a GPU", pod(gpu_container(), *(gpu_container(f"c{n}", "0") for n in range(255))), {}, "whole-gpu-converted", "main"),
    ("one more", pod(gpu_container(), *(gpu_container(f"c{n}", "0") for n in range(256))), {}, "many-gpu-containers", None),
    ("an extended resource of DRA", pod(container(limits={"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"})), ALL, "resource-claims", None),
    ("two GPUs", pod(gpu_container(count="2")), {}, "several-gpus", None),
    ("two containers with one each", pod(gpu_container(), gpu_container("b")), {}, "several-gpus", None),
    ("an init container with a GPU", pod(gpu_container(), init=[gpu_container("i")]), {}, "init-container-gpu", None),
    ("only an init container with a GPU", pod(init=[gpu_container("i")]), ALL, "init-container-gpu", None),
    ("kept whole", pod(gpu_container(), annotations={"kaishare.dev/whole-gpu": "true"}), {}, "whole-gpu-kept", None),
    ("whole-gpu says no", pod(gpu_container(), annotations={"kaishare.dev/whole-gpu": "false"}), {}, "whole-gpu-converted", "main"),
    ("MIG", pod(container(limits={MIG: "1"})), ALL, "mig", None),
    ("MIG beside a GPU", pod(gpu_container(), container("b", limits={MIG: "1"})), {}, "mig", None),
    ("MIG in an init container", pod(init=[container("i", requests={MIG: "1"})]), ALL, "mig", None),
    ("the legacy MIG annotation", pod(annotations={MIG: "1"}), ALL, "mig", None),
    ("a resource claim", pod(resourceClaims=[{"name": "gpu"}]), ALL, "resource-claims", None),
    ("a container's claim", pod(container(claims=[{"name": "gpu"}])), ALL, "resource-claims", None),
    ("no resource claims", pod(gpu_container(), resourceClaims=[]), {}, "whole-gpu-converted", "main"),
    ("CPU only under whole-gpu", pod(), {}, "no-gpu", None),
    ("CPU only under marked", pod(), MARKED, "no-gpu", None),
    ("marked under marked", pod(container("a"), container("b"), labels=SHARED), MARKED, "share-injected", "a"),
    ("marked under whole-gpu", pod(labels=SHARED), {}, "no-gpu", None),
    ("marked and a whole GPU", pod(gpu_container(), labels=SHARED), MARKED, "whole-gpu-converted", "main"),
    ("CPU only under all", pod(container("a"), container("b")), ALL, "share-injected", "a"),
    ("zero GPUs under all", pod(gpu_container(count="0")), ALL, "share-injected", "main"),
    ("a whole GPU under all", pod(gpu_container()), ALL, "whole-gpu-converted", "main"),
    ("an AMD GPU under all", pod(container(limits={"amd.com/gpu": "1"})), ALL, "other-gpu-resource", None),
    ("a time-sliced GPU under all", pod(container(limits={"nvidia.com/gpu.shared": "1"})), ALL, "other-gpu-resource", None),
    ("zero MIG devices beside a GPU", pod(gpu_container(), container("b", limits={MIG: "0"})), {}, "whole-gpu-converted", "main"),
    ("zero of a device class beside a GPU", pod(gpu_container(), container("b", limits={"deviceclass.resource.kubernetes.io/gpu": "0"})), {}, "whole-gpu-converted", "main"),
    ("zero AMD GPUs under all", pod(container(limits={"amd.com/gpu": "0"})), ALL, "share-injected", "main"),
    ("zero AMD GPUs", pod(container(limits={"amd.com/gpu": "0m"})), {}, "no-gpu", None),
    ("an AMD GPU under whole-gpu", pod(container(limits={"amd.com/gpu": "1"})), {}, "other-gpu-resource", None),
    *((f"{name} under all", pod(container(limits={name: "1"})), ALL, "other-gpu-resource", None) for name in (
        "gpu.intel.com/i915", "habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuroncore", "huawei.com/Ascend910",
        "aliyun.com/gpu-mem", "volcano.sh/vgpu-memory", "koordinator.sh/gpu-core", "nvidia.com/pgpu", "example.com/dongle")),
    *((f"{name} beside a GPU", pod(gpu_container(), container("b", limits={name: "1"})), {}, "other-gpu-resource", None) for name in (
        "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "volcano.sh/vgpu-memory", "amd.com/gpu", "example.com/dongle")),
    *((f"{name} beside a GPU", pod(gpu_container(), container("b", limits={name: "1"})), {}, "whole-gpu-converted", "main") for name in (
        "rdma/hca_shared_devices_a", "nvidia.com/hostdev", "nvidia.com/mlnxnics", "intel.com/sriov_netdevice", "mellanox.com/cx5",
        "vpc.amazonaws.com/efa", "networking.gke.io.networks/rdma-0", "devices.kubevirt.io/kvm", "smarter-devices/fuse",
        "github.com/fuse", "example.com/kvm", "hugepages-2Mi", "kubernetes.io/batch-cpu", "a.kubernetes.io/x")),
    ("another accelerator, where no share is", pod(container(limits={"google.com/tpu": "1"})), ALL | {"kaishare.dev/gpu-fraction": None}, "no-default-share", None),
    ("a node label of MIG", pod(gpu_container(), nodeSelector={"nvidia.com/gpu.product": "A100-SXM4-40GB-MIG-1g.5gb"}), {}, "mig-nodes", None),
    *((f"a node label {key}={value}", pod(gpu_container(), nodeSelector={key: value}), {}, "mig-nodes", None) for key, value in (
        ("nvidia.com/mig.strategy", "single"), ("nvidia.com/mig.capable", "true"), ("nvidia.com/mig-1g.5gb.count", "7"),
        ("nvidia.com/mig.config", "all-1g.5gb"), ("cloud.google.com/gke-gpu-partition-size", "1g.5gb"))),
    *((f"a node label {key}={value}", pod(gpu_container(), nodeSelector={key: value}), {}, "whole-gpu-converted", "main") for key, value in (
        ("nvidia.com/mig.strategy", "none"), ("nvidia.com/mig.capable", "false"), ("nvidia.com/mig.config", "all-disabled"),
        ("nvidia.com/gpu.product", "NVIDIA-A10"), ("example.com/rack-MIG-1", "a"))),
    ("an affinity to MIG", pod(gpu_container(), affinity=required([("nvidia.com/gpu.product", "In", ["A-MIG-1", "B-MIG-2"])])), {}, "mig-nodes", None),
    ("an affinity to MIG and other products", pod(gpu_container(), affinity=required([("nvidia.com/gpu.product", "In", ["A-MIG-1", "B"])])), {}, "whole-gpu-converted", "main"),
    ("an affinity to MIG or others", pod(gpu_container(), affinity=required([("nvidia.com/mig.strategy", "Exists", None)], [("zone", "Exists", None)])), {}, "whole-gpu-converted", "main"),
    ("an affinity to MIG, and a term that matches nothing", pod(gpu_container(), affinity=required([("nvidia.com/mig.strategy", "Exists", None)], [])), {}, "mig-nodes", None),
    ("an affinity to MIG in a zone", pod(gpu_container(), affinity=required([("zone", "In", ["a"]), ("nvidia.com/mig-1g.5gb.count", "Gt", ["0"])])), {}, "mig-nodes", None),
    *((f"an affinity by {operator}", pod(gpu_container(), affinity=required([("nvidia.com/mig.strategy", operator, values)])), {}, "whole-gpu-converted", "main")
      for operator, values in (("NotIn", ["single"]), ("DoesNotExist", None), ("In", ["single", "none"]), ("In", []))),
    ("nodes that may have MIG", pod(gpu_container(), affinity=required([("nvidia.com/mig.capable", "Exists", None)])), {}, "whole-gpu-converted", "main"),
    ("a preferred affinity to MIG", pod(gpu_container(), affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [{"key": "nvidia.com/mig.strategy", "operator": "Exists"}]}}]}}), {}, "whole-gpu-converted", "main"),
    ("an affinity of another form", pod(gpu_container(), affinity={"nodeAffinity": ["nvidia.com/mig.strategy"]}), {}, "whole-gpu-converted", "main"),
    ("MIG nodes without a GPU", pod(nodeSelector={"nvidia.com/mig.strategy": "single"}), {}, "no-gpu", None),
    ("MIG nodes under all", pod(nodeSelector={"nvidia.com/mig.strategy": "single"}), ALL, "mig-nodes", None),
    *((f"RuntimeClass {name}", pod(gpu_container(), runtimeClassName=name), {}, "runtime-class", None) for name in ("gvisor", "kata-qemu-nvidia-gpu")),
    *((f"RuntimeClass {name}", pod(gpu_container(), runtimeClassName=name), {}, "whole-gpu-converted", "main") for name in (None, "", "nvidia", "nvidia-cdi", "nvidia-legacy")),
    ("gVisor under all", pod(runtimeClassName="gvisor"), ALL, "runtime-class", None),
    ("a pod of a vCluster", pod(gpu_container(), labels=SYNCED), {}, "vcluster-synced", None),
    ("a pod of a vCluster with zero GPUs", pod(gpu_container(count="0"), labels=SYNCED), ALL, "vcluster-synced", None),
    ("a pod of a vCluster without a GPU", pod(labels=SYNCED), ALL, "share-injected", "main"),
    ("a rank in gVisor", pod(gpu_container(**RANK), runtimeClassName="gvisor"), {}, "runtime-class", None),
    ("gVisor and an unknown size", pod(gpu_container(), labels={SIZE: "none"}, runtimeClassName="gvisor"), {}, "runtime-class", None),
    ("gVisor, kept whole", pod(gpu_container(), annotations={"kaishare.dev/whole-gpu": "true"}, runtimeClassName="gvisor"), {}, "whole-gpu-kept", None),
    ("own fraction", pod(annotations={"gpu-fraction": "0.3"}), ALL, "own-share", None),
    ("own memory", pod(annotations={"gpu-memory": "500"}), ALL, "own-share", None),
    ("own memory for a container", pod(annotations={"nvidia.com/container.main.gpu-memory.request": "1Gi"}), ALL, "own-share", None),
    ("an empty fraction is the pod's own too", pod(annotations={"gpu-fraction": ""}), ALL, "own-share", None),
    ("own fraction beside a whole GPU", pod(gpu_container(), annotations={"gpu-fraction": "0.3"}), {}, "own-share", None),
    ("devices alone", pod(gpu_container(), annotations={"gpu-fraction-num-devices": "2"}), {}, "own-share", None),
    ("no default share", pod(gpu_container()), {"kaishare.dev/gpu-fraction": None}, "no-default-share", None),
    ("the default scheduler", pod(gpu_container()), {"kaishare.dev/scheduler": "default-scheduler"}, "scheduler-not-kai", None),
    ("the container already named", pod(gpu_container(), annotations={"gpu-fraction-container-name": "main"}), {}, "whole-gpu-converted", "main"),
    ("another container named", pod(gpu_container(), annotations={"gpu-fraction-container-name": "x"}), {}, "container-conflict", None),
    ("bare with generateName", pod(gpu_container(), metadata={"name": None, "generateName": "x-"}), {}, "name-unsupported", None),
    ("owned with generateName", pod(gpu_container(), metadata=owned_by("Job")), {}, "whole-gpu-converted", "main"),
    ("a dotted name", pod(gpu_container(), metadata={"name": "a.b"}), {}, "name-unsupported", None),
    ("an owner's dotted name", pod(gpu_container(), metadata=owned_by("Job", "a.b")), {}, "name-unsupported", None),
    ("the second container", pod(container("a"), gpu_container("b")), {}, "container-not-first", None),
    ("a rank", pod(gpu_container(**RANK)), {}, "distributed", None),
    ("a rank under distributed=keep", pod(gpu_container(**RANK)), {"kaishare.dev/distributed": "keep"}, "distributed", None),
    ("a rank under distributed=share", pod(gpu_container(**RANK)), {"kaishare.dev/distributed": "share"}, "whole-gpu-converted", "main"),
    ("a rank in the second container", pod(container("a"), gpu_container("b", **RANK)), {}, "distributed", None),
    ("a rank with a dotted name", pod(gpu_container(**RANK), metadata={"name": "a.b"}), {}, "distributed", None),
    ("a rank, and another container named", pod(gpu_container(**RANK), annotations={"gpu-fraction-container-name": "x"}), {}, "distributed", None),
    ("a rank under a cap below 1", pod(gpu_container(**RANK)), {"kaishare.dev/max-gpu-fraction": "0.5"}, "whole-gpu-converted", "main"),
    ("a rank under a cap of 1", pod(gpu_container(**RANK)), {"kaishare.dev/max-gpu-fraction": "1"}, "distributed", None),
    ("a rank that names an unknown size", pod(gpu_container(**RANK), labels={SIZE: "none"}), {}, "size-unknown", None),
    ("a rank that is kept whole", pod(gpu_container(**RANK), annotations={"kaishare.dev/whole-gpu": "true"}), {}, "whole-gpu-kept", None),
    ("a rank with two GPUs", pod(gpu_container(count="2", **RANK)), {}, "several-gpus", None),
    ("a rank beside an init container with a GPU", pod(gpu_container(**RANK), init=[gpu_container("i")]), {}, "init-container-gpu", None),
    ("a rank beside MIG", pod(gpu_container(**RANK), container("b", limits={MIG: "1"})), {}, "mig", None),
    ("a rank with a claim", pod(gpu_container(**RANK), resourceClaims=[{"name": "gpu"}]), {}, "resource-claims", None),
    ("a rank with an unclear GPU", pod(gpu_container(count="one", **RANK)), {}, "unclear-quantity", None),
    ("a rank without a GPU under all", pod(container(**RANK)), ALL, "share-injected", "main"),
    ("a rank with an own share", pod(container(**RANK), annotations={"gpu-fraction": "0.3"}), {}, "own-share", None),
    ("a rank without a default share", pod(gpu_container(**RANK)), {"kaishare.dev/gpu-fraction": None}, "no-default-share", None),
    ("a rank of the default scheduler", pod(gpu_container(**RANK)), {"kaishare.dev/scheduler": "default-scheduler"}, "scheduler-not-kai", None),
]  # fmt: skip


@pytest.mark.parametrize("case", SHARES, ids=lambda case: case[0])
def test_default_share(case: tuple[str, dict[str, Any], dict[str, str], str, str | None]) -> None:
    _, document, labels, reason, name = case
    decision = decided(document, DEFAULT_SHARE | labels)
    assert decision.reason.code == reason
    assert decision.finding.sentence
    given = share_of(decision)
    if name is None:
        assert given == {}
        assert not decision.changes.removed_gpu_keys
        return
    assert given.pop("gpu-fraction") == "0.5"
    named = document["metadata"].get("annotations", {}).get("gpu-fraction-container-name")
    assert given == ({} if named else {"gpu-fraction-container-name": name})
    gpu_keys = [
        GpuKey(group, index, kind)
        for group in ("containers", "initContainers")
        for index, spec in enumerate(document["spec"].get(group, []))
        for kind in ("limits", "requests")
        if GPU in spec.get("resources", {}).get(kind, {})
    ]
    assert list(decision.changes.removed_gpu_keys) == gpu_keys


WITHHELD = {"other-gpu-resource", "mig-nodes", "runtime-class", "vcluster-synced", "distributed"} | {
    "limit-range", "container-conflict", "name-unsupported", "container-not-first",
}  # fmt: skip


@pytest.mark.parametrize("case", SHARES, ids=lambda case: case[0])
def test_an_author_is_told_of_a_share_that_is_withheld(
    case: tuple[str, dict[str, Any], dict[str, str], str, str | None],
) -> None:
    title, document, labels, reason, _ = case
    warned = reason in [finding.reason.code for finding in decided(document, DEFAULT_SHARE | labels).warnings]
    is_asked = title == "an AMD GPU under whole-gpu"  # such a pod would get no share without the GPU
    assert warned is (reason in WITHHELD and not is_asked) or reason not in WITHHELD


PLAIN_BY_SETTINGS = [
    ({"gpu_runtime_classes": frozenset({"gvisor"})}, pod(gpu_container(), runtimeClassName="gvisor"), "whole-gpu-converted"),
    ({"gpu_runtime_classes": frozenset({"other"})}, pod(gpu_container(), runtimeClassName="gvisor"), "runtime-class"),
    ({"kubernetes": (1, 34)}, pod(gpu_container(), labels=SYNCED), "whole-gpu-converted"),
    ({"kubernetes": (1, 35)}, pod(gpu_container(), labels=SYNCED), "vcluster-synced"),
    ({"gpu_limit_ranges": {"team-a": "gpus"}}, pod(gpu_container()), "limit-range"),
    ({"gpu_limit_ranges": {"team-b": "gpus"}}, pod(gpu_container()), "whole-gpu-converted"),
    ({"gpu_limit_ranges": {"team-a": "gpus"}}, pod(gpu_container(), annotations=OURS), "own-share"),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "document", "reason"), PLAIN_BY_SETTINGS)
def test_what_the_cluster_says_of_a_gpu(rules: dict[str, Any], document: dict[str, Any], reason: str) -> None:
    decision = decided(document, DEFAULT_SHARE, **rules)
    assert decision.reason.code == reason
    assert bool(decision.changes.removed_gpu_keys) is (reason == "whole-gpu-converted")
    assert all(len(finding.warning) <= 120 for finding in decision.warnings)


@pytest.mark.parametrize(
    ("version", "name", "containers", "reason"),
    [
        (None, "case", "two", "container-not-first"), ("0.9.11", "case", "two", "container-not-first"),
        ("0.9.12", "case", "two", "whole-gpu-converted"), ("0.13.0", "case", "two", "whole-gpu-converted"),
        (None, "a.b", "one", "name-unsupported"), ("0.16.4", "a.b", "one", "name-unsupported"),
        ("0.16.5", "a.b", "one", "whole-gpu-converted"), ("0.17.0", None, "one", "name-unsupported"),
    ],
)  # fmt: skip
def test_what_some_releases_of_kai_do_not_support(
    version: str | None, name: str | None, containers: str, reason: str
) -> None:
    release = Version.parse(version) if version else None
    metadata = {"name": name} if name else {"name": None, "generateName": "x-"}
    first = [container("a")] * (containers == "two")
    decision = decided(pod(*first, gpu_container("b"), metadata=metadata), kai_version=release)
    assert decision.reason.code == reason
    assert [warning.reason.code for warning in decision.warnings] == [reason]
    assert decision.changes.scheduler == "kai-scheduler"


TOLERATION = {"kaishare.dev/gpu-toleration": "inject"}


@pytest.mark.parametrize(
    ("case", "document", "added"),
    [
        ("converted", pod(gpu_container()), True),
        ("own share", pod(annotations={"gpu-memory": "500"}), True),
        ("no share", pod(), False),
        ("whole GPU kept", pod(gpu_container(count="2")), False),
        ("tolerated", pod(gpu_container(), tolerations=[{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]), False),
        ("tolerated whatever the effect", pod(gpu_container(), tolerations=[{"key": GPU, "operator": "Exists"}]), False),
        ("everything tolerated", pod(gpu_container(), tolerations=[{"operator": "Exists"}]), False),
        ("one value tolerated", pod(gpu_container(), tolerations=[{"key": GPU, "operator": "Equal", "value": "present"}]), True),
        ("another effect", pod(gpu_container(), tolerations=[{"key": GPU, "operator": "Exists", "effect": "NoExecute"}]), True),
        ("another taint", pod(gpu_container(), tolerations=[{"key": "x", "operator": "Exists"}]), True),
    ],
)  # fmt: skip
def test_gpu_toleration(case: str, document: dict[str, Any], added: bool) -> None:
    assert decided(document, DEFAULT_SHARE | TOLERATION).changes.toleration is added
    assert decided(document, DEFAULT_SHARE).changes.toleration is False


HALF = {"kaishare.dev/gpu-fraction": "0.5"}
SHARE_RANKS = {"kaishare.dev/distributed": "share"}

# The pod, further namespace labels, the codes of the warnings, and a piece of the first one's text.
WARNINGS: list[tuple[str, dict[str, Any], dict[str, str], list[str], str]] = [
    ("a good share", pod(annotations={"gpu-fraction": "0.25"}), {}, [], ""),
    ("zero GPUs to the scheduler", pod(annotations={"gpu-fraction": "0.004"}), {}, ["counted-differently"], "as 0 GPUs"),
    ("0.01", pod(annotations={"gpu-fraction": "0.01"}), {}, ["counted-differently"], "0.02 or more"),
    ("three decimals", pod(annotations={"gpu-fraction": "0.125"}), {}, ["counted-differently"], "allocates 0.12"),
    ("0.995", pod(annotations={"gpu-fraction": "0.995"}), {}, ["counted-differently"], "as 1 but allocates 0.99"),
    ("2^63 MiB", pod(annotations={"gpu-memory": str(1 << 63)}), {}, ["counted-differently"], "ignores"),
    ("too much", pod(annotations={"gpu-fraction": "1.5"}), {}, ["kai-refuses"], "smaller than 1.0"),
    ("a unit", pod(annotations={"gpu-memory": "2Gi"}), {}, ["kai-refuses"], "positive integer"),
    ("both", pod(annotations={"gpu-fraction": "0.5", "gpu-memory": "1"}), {}, ["kai-refuses"], "cannot request both"),
    ("beside a whole GPU", pod(gpu_container(), annotations={"gpu-fraction": "0.5"}), {}, ["kai-refuses"], "cannot have both"),
    ("no such container", pod(annotations={"gpu-fraction": "0.5", "gpu-fraction-container-name": "x"}), {}, ["kai-refuses"], "container with name x"),
    ("mps alone", pod(annotations={"mps": "true"}), {}, ["kai-refuses"], "MPS"),
    ("devices alone", pod(annotations={"gpu-fraction-num-devices": "2"}), {}, ["kai-refuses"], "multiple fractional"),
    ("dotted name", pod(annotations={"gpu-fraction": "0.5"}, metadata={"name": "a.b"}), {}, ["name-unsupported"], "dot"),
    ("above the fraction cap", pod(annotations={"gpu-fraction": "0.6"}), {"kaishare.dev/max-gpu-fraction": "0.5"}, ["above-cap"], "0.6 of a GPU"),
    ("devices count", pod(annotations={"gpu-fraction": "0.3", "gpu-fraction-num-devices": "2"}), {"kaishare.dev/max-gpu-fraction": "0.5"}, ["above-cap"], "0.6 of a GPU"),
    ("at the cap", pod(annotations={"gpu-fraction": "0.1", "gpu-fraction-num-devices": "3"}), {"kaishare.dev/max-gpu-fraction": "0.3", "kaishare.dev/gpu-fraction": "0.2"}, [], ""),
    ("a whole GPU above the cap", pod(gpu_container(), annotations={"kaishare.dev/whole-gpu": "true"}), {"kaishare.dev/max-gpu-fraction": "0.5"}, ["above-cap"], "1 whole GPU"),
    ("a whole GPU at a cap of 1", pod(gpu_container(), annotations={"kaishare.dev/whole-gpu": "true"}), {"kaishare.dev/max-gpu-fraction": "1"}, [], ""),
    ("two GPUs above a cap of 1", pod(gpu_container(count="2")), {"kaishare.dev/max-gpu-fraction": "1"}, ["above-cap"], "2 whole GPUs"),
    ("above the memory cap", pod(annotations={"gpu-memory": "3000", "gpu-fraction-num-devices": "2"}), {"kaishare.dev/max-gpu-memory": "5000"}, ["above-cap"], "6000 MiB"),
    ("memory under a fraction cap", pod(annotations={"gpu-memory": "3000"}), {"kaishare.dev/max-gpu-fraction": "0.5"}, ["cap-unit"], "use gpu-fraction"),
    ("fraction under a memory cap", pod(annotations={"gpu-fraction": "0.3"}), {"kaishare.dev/max-gpu-memory": "5000"}, ["cap-unit"], "use gpu-memory"),
    ("a group", pod(labels={"runai-gpu-group": "x"}), {}, ["reserved-key"], "runai-gpu-group"),
    ("one of several groups", pod(labels={"runai-gpu-group/x": "x"}), {}, ["reserved-key"], "runai-gpu-group/x"),
    ("KAI's annotations", pod(annotations={"received-resource-type": "x", "pod-group-name": "x", "kai.scheduler/skip-podgrouper": "true"}), {}, ["reserved-key"] * 3, "is reserved for KAI"),
    ("vCluster's keys", pod(annotations={"vcluster.loft.sh/name": "x"}, labels={"vcluster.loft.sh/namespace": "y"}), {}, ["reserved-key"] * 2, "vCluster"),
    ("vCluster's own pod", pod(annotations={"vcluster.loft.sh/name": "x"}, labels={"vcluster.loft.sh/managed-by": "v"}), {"kaishare.dev/vcluster": "true"}, [], ""),
    ("a forged pod of vCluster", pod(labels={"vcluster.loft.sh/managed-by": "v"}), {}, ["reserved-key"], "vCluster"),
    ("an unused ConfigMap", pod(annotations={"runai/shared-gpu-configmap": "x"}), {}, ["reserved-key"], "shared-gpu-configmap"),
    ("an owner that is not namespaced", pod(metadata={"ownerReferences": [{"apiVersion": "v1", "kind": "Namespace", "name": "a"}]}), {}, [], ""),
    ("an invalid opt-out", pod(labels={"kaishare.dev/inject": "no"}), {}, ["unknown-value"], '"no"'),
    ("an invalid mark", pod(labels={"kaishare.dev/gpu": "Shared"}), {}, ["unknown-value"], "allowed: shared"),
    ("a rank", pod(gpu_container(**RANK)), HALF, ["distributed"], "container main keeps its whole GPU: WORLD_SIZE is 4; kaishare.dev/distributed=share on the namespace"),
    ("a rank whose name is long", pod(gpu_container("x" * 63, **RANK)), HALF, ["distributed"], "…"),
    ("a rank under distributed=share", pod(gpu_container(**RANK)), HALF | SHARE_RANKS, ["whole-gpu-converted"], ""),
    ("a rank under a cap", pod(gpu_container(**RANK)), HALF | {"kaishare.dev/max-gpu-fraction": "0.5"}, ["whole-gpu-converted", "ranks-may-meet"], ""),
    ("a rank under a memory cap", pod(gpu_container(**RANK)), MEMORY | {"kaishare.dev/max-gpu-memory": "2000"}, ["whole-gpu-converted", "ranks-may-meet"], ""),
    ("a rank with a share of its own", pod(container(**RANK), annotations={"gpu-fraction": "0.25"}), {}, ["ranks-may-meet"], "WORLD_SIZE is 4: KAI may put ranks on one GPU"),
    ("the share is for a container that is a rank", pod(container(), container("b", **RANK), annotations={"gpu-fraction": "0.25", "gpu-fraction-container-name": "b"}), {}, ["ranks-may-meet"], "WORLD_SIZE"),
    ("the share is for another container", pod(container(), container("b", **RANK), annotations={"gpu-fraction": "0.25"}), {}, [], ""),
    ("a rank with a share of its own under distributed=share", pod(container(**RANK), annotations={"gpu-fraction": "0.25"}), SHARE_RANKS, [], ""),
]  # fmt: skip


@pytest.mark.parametrize("case", WARNINGS, ids=lambda case: case[0])
def test_warnings(case: tuple[str, dict[str, Any], dict[str, str], list[str], str]) -> None:
    _, document, labels, codes, text = case
    labels = {"kaishare.dev/gpu-fraction": None, **labels}
    decision = decided(document, labels)
    assert [warning.reason.code for warning in decision.warnings] == codes
    assert text in (decision.warnings[0].warning if decision.warnings else "")


# What KAI up to v0.16.2 lets in (seen on v0.13.4).
UNREADABLE = [
    ("NaN", "never schedules"),
    ("0x1p-1", "does not count it in its queue"),
    ("0.2_5", "does not count it in its queue"),
]


@pytest.mark.parametrize(("value", "what"), UNREADABLE)
def test_a_number_that_only_older_releases_accept_is_warned_about(value: str, what: str) -> None:
    decision = decided(pod(annotations={"gpu-fraction": value}), kai_version=Version(0, 13, 4))
    assert [warning.reason.code for warning in decision.warnings] == ["counted-differently"]
    assert what in decision.warnings[0].warning


def test_a_malformed_pod_is_left_alone_with_the_field_named() -> None:
    nameless = {
        "metadata": {"name": "x"},
        "spec": {"containers": [{"image": "x", "resources": {"limits": {GPU: "1"}}}]},
    }
    decision = decided(nameless)
    assert outcome(decision) == ("skipped", "malformed-pod")
    empty = {"metadata": {"name": "x"}, "spec": {"containers": []}}
    assert outcome(decided(empty, DEFAULT_SHARE | ALL)) == ("skipped", "malformed-pod")
