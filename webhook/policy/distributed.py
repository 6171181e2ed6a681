"""Evidence on a pod that its job has more than one rank: processes on several GPUs that work together.

Such a job was sized for a GPU for each rank, and KAI places pods of one job with shares on the same GPU (seen
on v0.17.0). The evidence is the closed table below: names that launchers and controllers write on the pod
before the webhook reads it. A user can write the same names and gains nothing: the pod keeps a whole GPU,
which counts in its queue. Ray, Volcano, Grove, Spark, a plain or an Indexed Job, a Deployment and a
StatefulSet are no evidence, because their pods do not show a number of ranks.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from kai import keys
from kai.command_lines import beginning, program, script_words
from kai.one_command import TORCHRUN
from kai.pod import Container, PodView

MOST_RANKS: Final = 1_000_000
"""A larger number says nothing."""

_NUMBER = re.compile(r"(?:[0-9]{1,7}:)?([0-9]{1,7})")
NUMBER_FORM: Final = _NUMBER.pattern
"""A number, or a range such as `2:4`."""
_LONGEST_CLUSTER: Final = 1 << 20
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
    place: str = "variable"
    """Where the name is, for the documentation."""
    counts: str = "a number above 1, or a range such as `2:4`"
    """Which values are evidence, for the documentation."""


VARIABLES: Final = (
    Row(
        "WORLD_SIZE",
        "training-operator v1.9 pytorch/envvar.go, xgboost/xgboost.go;"
        " Volcano's plugin distributed-framework/pytorch; PyTorch",
    ),
    Row("PET_NNODES", "training-operator v1.7 and later pytorch/envvar.go; Trainer v2 constants.go; PyTorch"),
    Row("NNODES", "PyTorch's examples"),
    Row("JAX_NUM_PROCESSES", "Trainer v2 plugins/jax/jax.go"),
    Row("DMLC_NUM_WORKER", "Trainer v2 constants.go (XGBoost)"),
    Row("PADDLE_NNODES", "training-operator v1.9 paddlepaddle/envvar.go"),
    Row("LWS_GROUP_SIZE", "LeaderWorkerSet pod_webhook.go", "a LeaderWorkerSet"),
    Row("OMPI_COMM_WORLD_SIZE", "Open MPI"),
    Row("SLURM_NTASKS", "Slurm"),
)
"""Environment variables of the container with the GPU. `valueFrom` says nothing by itself."""

JAX_PROCESSES: Final = Row(
    "NUM_PROCESSES",
    "training-operator v1.9 jax/envvar.go",
    "a JAXJob",
    counts="a number above 1 in a pod of a JAXJob",
)
"""Variable of a JAXJob's pods; elsewhere it may count processes of one pod."""
LWS_SIZE: Final = Row(
    "leaderworkerset.sigs.k8s.io/size",
    "LeaderWorkerSet types.go",
    "a LeaderWorkerSet",
    place="annotation",
    counts="a number above 1",
)
"""Annotation."""
KUEUE_COUNT: Final = Row(
    "kueue.x-k8s.io/pod-group-total-count",
    "Kueue's plain pods",
    "a Kueue group",
    "pods",
    place="annotation",
    counts="a number above 1 beside the label `kueue.x-k8s.io/pod-group-name`, unless the group serves",
)
"""Annotation of the pods with the label `KUEUE_GROUP`."""
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_SERVING: Final = "kueue.x-k8s.io/pod-group-serving"
"""Annotation of a group of replicas, such as those of a StatefulSet, which are no ranks."""
JOB_SET: Final = tuple(
    Row(
        f"jobset.sigs.k8s.io/{name}",
        "JobSet jobset_types.go",
        "a JobSet",
        "jobs",
        place="label or annotation",
        counts="a number above 1, if nothing else on the pod shows a number",
    )
    for name in ("replicatedjob-replicas", "global-replicas")
)
"""Labels and annotations of JobSet. They count Jobs and not ranks, and Trainer v2 adds Jobs that prepare
data. A number elsewhere on the pod therefore overrules them."""

MPI_JOB: Final = Row(
    "MPIJob",
    "training-operator v1.9 mpijob_controller.go; mpi-operator",
    "an MPIJob",
    place="owner",
    counts="any MPIJob of the group `kubeflow.org`",
)
"""Kind of the owner. Its pods show no number, and a single rank needs no MPIJob."""
MPI_OPERATOR: Final = Row(
    "training.kubeflow.org/operator-name",
    "mpi-operator v2beta1 constants.go",
    "an MPIJob",
    place="label",
    counts="`mpi-operator`",
)
"""Label with the value `MPI_OPERATOR_NAME`: a Job owns the pod of the launcher."""
MPI_OPERATOR_NAME: Final = "mpi-operator"
CLUSTER: Final = Row(
    "TF_CONFIG",
    "training-operator v1.9 tensorflow/tensorflow.go; Volcano's plugin distributed-framework/tensorflow;"
    " TensorFlow",
    "a TF_CONFIG",
    "tasks",
    counts="a cluster of several tasks, or with dynamic workers",
)
"""Variable with a cluster as JSON. The operator writes it for jobs with several pods only."""
NODES_OPTION: Final = Row("--nnodes", "PyTorch", "torchrun's --nnodes", place="option of torchrun")
RENDEZVOUS: Final = tuple(
    Row(name, "PyTorch", counts="set beside the other one, if nothing else on the pod shows a number")
    for name in ("MASTER_ADDR", "RANK")
)
"""Variables that count together, with a value or a reference."""
TRAINING_GROUP: Final = "kubeflow.org"
JAX_JOB: Final = "JAXJob"
TRAINING_JOBS: Final = {
    "JAXJob": "a JAXJob",
    "MPIJob": "an MPIJob",
    "PaddleJob": "a PaddleJob",
    "PyTorchJob": "a PyTorchJob",
    "TFJob": "a TFJob",
    "XGBoostJob": "an XGBoostJob",
}
"""Kinds of the group `kubeflow.org` whose controllers create pods (training-operator v1.9)."""
RANK_KINDS: Final = frozenset(TRAINING_JOBS)
"""Kinds of controllers whose pods are ranks. A Job owns the pods of a JobSet and of a TrainJob, and a
StatefulSet those of a LeaderWorkerSet, so the kind of their controller does not show them."""
TORCH_PROGRAMS: Final = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_MOST_COMMANDS: Final = 16
"""Maximum number of torchrun's commands that are read in one script."""
_REFERENCE: Final = re.compile(r"\$(?:\(([A-Za-z_]\w{0,62})\)|\{([A-Za-z_]\w{0,62})\}|([A-Za-z_]\w{0,62}))")
"""A reference of Kubernetes, `$(NAME)`, or of a shell."""
LONGEST_NUMBER: Final = 16
"""Maximum length of a number of ranks, or of a range, in characters."""


class _Task(Struct):
    cluster: dict[str, list[str] | dict[str, str] | None] | None = None
    """Tasks by type. With dynamic workers, the workers are a map that has one of them only."""


_task = msgspec.json.Decoder(_Task).decode


def evidence_of(pod: PodView, container: Container) -> Evidence | None:
    """Return the evidence that the pod is a rank of a job with more than one; None without evidence.

    `container` is the one with the GPU.
    """
    kinds = (owner.kind for owner in pod.owners if owner.group == TRAINING_GROUP)
    kind = next((kind for kind in kinds if kind in TRAINING_JOBS), None) or ""
    values = container.variable_values
    numbers = _numbers(pod, container, values, kind)
    largest = max(numbers, key=lambda evidence: evidence.ranks or 0, default=None)
    if largest is not None and largest.ranks != 1:
        return largest
    if kind == MPI_JOB.name or pod.labels.get(MPI_OPERATOR.name) == MPI_OPERATOR_NAME:
        return Evidence(MPI_JOB.workload)
    if largest is not None:
        return None
    if all(row.name in values for row in RENDEZVOUS):
        return Evidence("MASTER_ADDR and RANK are set")
    return _of_job_set(pod)


def evidence_of_share(pod: PodView) -> Evidence | None:
    """Return the evidence of a pod that has a share, in the container that the share is for."""
    named = pod.annotations.get(keys.CONTAINER_NAME)
    first = pod.containers[0] if pod.containers else None
    container = next((container for container in pod.containers if container.name == named), first)
    return None if container is None else evidence_of(pod, container)


def _numbers(pod: PodView, container: Container, values: Mapping[str, str], kind: str) -> Iterator[Evidence]:
    """Yield each number of ranks on the pod, also 1; without a number only a cluster with dynamic workers."""
    workload = TRAINING_JOBS.get(kind, "")
    for row in VARIABLES:
        yield from _number(values, row, workload)
    if kind == JAX_JOB:
        yield from _number(values, JAX_PROCESSES)
    yield from _of_cluster(values.get(CLUSTER.name, ""), workload)
    yield from _number(pod.annotations, LWS_SIZE)
    if KUEUE_GROUP in pod.labels and pod.annotations.get(KUEUE_SERVING) != "true":
        yield from _number(pod.annotations, KUEUE_COUNT)
    nodes = _torch_nodes(container, values)
    if nodes:
        yield Evidence(NODES_OPTION.workload, nodes)


def _of_job_set(pod: PodView) -> Evidence | None:
    for row in JOB_SET:
        for values in (pod.labels, pod.annotations):
            for jobs in _number(values, row):
                if jobs.ranks != 1:
                    return jobs
    return None


def _number(values: Mapping[str, str], row: Row, workload: str = "") -> Iterator[Evidence]:
    """Yield the number of a row, if the pod has one."""
    text = values.get(row.name)  # most pods have none of the rows
    if text and (ranks := _largest(text)):
        yield Evidence(row.workload or workload or row.name, ranks, row.unit)


def _largest(text: str) -> int:
    """Read a number of ranks, or the larger end of a range; 0 for any other text."""
    match = _NUMBER.fullmatch(text)
    ranks = int(match[1]) if match else 0
    return ranks if ranks <= MOST_RANKS else 0


def _of_cluster(text: str, workload: str) -> Iterator[Evidence]:
    """Yield the number of tasks of a `TF_CONFIG`; nothing if it cannot be read."""
    if not text or len(text) > _LONGEST_CLUSTER:
        return
    try:
        cluster = _task(text.encode()).cluster or {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    if any(isinstance(tasks, dict) for tasks in cluster.values()):
        yield Evidence(workload or "TF_CONFIG has dynamic workers")
        return
    tasks = sum(len(tasks or ()) for tasks in cluster.values())
    if tasks:
        yield Evidence(workload or CLUSTER.workload, tasks, CLUSTER.unit)


def _torch_nodes(container: Container, values: Mapping[str, str]) -> int:
    """Return the largest value of torchrun's own option `--nnodes`; 0 if there is none.

    References such as `$(NODES)` and `$NODES` stand for `values`, the container's environment.
    """
    if b"torch" not in bytes(container.command) + bytes(container.args):
        return 0
    line = [_expanded(word, values) for word in beginning(container.command_line)]
    words = script_words(beginning(line))  # values may be longer than their references
    starts = [index for index, word in enumerate(words) if program(word) in TORCH_PROGRAMS]
    return max((_nodes(words[index + 1 :]) for index in starts[:_MOST_COMMANDS]), default=0)


def _nodes(words: Sequence[str]) -> int:
    """Return the value of `--nnodes` before the program that torchrun starts; 0 if there is none."""
    takes_value = False
    for index, word in enumerate(words):
        if not word.startswith("-"):
            if not takes_value:
                break  # the program; its arguments are not torchrun's
            takes_value = False
            continue
        name, equals, value = word.partition("=")
        if name == NODES_OPTION.name or name == NODES_OPTION.name[:-1]:  # argparse knows the beginning, too
            return _largest(value if equals else "".join(words[index + 1 : index + 2]))
        takes_value = not equals and name.replace("_", "-") not in TORCHRUN.flags.split()
    return 0


def _expanded(word: str, values: Mapping[str, str]) -> str:
    """Replace references to variables with short values."""

    def value_of(reference: re.Match[str]) -> str:
        value = values.get(reference[1] or reference[2] or reference[3])
        return value if value and len(value) <= LONGEST_NUMBER else reference[0]

    return _REFERENCE.sub(value_of, word) if "$" in word else word
