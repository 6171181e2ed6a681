"""Jobs of operators: the decision about a template is that about its pods."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.support.operator_jobs import (
    NAMESPACE,
    OperatorJob,
    jax_job,
    job_set,
    leader_worker_set,
    mpi_job,
    paddle_job,
    py_torch_job,
    tf_job,
    xg_boost_job,
)
from tests.support.pods import container, gpu_container
from webhook.policy.decide import Decision
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.distributed import (
    CLUSTER,
    JAX_PROCESSES,
    JOB_SET,
    KUEUE_COUNT,
    LWS_SIZE,
    MPI_JOB,
    MPI_OPERATOR,
    NODES_OPTION,
    RENDEZVOUS,
    VARIABLES,
)
from webhook.policy.labels import NamespacePolicy
from webhook.policy.operators import OPERATORS, additions_of
from webhook.policy.patch import mutate
from webhook.policy.pod_parts import as_json
from webhook.policy.reasons import Reason
from webhook.policy.templates import FoundPod, find_pods, makes_no_pods

QUEUE = {"kai.scheduler/queue": "queue-a"}
HALF = QUEUE | {"kaishare.dev/gpu-fraction": "0.5"}
TEMPLATE: dict[str, Any] = {"metadata": {"labels": {"app": "train"}}, "spec": {"containers": [gpu_container("tensorflow")]}}  # fmt: skip
BARE: dict[str, Any] = {"spec": {"containers": [gpu_container("tensorflow"), container("side")]}}
Build = Callable[[dict[str, Any]], OperatorJob]

JOBS: list[tuple[str, Build, str]] = [
    # Several ranks keep their GPUs, for this reason.
    ("PyTorchJob", lambda t: py_torch_job(t, {"Master": 1, "Worker": 3}), "a PyTorchJob of 4 ranks"),
    ("PyTorchJob, two processes each", lambda t: py_torch_job(t, {"Master": 1, "Worker": 3}, processes="2"), "a PyTorchJob of 8 ranks"),
    ("PyTorchJob, processes by GPU", lambda t: py_torch_job(t, {"Master": 1, "Worker": 1}, processes="gpu"), "a PyTorchJob of 2 ranks"),
    ("PyTorchJob of workers", lambda t: py_torch_job(t, {"Worker": 2}), "a PyTorchJob of 2 ranks"),
    ("PyTorchJob, elastic", lambda t: py_torch_job(t, {"Worker": 1}, elastic={"minReplicas": 1, "maxReplicas": 4}), "a PyTorchJob of 4 ranks"),
    ("TFJob", lambda t: tf_job(t, {"PS": 1, "Worker": 2}), "a TFJob of 3 tasks"),
    ("TFJob, dynamic workers", lambda t: tf_job(t, {"PS": 1, "Worker": 2}, dynamic=True), "a TFJob"),
    ("XGBoostJob", lambda t: xg_boost_job(t, {"Master": 1, "Worker": 2}), "an XGBoostJob of 3 ranks"),
    ("JAXJob", lambda t: jax_job(t, {"Worker": 2}), "a JAXJob of 2 ranks"),
    ("PaddleJob", lambda t: paddle_job(t, {"Worker": 2}), "a PaddleJob of 2 ranks"),
    ("MPIJob", lambda t: mpi_job(t, 2), "an MPIJob"),
    ("MPIJob, the launcher works, too", lambda t: mpi_job(t, 1, also_worker=True), "an MPIJob"),
    ("MPIJob v1", lambda t: mpi_job(t, 2, version="v1"), "an MPIJob"),
    ("JobSet", lambda t: job_set(t, [2]), "a JobSet of 2 jobs"),
    ("JobSet of two replicated jobs", lambda t: job_set(t, [1, 1]), "a JobSet of 2 jobs"),
    ("LeaderWorkerSet", lambda t: leader_worker_set(t, 2), "a LeaderWorkerSet of 2 ranks"),
    ("LeaderWorkerSet with a leader", lambda t: leader_worker_set(t, 4, own_leader=True), "a LeaderWorkerSet of 4 ranks"),
    ("LeaderWorkerSet, its webhook first", lambda t: leader_worker_set(t, 2, webhook_first=True), "a LeaderWorkerSet of 2 ranks"),
    # One rank gets the share.
    ("PyTorchJob, one rank", lambda t: py_torch_job(t, {"Master": 1}), ""),
    ("PyTorchJob, workers at 0, one rank", lambda t: py_torch_job(t, {"Master": 1, "Worker": 0}), ""),
    ("PyTorchJob, elastic, one rank", lambda t: py_torch_job(t, {"Worker": 1}, elastic={"minReplicas": 1, "maxReplicas": 1}), ""),
    ("TFJob, one rank", lambda t: tf_job(t, {"Worker": 1}), ""),
    ("XGBoostJob, one rank", lambda t: xg_boost_job(t, {"Master": 1}), ""),
    ("JAXJob, one rank", lambda t: jax_job(t, {"Worker": 1}), ""),
    ("PaddleJob, one rank", lambda t: paddle_job(t, {"Worker": 1}), ""),
    ("JobSet, one rank", lambda t: job_set(t, [1]), ""),
    ("LeaderWorkerSet, one rank", lambda t: leader_worker_set(t, 1), ""),
    ("LeaderWorkerSet without a size, one rank", lambda t: leader_worker_set(t, None), ""),
]  # fmt: skip


def policy_of(labels: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> NamespacePolicy:
    policy = NamespacePolicy.from_labels(NAMESPACE, labels, annotations or {})
    assert policy is not None
    return policy


def decided(policy: NamespacePolicy, pod: dict[str, Any]) -> Decision:
    return mutate(policy, json.dumps(pod).encode(), DecisionSettings()).decision


def previewed(policy: NamespacePolicy, pod: FoundPod) -> Decision:
    return mutate(policy, as_json(pod.as_created(NAMESPACE)), DecisionSettings()).decision


def assert_preview_equals_answer(policy: NamespacePolicy, job: OperatorJob) -> list[Decision]:
    """Compare the decision about each template with that about each pod; return those about the pods."""
    templates = {pod.path: pod for pod in find_pods(job.manifest)}
    decisions = []
    for path, pod in job.pods:
        answer = decided(policy, pod)
        assert previewed(policy, templates[path]) == answer, path
        decisions.append(answer)
    return decisions


@pytest.mark.parametrize("template", [TEMPLATE, BARE], ids=["with labels", "with a second container"])
@pytest.mark.parametrize("case", JOBS, ids=lambda case: case[0])
def test_a_job_of_many_ranks_keeps_its_gpus(case: tuple[str, Build, str], template: dict[str, Any]) -> None:
    _, build, evidence = case
    decisions = assert_preview_equals_answer(policy_of(HALF), build(template))
    assert evidence or len(decisions) == 1
    for decision in decisions:
        assert decision.reason is (Reason.DISTRIBUTED if evidence else Reason.WHOLE_GPU_CONVERTED)
        assert f": {evidence};" in decision.finding.sentence or not evidence
        assert evidence or Reason.RANKS_MAY_MEET not in [warning.reason for warning in decision.warnings]


def with_pod(*containers: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata, "spec": {"containers": list(containers)}}


@pytest.mark.parametrize("case", JOBS, ids=lambda case: case[0])
def test_the_labels_of_the_first_pod_are_those_of_its_controller(case: tuple[Any, ...]) -> None:
    """A selector of a size sees them, except those that the operator's own webhook adds later."""
    job = case[1](TEMPLATE)
    templates = {pod.path: pod for pod in find_pods(job.manifest)}
    for path, template in templates.items():
        pods = [pod for of, pod in job.pods if of == path]
        if not pods:
            continue
        if path.endswith("workerTemplate"):
            pods = [
                pod for pod in pods if "leaderworkerset.sigs.k8s.io/group-key" in pod["metadata"]["labels"]
            ]
            if not pods or "its webhook first" in case[0]:
                continue  # the leader of a set without a template of its own
        added, real = template.as_created(NAMESPACE)["metadata"]["labels"], pods[0]["metadata"]["labels"]
        assert added.keys() == real.keys(), path
        for key, value in added.items():
            if not any(part in key for part in ("uid", "hash", "key")):
                assert value == real[key], (path, key)
        owner, owned = template.as_created(NAMESPACE)["metadata"]["ownerReferences"][0], pods[0]["metadata"]["ownerReferences"][0]  # fmt: skip
        assert (owner["apiVersion"], owner["kind"]) == (owned["apiVersion"], owned["kind"])
        assert template.additions is not None


def test_a_selector_sees_the_labels_of_the_controller() -> None:
    sizes = QUEUE | {"size.kaishare.dev/quarter": "0.25", "kaishare.dev/distributed": "share"}
    selector = {"size.kaishare.dev/quarter": "training.kubeflow.org/replica-type=worker"}
    job = py_torch_job(TEMPLATE, {"Master": 1, "Worker": 1})
    decisions = assert_preview_equals_answer(policy_of(sizes, selector), job)
    assert [decision.size.name if decision.size else None for decision in decisions] == [None, "quarter"]


def workload(kind: str, version: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "web"}, "spec": spec}


ORDINARY: Sequence[dict[str, Any]] = [
    workload("Job", "batch/v1", {"completions": 8, "parallelism": 8, "template": TEMPLATE}),
    workload("CronJob", "batch/v1", {"jobTemplate": {"spec": {"parallelism": 8, "template": TEMPLATE}}}),
    workload("StatefulSet", "apps/v1", {"replicas": 8, "template": TEMPLATE}),
    workload("RayCluster", "ray.io/v1", {"workerGroupSpecs": [{"replicas": 8, "groupName": "w", "template": TEMPLATE}]}),
    workload("Job", "batch.volcano.sh/v1alpha1", {"schedulerName": "kai-scheduler", "tasks": [{"replicas": 8, "name": "w", "template": TEMPLATE}]}),
    workload("SparkApplication", "sparkoperator.k8s.io/v1beta2", {"executor": {"instances": 8, "template": TEMPLATE}}),
    workload("PyTorchJob", "example.com/v1", {"pytorchReplicaSpecs": {"Worker": {"replicas": 8, "template": TEMPLATE}}}),
    workload("PyTorchJob", "kubeflow.org/v1", {"elsewhere": {"Worker": {"replicas": 8, "template": TEMPLATE}}}),
    workload("TFJob", "kubeflow.org/v1", {"replicas": 8, "template": TEMPLATE}),
    workload("JobSet", "jobset.x-k8s.io/v1alpha2", {"replicatedJobs": {"a": {"replicas": 8, "template": {"spec": {"template": TEMPLATE}}}}}),
    workload("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", {"size": 8, "workerTemplate": TEMPLATE}),
]  # fmt: skip


@pytest.mark.parametrize("document", ORDINARY, ids=lambda document: document["kind"])
def test_other_workloads_get_the_share(document: dict[str, Any]) -> None:
    (pod,) = find_pods(document)
    assert previewed(policy_of(HALF), pod).reason is Reason.WHOLE_GPU_CONVERTED


STRANGE: Sequence[Any] = ("2", "many", -1, 2.5, True, None, [], {}, 10**30, [2])


@pytest.mark.parametrize("value", STRANGE, ids=repr)
@pytest.mark.parametrize("case", [case for case in JOBS if case[2]], ids=lambda case: case[0])
def test_numbers_that_the_api_server_refuses_are_no_error(case: tuple[str, Build, str], value: Any) -> None:
    def twisted(node: Any) -> Any:
        if isinstance(node, dict):
            counts = ("replicas", "size", "nprocPerNode", "minReplicas", "maxReplicas", "groupName")
            return {key: value if key in counts else twisted(child) for key, child in node.items()}
        return [twisted(child) for child in node] if isinstance(node, list) else node

    for pod in find_pods(twisted(case[1](TEMPLATE).manifest)):
        assert previewed(policy_of(HALF), pod).action.value == "injected"


def test_the_number_of_replicas_costs_no_memory() -> None:
    manifest = tf_job(BARE, {"Worker": 2}).manifest
    manifest["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 10**9
    (pod,) = find_pods(manifest)
    assert previewed(policy_of(HALF), pod).reason in (Reason.DISTRIBUTED, Reason.WHOLE_GPU_CONVERTED)
    first, second = pod.as_created(NAMESPACE)["spec"]["containers"]
    assert [(each["name"], len(each["value"]) < 2_000_000) for each in first["env"]] == [("TF_CONFIG", True)]
    assert "env" not in second, "only the container of TensorFlow gets the cluster"


def test_types_of_replicas_in_any_case_are_counted() -> None:
    manifest = py_torch_job(TEMPLATE, {"Master": 1, "Worker": 1}).manifest
    specs = manifest["spec"]["pytorchReplicaSpecs"]
    manifest["spec"]["pytorchReplicaSpecs"] = {"master": specs["Master"], "WORKER": specs["Worker"]}
    pods = [pod.as_created("team-a")["spec"]["containers"][0]["env"] for pod in find_pods(manifest)]
    ranks = [variable["value"] for env in pods for variable in env if variable["name"] == "RANK"]
    assert ranks == ["0", "1"]


def test_variables_follow_those_of_the_template() -> None:
    env = [{"name": "WORLD_SIZE", "value": "1"}]
    template = with_pod(gpu_container("tensorflow", env=env), container("side", env=None))
    job = py_torch_job(template, {"Master": 1, "Worker": 1})
    assert_preview_equals_answer(policy_of(HALF), job)
    pod = find_pods(job.manifest)[0].as_created(NAMESPACE)
    assert [each["value"] for each in pod["spec"]["containers"][0]["env"] if each["name"] == "WORLD_SIZE"] == ["1", "2"]  # fmt: skip
    odd = py_torch_job(with_pod(gpu_container("tensorflow", env="text")), {"Master": 1, "Worker": 1})
    assert find_pods(odd.manifest)[0].as_created(NAMESPACE)["spec"]["containers"][0]["env"] == "text"


SCHEDULERS: list[tuple[str, dict[str, Any], str]] = [
    ("Volcano's default", {"kind": "Job", "apiVersion": "batch.volcano.sh/v1alpha1", "spec": {"tasks": [{"template": TEMPLATE}]}}, "volcano"),
    ("Volcano", {"kind": "Job", "apiVersion": "batch.volcano.sh/v1alpha1", "spec": {"schedulerName": "mine", "tasks": [{"template": TEMPLATE}]}}, "mine"),
    ("Volcano's CronJob", {"kind": "CronJob", "apiVersion": "batch.volcano.sh/v1alpha1", "spec": {"jobTemplate": {"spec": {"tasks": [{"template": TEMPLATE}]}}}}, "volcano"),
    *((kind, {"kind": kind, "apiVersion": "ray.io/v1", "metadata": {"labels": {"ray.io/scheduler-name": "yunikorn"}}, "spec": {"headGroupSpec": {"template": TEMPLATE}}}, "yunikorn") for kind in ("RayCluster", "RayJob", "RayService")),
    ("RayCluster of KAI", {"kind": "RayCluster", "apiVersion": "ray.io/v1", "metadata": {"labels": {"ray.io/scheduler-name": "kai-scheduler"}}, "spec": {"headGroupSpec": {"template": TEMPLATE}}}, "kai-scheduler"),
    ("Spark", {"kind": "SparkApplication", "apiVersion": "sparkoperator.k8s.io/v1beta2", "spec": {"batchScheduler": "volcano", "executor": {"template": TEMPLATE}}}, "volcano"),
    ("Spark, scheduled", {"kind": "ScheduledSparkApplication", "apiVersion": "sparkoperator.k8s.io/v1beta2", "spec": {"template": {"batchScheduler": "volcano", "driver": {"template": TEMPLATE}}}}, "volcano"),
    ("Spark, by role", {"kind": "SparkApplication", "apiVersion": "sparkoperator.k8s.io/v1beta2", "spec": {"driver": {"schedulerName": "other"}, "executor": {"schedulerName": "mine", "template": TEMPLATE}}}, "mine"),
    ("a kind of its own", {"kind": "NIMService", "apiVersion": "apps.nvidia.com/v1alpha1", "spec": {"schedulerName": "mine", "template": TEMPLATE}}, "mine"),
    ("inside of another object", {"kind": "AppWrapper", "apiVersion": "workload.codeflare.dev/v1beta2", "spec": {"components": [{"template": {"kind": "Job", "apiVersion": "batch.volcano.sh/v1alpha1", "spec": {"tasks": [{"template": TEMPLATE}]}}}]}}, "volcano"),
]  # fmt: skip


@pytest.mark.parametrize("case", SCHEDULERS, ids=lambda case: case[0])
def test_a_kind_hands_its_own_scheduler_down(case: tuple[str, dict[str, Any], str]) -> None:
    (pod,) = find_pods(case[1])
    assert pod.as_created(NAMESPACE)["spec"].get("schedulerName", "") == case[2]
    is_of_another = case[2] not in ("", "kai-scheduler")
    assert (previewed(policy_of(HALF), pod).reason is Reason.OTHER_SCHEDULER) == is_of_another


MAKE_NO_PODS = [
    ("kueue.x-k8s.io/v1beta1", "Workload"), ("v1", "PodTemplate"),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"),
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"),
    ("serving.kserve.io/v1alpha1", "ServingRuntime"), ("serving.kserve.io/v1alpha1", "ClusterServingRuntime"),
    ("argoproj.io/v1alpha1", "WorkflowTemplate"), ("argoproj.io/v1alpha1", "ClusterWorkflowTemplate"),
    ("flow.volcano.sh/v1alpha1", "JobTemplate"), ("networking.k8s.io/v1", "NetworkPolicy"),
    ("autoscaling.k8s.io/v1", "VerticalPodAutoscaler"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "kind"), MAKE_NO_PODS)
def test_kinds_that_make_no_pods(version: str, kind: str) -> None:
    assert makes_no_pods(version, kind)
    assert find_pods({"kind": "AppWrapper", "apiVersion": "v1beta2", "spec": workload(kind, version, {"template": TEMPLATE})}) == []  # fmt: skip


WRITERS: dict[str, set[str]] = {
    "training-operator": {"PyTorchJob", "TFJob", "XGBoostJob", "JAXJob", "PaddleJob", "MPIJob"},
    "mpi-operator": {"MPIJob"},
    "JobSet": {"JobSet"},
    "LeaderWorkerSet": {"LeaderWorkerSet"},
    # A TrainJob's manifest has no templates, and Volcano's Jobs are another scheduler's; the others are users.
    **{key: set() for key in ("Trainer v2", "PyTorch", "TensorFlow", "Open MPI", "Slurm", "Kueue's plain pods", "Volcano's plugin")},
}  # fmt: skip
"""Who writes the names of the table of evidence, and the kinds whose templates lack them."""


def test_each_writer_of_evidence_is_known_to_the_preview() -> None:
    rows = [*VARIABLES, JAX_PROCESSES, CLUSTER, LWS_SIZE, KUEUE_COUNT, *JOB_SET, MPI_JOB, MPI_OPERATOR, NODES_OPTION, *RENDEZVOUS]  # fmt: skip
    sources = [source.strip() for row in rows for source in row.source.split(";")]
    unknown = [source for source in sources if not source.startswith(tuple(WRITERS))]
    assert not unknown
    assert set().union(*WRITERS.values()) == {kind for _, kind in OPERATORS}


def test_a_template_in_another_place_has_no_additions() -> None:
    for group, kind in OPERATORS:
        assert additions_of({"apiVersion": f"{group}/v1", "kind": kind}, ("spec", "elsewhere")) is None


def test_a_job_sets_pods_have_the_label_of_its_coordinator() -> None:
    document = job_set(TEMPLATE, [1, 2]).manifest
    document["spec"]["coordinator"] = {"replicatedJob": "r1", "jobIndex": 1}
    name = document["metadata"]["name"]
    for pod in find_pods(document):
        created = pod.as_created("team-a")["metadata"]
        for entries in (created["labels"], created["annotations"]):
            assert entries["jobset.sigs.k8s.io/coordinator"] == f"{name}-r1-1-0.{name}"
