"""Evidence on a pod that its job has more than one rank: processes on several GPUs that work together.

Such a job was sized for a GPU for each rank, and KAI places pods of one job with shares on the same GPU (seen
on v0.17.0). The evidence is the closed table below: names that launchers and controllers write on the pod
before the webhook reads it. A user can write the same names and gains nothing: the pod keeps a whole GPU,
which counts in its queue. Ray, Volcano, Grove, Spark, a plain or an Indexed Job, a Deployment and a
StatefulSet are no evidence, because their pods do not show a number of ranks.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from kai.command_lines import beginning, option_value, program, script_words
from kai.pod import Container, PodView

MOST_RANKS: Final = 1_000_000
"""A larger number says nothing."""

_NUMBER: Final = re.compile(r"(?:[0-9]{1,7}:)?([0-9]{1,7})")
"""A number, or a range such as `2:4`."""
_LONGEST_CLUSTER: Final = 65_536
"""Maximum length of `TF_CONFIG`, in characters."""


class Evidence(Struct, frozen=True):
    """Why a pod counts as a rank of a distributed job."""

    workload: str
    """The workload with its article, such as `a PyTorchJob`; or the name that shows the number."""
    ranks: int | None = None
    """Number of ranks; None if the pod does not show it."""
    unit: str = "ranks"

    def __str__(self) -> str:
        if self.ranks is None:
            return self.workload
        joint = "of" if self.workload.startswith(("a ", "an ")) else "is"
        unit = f" {self.unit}" if joint == "of" else ""
        return f"{self.workload} {joint} {self.ranks}{unit}"


class Row(Struct, frozen=True):
    """One row of the table: a name on the pod whose value is a number of ranks."""

    name: str
    source: str
    """The project and file that writes the name."""
    workload: str = ""
    """The workload that the name shows, with its article; empty if several write it."""
    unit: str = "ranks"


VARIABLES: Final = (
    Row("WORLD_SIZE", "training-operator v1.9 pytorch/envvar.go, xgboost/xgboost.go; PyTorch"),
    Row("PET_NNODES", "training-operator v1.9 pytorch/elastic.go; Trainer v2 constants.go; PyTorch"),
    Row("NNODES", "PyTorch's examples"),
    Row("PADDLE_NNODES", "training-operator v1.9 paddlepaddle/envvar.go"),
    Row("LWS_GROUP_SIZE", "LeaderWorkerSet pod_webhook.go", "a LeaderWorkerSet"),
    Row("OMPI_COMM_WORLD_SIZE", "Open MPI"),
    Row("SLURM_NTASKS", "Slurm"),
)
"""Environment variables of the container with the GPU. `valueFrom` says nothing by itself."""

JAX_PROCESSES: Final = Row("NUM_PROCESSES", "training-operator v1.9 jax/envvar.go", "a JAXJob")
"""Variable of a JAXJob's pods; elsewhere it may count processes of one pod."""
LWS_SIZE: Final = Row("leaderworkerset.sigs.k8s.io/size", "LeaderWorkerSet types.go", "a LeaderWorkerSet")
"""Annotation."""
KUEUE_COUNT: Final = Row(
    "kueue.x-k8s.io/pod-group-total-count", "Kueue's plain pods", "a Kueue pod group", "pods"
)
"""Annotation of the pods with the label `KUEUE_GROUP`."""
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_SERVING: Final = "kueue.x-k8s.io/pod-group-serving"
"""Annotation of a group of replicas, such as those of a StatefulSet, which are no ranks."""
JOB_SET: Final = (
    Row("jobset.sigs.k8s.io/replicatedjob-replicas", "JobSet jobset_types.go", "a JobSet", "jobs"),
    Row("jobset.sigs.k8s.io/global-replicas", "JobSet jobset_types.go", "a JobSet", "jobs"),
)
"""Labels and annotations of JobSet. They count Jobs and not ranks, and Trainer v2 adds Jobs that prepare
data. A number elsewhere on the pod therefore overrules them."""

MPI_OPERATOR: Final = "training.kubeflow.org/operator-name"
"""Label of the mpi-operator's pods with the value `mpi-operator` (mpi-operator v2beta1 constants.go)."""
CLUSTER: Final = "TF_CONFIG"
"""Variable with the cluster of a TFJob, as JSON (training-operator v1.9 tensorflow/tensorflow.go)."""
_TRAINING_GROUP: Final = "kubeflow.org"
_ARTICLES: Final = {"MPIJob": "an", "XGBoostJob": "an"}
_TORCH: Final = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


class _Task(Struct):
    cluster: dict[str, list[Any]] | None = None


_task = msgspec.json.Decoder(_Task).decode


def evidence_of(pod: PodView, container: Container) -> Evidence | None:
    """Return the evidence that the pod is a rank of a job with more than one; None without evidence.

    Args:
        pod: the pod at its creation.
        container: the container with the GPU.
    """
    owner = next((owner for owner in pod.owners if owner.group == _TRAINING_GROUP and owner.kind), None)
    kind = (owner.kind or "") if owner else ""
    largest = max(_numbers(pod, container, kind), key=lambda evidence: evidence.ranks or 0, default=None)
    if largest is not None and largest.ranks != 1:
        return largest
    if kind == "MPIJob" or pod.labels.get(MPI_OPERATOR) == "mpi-operator":
        return Evidence("an MPIJob")  # its pods show no number, and a single rank needs no MPIJob
    if largest is not None:
        return None
    names = {variable.get("name") for variable in container.variables if isinstance(variable, dict)}
    if {"MASTER_ADDR", "RANK"} <= names:
        return Evidence("MASTER_ADDR and RANK are set")
    return _of_job_set(pod)


def _numbers(pod: PodView, container: Container, kind: str) -> Iterator[Evidence]:
    """Yield each readable number of ranks on the pod, also 1."""
    workload = f"{_ARTICLES.get(kind, 'a')} {kind}" if kind else ""
    values = _values(container.variables)
    for row in VARIABLES:
        yield from _number(values, row, workload)
    if kind == "JAXJob":
        yield from _number(values, JAX_PROCESSES)
    ranks = _ranks_of_cluster(values.get(CLUSTER, ""))
    if ranks:
        yield Evidence(workload or f"{CLUSTER}'s number of tasks", ranks)
    yield from _number(pod.annotations, LWS_SIZE)
    if KUEUE_GROUP in pod.labels and pod.annotations.get(KUEUE_SERVING) != "true":
        yield from _number(pod.annotations, KUEUE_COUNT)
    nodes = _torch_nodes(container)
    if nodes:
        yield Evidence("torchrun's --nnodes", nodes)


def _of_job_set(pod: PodView) -> Evidence | None:
    for row in JOB_SET:
        for values in (pod.labels, pod.annotations):
            for jobs in _number(values, row):
                if jobs.ranks != 1:
                    return jobs
    return None


def _number(values: Mapping[str, str], row: Row, workload: str = "") -> Iterator[Evidence]:
    """Yield the number of a row, if the pod has one."""
    ranks = _largest(values.get(row.name, ""))
    if ranks:
        yield Evidence(row.workload or workload or row.name, ranks, row.unit)


def _largest(text: str) -> int:
    """Read a number of ranks, or the larger end of a range; 0 for any other text."""
    match = _NUMBER.fullmatch(text)
    ranks = int(match[1]) if match else 0
    return ranks if ranks <= MOST_RANKS else 0


def _values(variables: Sequence[Any]) -> Mapping[str, str]:
    """Return the variables with a value; of several with one name the last one counts, as for the kubelet."""
    return {
        variable["name"]: variable["value"]
        for variable in variables
        if isinstance(variable, dict)
        and isinstance(variable.get("name"), str)
        and isinstance(variable.get("value"), str)
    }


def _ranks_of_cluster(text: str) -> int:
    """Count the tasks of a `TF_CONFIG`; 0 if it cannot be read."""
    if not text or len(text) > _LONGEST_CLUSTER:
        return 0
    try:
        cluster = _task(text.encode()).cluster or {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return 0
    return min(sum(map(len, cluster.values())), MOST_RANKS)


def _torch_nodes(container: Container) -> int:
    """Return the value of torchrun's option `--nnodes`; 0 if there is none."""
    if b"torch" not in bytes(container.command) + bytes(container.args):
        return 0
    words = script_words(beginning(container.command_line))
    if not any(program(word) in _TORCH for word in words):
        return 0
    return _largest(option_value("--nnodes", words) or "")
