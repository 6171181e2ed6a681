"""The cause of every recorded state of three releases of KAI, as administrator and with the role edit."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from console.cluster.facts import Fact
from console.why.core import explain
from console.why.explanation import Code
from kube.kinds import decode_pod_with_document
from tests.support.why_states import RELEASES, State, folder, states

pytestmark = pytest.mark.skipif(folder() is None, reason="set KAISHARE_FIXTURES to the recorded objects")

_RUNNING = (Code.RUNNING, Code.RUNNING)
_EXPECTED: dict[tuple[str, str], tuple[Code, Code]] = {
    # state and pod (without generated suffix): code for an administrator, code with the role edit
    ("01", "train-1"): (Code.QUEUE_MISSING, Code.QUEUE_MISSING),
    ("02b", "train-1"): (Code.QUEUE_MISSING, Code.QUEUE_MISSING),
    ("03", "train-1"): (Code.QUEUE_NOT_LEAF, Code.UNDECIDED),
    ("04", "build-2"): (Code.QUEUE_OVER_QUOTA, Code.QUEUE_OVER_QUOTA),
    ("04", "build-share"): (Code.QUEUE_OVER_QUOTA, Code.QUEUE_OVER_QUOTA),
    ("04d", "server"): (Code.QUEUE_OVER_QUOTA, Code.QUEUE_OVER_QUOTA),
    ("05", "share-1"): (Code.QUEUE_OVER_LIMIT, Code.QUEUE_OVER_LIMIT),
    ("05", "train-2"): (Code.QUEUE_OVER_LIMIT, Code.QUEUE_OVER_LIMIT),
    ("06", "share-1"): (Code.QUEUE_OVER_LIMIT, Code.QUEUE_OVER_LIMIT),
    ("06", "train-2"): (Code.QUEUE_OVER_LIMIT, Code.QUEUE_OVER_LIMIT),
    ("07a", "share-1"): (Code.NO_GPU_FITS, Code.NO_GPU_FITS),
    ("07a", "train-1"): (Code.NO_GPU_FITS, Code.NO_GPU_FITS),
    ("07b", "greedy-train"): (Code.NO_GPU_FITS, Code.NO_GPU_FITS),
    ("08", "train"): (Code.QUEUE_OVER_LIMIT, Code.QUEUE_OVER_LIMIT),
    ("09", "memory-3"): (Code.NO_GPU_FITS, Code.NO_GPU_FITS),
    ("09", "share-3"): (Code.NO_GPU_FITS, Code.NO_GPU_FITS),
    ("09", "whole-3"): (Code.NO_GPU_FITS, Code.NO_GPU_FITS),
    ("10", "train-1"): (Code.GPU_MEMORY_TOO_BIG, Code.GPU_MEMORY_TOO_BIG),
    ("11", "memory-1"): (Code.GPU_MEMORY_LABEL_MISSING, Code.GPU_MEMORY_LABEL_MISSING),
    ("12a", "train-1"): (Code.NODE_TOO_SMALL, Code.NODE_TOO_SMALL),
    ("12b", "share-1"): (Code.NODE_SELECTOR_MATCHES_NONE, Code.NODE_SELECTOR_MATCHES_NONE),
    ("12b", "train-1"): (Code.NODE_SELECTOR_MATCHES_NONE, Code.NODE_SELECTOR_MATCHES_NONE),
    ("12c", "share-1"): (Code.TAINT_NOT_TOLERATED, Code.TAINT_NOT_TOLERATED),
    ("12c", "train-1"): (Code.TAINT_NOT_TOLERATED, Code.TAINT_NOT_TOLERATED),
    ("12d", "share-1"): (Code.NODE_TOO_SMALL, Code.NODE_TOO_SMALL),
    ("12d", "train-1"): (Code.NODE_TOO_SMALL, Code.NODE_TOO_SMALL),
    ("12f", "memory-1"): (Code.NO_GPU_NODES, Code.NO_GPU_FITS),
    ("12f", "share-1"): (Code.NO_GPU_NODES, Code.NO_GPU_NODES),
    ("12f", "train-1"): (Code.NO_GPU_NODES, Code.NO_GPU_NODES),
    ("12g", "share-1"): (Code.NODES_CORDONED, Code.NODES_CORDONED),
    ("12g", "train-1"): (Code.NODES_CORDONED, Code.NODES_CORDONED),
    ("13", "server"): (Code.GPU_SHARING_OFF, Code.GPU_SHARING_OFF),
    ("14", "llm-master-0"): (Code.GANG_DOES_NOT_FIT, Code.GANG_DOES_NOT_FIT),
    ("14", "llm-worker-0"): (Code.GANG_DOES_NOT_FIT, Code.GANG_DOES_NOT_FIT),
    ("14", "llm-worker-1"): (Code.GANG_DOES_NOT_FIT, Code.GANG_DOES_NOT_FIT),
    ("14", "llm-worker-2"): (Code.GANG_DOES_NOT_FIT, Code.GANG_DOES_NOT_FIT),
    ("14b", "llm-master-0"): (Code.GANG_INCOMPLETE, Code.GANG_INCOMPLETE),
    ("14b", "llm-worker-0"): (Code.GANG_INCOMPLETE, Code.GANG_INCOMPLETE),
    ("14c", "rank-0"): (Code.GANG_DOES_NOT_FIT, Code.GANG_DOES_NOT_FIT),
    ("14c", "rank-1"): (Code.GANG_DOES_NOT_FIT, Code.GANG_DOES_NOT_FIT),
    ("14c", "rank-2"): (Code.GANG_DOES_NOT_FIT, Code.GANG_DOES_NOT_FIT),
    ("14c", "rank-3"): (Code.GANG_DOES_NOT_FIT, Code.GANG_DOES_NOT_FIT),
    ("15", "ddp-master-0"): (Code.RANKS_SHARE_GPU, Code.RANKS_SHARE_GPU),
    ("15", "ddp-worker-0"): (Code.RANKS_SHARE_GPU, Code.RANKS_SHARE_GPU),
    ("16", "share-1"): (Code.RESERVATION_NOT_READY, Code.RESERVATION_NOT_READY),
    ("16a", "share-1"): (Code.RESERVATION_NOT_READY, Code.UNDECIDED),
    ("17", "share-1"): (Code.KAI_ADMISSION_MISSED, Code.KAI_ADMISSION_MISSED),
    ("18", "share-1"): (Code.OTHER_SCHEDULER, Code.OTHER_SCHEDULER),
    ("18", "whole-1"): (Code.OTHER_SCHEDULER, Code.OTHER_SCHEDULER),
    ("18b", "share-1"): (Code.SCHEDULER_UNKNOWN, Code.SCHEDULER_UNKNOWN),
    ("18b", "train-1"): (Code.SCHEDULER_UNKNOWN, Code.SCHEDULER_UNKNOWN),
    ("19", "share-1"): (Code.SCHEDULING_GATE, Code.SCHEDULING_GATE),
    ("19", "train-1"): (Code.SCHEDULING_GATE, Code.SCHEDULING_GATE),
    ("20", "train-1"): (Code.PRIORITY_CLASS_IGNORED, Code.RUNNING),
    ("21", "server"): (Code.RUNTIME_CLASS_MISSING, Code.RUNTIME_CLASS_MISSING),
    ("22", "server"): (Code.RESOURCE_QUOTA_EXCEEDED, Code.RESOURCE_QUOTA_EXCEEDED),
    ("23", "server"): (Code.QUEUE_OF_OWNER, Code.QUEUE_OF_OWNER),
    ("25", "share-1"): (Code.CLAIM_NOT_BOUND, Code.CLAIM_NOT_BOUND),
    ("25", "train-1"): (Code.CLAIM_NOT_BOUND, Code.CLAIM_NOT_BOUND),
    ("26", "train-1"): (Code.NODE_POOL_WITHOUT_SHARD, Code.UNDECIDED),
    ("26b", "train-1"): (Code.TOPOLOGY_MISSING, Code.TOPOLOGY_MISSING),
    ("27a", "share-1"): (Code.POD_GROUP_MISSING, Code.POD_GROUP_MISSING),
    ("27a", "train-1"): (Code.POD_GROUP_MISSING, Code.POD_GROUP_MISSING),
    ("27c", "share-1"): (Code.BINDER_SILENT, Code.UNDECIDED),
    ("27c", "train-1"): (Code.BINDER_SILENT, Code.UNDECIDED),
    ("27d", "train-1"): (Code.ACCOUNTING_MISSING, Code.RUNNING),
    ("27e", "server"): (Code.WEBHOOK_UNREACHABLE, Code.WEBHOOK_UNREACHABLE),
    ("29", "ddp"): (Code.GANG_STALE, Code.GANG_STALE),
}
"""Causes of the pods and workloads that do not run, or not as they should; every other pod runs."""

_OF_RELEASE: dict[tuple[str, str, str], tuple[Code, Code]] = {
    ("kai-v0.13.4", "02c", "vision-0"): (Code.NO_GPU_FITS, Code.NO_GPU_FITS),
    ("kai-v0.13.4", "02c", "vision-1"): (Code.NO_GPU_FITS, Code.UNDECIDED),
    ("kai-v0.13.4", "15b", "ddp-master-0"): (Code.NO_RESERVATION, Code.RUNNING),
    ("kai-v0.13.4", "16a", "share-1"): (Code.RESERVATION_NOT_READY, Code.RESERVATION_NOT_READY),
    ("kai-v0.9.8", "01", "train-1"): (Code.QUEUE_MISSING, Code.UNDECIDED),
    ("kai-v0.9.8", "02", "share-1"): (Code.QUEUE_WITHOUT_PARENT, Code.UNDECIDED),
    ("kai-v0.9.8", "02", "train-1"): (Code.QUEUE_WITHOUT_PARENT, Code.UNDECIDED),
    ("kai-v0.9.8", "02b", "train-1"): (Code.QUEUE_MISSING, Code.UNDECIDED),
    **{
        ("kai-v0.9.8", "02c", f"lonely-{number}"): (Code.QUEUE_WITHOUT_PARENT, Code.UNDECIDED)
        for number in range(4)
    },
    ("kai-v0.9.8", "26", "train-1"): _RUNNING,
}
"""Where a release differs."""


def targets() -> Iterator[tuple[State, str, str]]:
    """Yield each state with the kind and name of what is asked for: each pod, else each workload."""
    for release in RELEASES:
        for state in states(release):
            pods = state.pods()
            yield from ((state, "Pod", pod.name) for pod in pods)
            owned = {owner.kind for pod in pods for owner in pod.metadata.owner_references}
            for item in state.items("owners"):
                if item["kind"] not in ("ReplicaSet", *owned) and "ReplicaSet" not in owned:
                    yield state, item["kind"], item["metadata"]["name"]


def expected_codes(state: State, kind: str, name: str) -> tuple[Code, Code]:
    number = state.path.name.partition("-")[0]
    stem = (
        re.sub(r"(-[0-9a-z]{8,10})?-[0-9a-z]{5}$", "", name)
        if kind == "Pod" and _is_generated(name)
        else name
    )
    release = state.path.parent.name
    return _OF_RELEASE.get((release, number, stem)) or _EXPECTED.get((number, stem), _RUNNING)


def _is_generated(name: str) -> bool:
    return re.search(r"-[0-9a-z]{8,10}-[0-9a-z]{5}$|^batch-", name) is not None


def _id(value: object) -> str:
    return f"{value.path.parent.name}/{value.path.name}" if isinstance(value, State) else str(value)


@pytest.mark.parametrize(("state", "kind", "name"), list(targets()), ids=_id)
def test_the_cause_of_a_recorded_state_is_found(state: State, kind: str, name: str) -> None:
    evidence = state.evidence(name, kind=kind)
    is_bound = evidence.pod.known is not None and evidence.pod.known.is_bound
    # Some pods of these workloads wait, because KAI evicted others; the rest runs.
    is_survivor = is_bound and state.path.name.startswith(("07b", "08"))
    expected = _RUNNING if is_survivor else expected_codes(state, kind, name)
    answer = explain(evidence)
    with_edit = explain(state.evidence(name, kind=kind, is_edit=True))
    assert (answer.cause.code, with_edit.cause.code) == expected
    assert answer.is_fine == (answer.cause.code.is_fine and answer.state == "Running")
    if not answer.cause.code.is_fine:
        assert answer.cause.remedies


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("number", "code"),
    [("07b", Code.EVICTED), ("08", Code.EVICTED), ("24b", Code.POD_DELETED), ("29", Code.GANG_STALE)],
)
def test_events_tell_how_a_pod_that_is_gone_has_ended(release: str, number: str, code: Code) -> None:
    state = next(state for state in states(release) if state.path.name.startswith(f"{number}-"))
    gone = {item["metadata"]["name"] for item in state.items("pod-deleted")} - {
        pod.name for pod in state.pods()
    }
    assert gone
    for name in gone:
        for is_edit in (False, True):
            answer = explain(state.evidence(name, is_edit=is_edit))
            assert (answer.state, answer.cause.code) == ("No pod", code), name


@pytest.mark.parametrize(
    ("number", "name", "words"),
    [
        ("02b", "train-1", "has the parent deleted-department, which does not exist"),
        ("03", "train-1", "to one of its child queues: in a new pod"),
        ("05", "train-2", "limit-one may use 1 GPU and uses 1; the pod requests 1"),
        (
            "06",
            "train-2",
            "limited-department, above the pod's queue limited-team-b, may use 1 GPU and uses 1",
        ),
        ("09", "share-3", "the largest free part of a shared GPU is at most 0.4 (0.8 in 2 parts)"),
        ("09", "memory-3", "the largest free part of a shared GPU is at most 0.4 (0.8 in 2 parts)"),
        ("12a", "train-1", "no node has more than 2"),
        ("12d", "share-1", "64 CPU cores, and no node has more than 16 cores"),
        ("14c", "rank-0", "needs 4 pods at the same time, and KAI finds room for 2"),
        ("17", "share-1", "kubectl delete pod share-1"),
        ("18", "share-1", "its share of 0.5 of a GPU is ignored, and it runs without a GPU"),
        ("25", "train-1", "kubectl describe persistentvolumeclaim data"),
    ],
)
@pytest.mark.parametrize("release", RELEASES)
def test_the_sentence_and_the_remedy_name_figures_and_objects(
    release: str, number: str, name: str, words: str
) -> None:
    state = next(state for state in states(release) if state.path.name.startswith(f"{number}-"))
    cause = explain(state.evidence(name)).cause
    text = " ".join([cause.sentence, *(f"{each.text} {each.command}" for each in cause.remedies)])
    assert words in text


def test_a_request_above_the_limit_of_the_queue_can_never_start() -> None:
    state = next(state for state in states("kai-v0.17.0") if state.path.name.startswith("05-"))
    evidence = state.evidence("train-2")
    assert evidence.pod.known is not None
    condition = evidence.pod.known.status.condition("PodScheduled")
    assert condition is not None
    text = condition.message.replace("workload requested 1 GPUs", "workload requested 3 GPUs")
    document = evidence.pod.known.document.replace(condition.message.encode(), text.encode())
    cause = explain(replace(evidence, pod=Fact(decode_pod_with_document(document)))).cause
    assert cause.code is Code.QUEUE_OVER_LIMIT
    assert "it can never start there" in cause.sentence
