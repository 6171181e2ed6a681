"""Causes in the pod's queue: KAI's words about a full queue, and how to name another queue."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from console.why.core import explain
from console.why.evidence import Absence, PodEvidence, PolicyDecision
from console.why.evidence_objects import WorkloadObject, decode_workload
from console.why.explanation import Code, PodFinding
from kai import keys
from tests.support.why_evidence import make_evidence, make_node, make_pod, make_pod_group, make_queue

_EDIT = "kubectl edit queues.scheduling.run.ai"
_LIST = "kubectl get queues.scheduling.run.ai"


def _limit(queue: str = "vision", *, requested: str = "0.5") -> str:
    return (
        f"{queue} quota has reached the allowable limit of GPUs. Limit is 1 GPUs, currently 1 GPUs allocated and"
        f" workload requested {requested} GPUs"
    )


def _quota(queue: str = "vision", *, requested: str = "0.5") -> str:
    return (
        f"Non-preemptible workload is over quota. Workload requested {requested} GPUs, but {queue} quota is 1 GPUs,"
        " while 1 GPUs are already allocated for non-preemptible pods. Use a preemptible workload to go over"
        " quota."
    )


def _of_nodes(*lines: str) -> str:
    text = " \n".join(lines)
    return (
        "PodSchedulingErrors: Resources were not found for pod team/train-0 due to: no nodes with enough resources"
        f" were found: {text}. \n"
    )


def _on_node(reason: str, details: str) -> str:
    return f"1 node does not have enough capacity. Reason: {reason}, Details: {details}"


def _cause(words: str, **fields: Any) -> PodFinding:
    return explain(make_evidence(make_pod(unschedulable=words), **fields)).cause


def _commands(cause: PodFinding) -> list[str]:
    return [remedy.command for remedy in cause.remedies if remedy.command]


def _remedies(evidence: PodEvidence) -> list[str]:
    return [remedy.text for remedy in explain(evidence).cause.remedies]


class TestGpuMemory:
    """KAI compares the share of a gpu-memory pod with its queue node by node."""

    @pytest.mark.parametrize(
        ("reason", "details", "code"),
        [
            ("OverLimit", _limit(), Code.QUEUE_OVER_LIMIT),
            ("NonPreemptibleOverQuota", _quota(), Code.QUEUE_OVER_QUOTA),
        ],
    )
    def test_a_full_queue_is_the_cause(self, reason: str, details: str, code: Code) -> None:
        pod = make_pod(
            fraction=None,
            annotations={keys.GPU_MEMORY: "12000"},
            unschedulable=_of_nodes(
                "2 node(s) didn't have enough resources: GPUs.", _on_node(reason, details)
            ),
        )
        cause = explain(make_evidence(pod, nodes=[make_node()], shared_gpu_pods=[])).cause
        assert cause.code is code
        assert "the queue vision" in cause.sentence
        assert "the pod requests 0.5" in cause.sentence
        assert _commands(cause) == [f"{_EDIT} vision"]

    def test_the_node_with_the_smallest_share_counts(self) -> None:
        lines = [_on_node("OverLimit", _limit(requested=each)) for each in ("1.5", "0.25", "0.75")]
        assert _cause(_of_nodes(*lines)).details["requested"] == 0.25

    def test_a_share_above_the_limit_may_fit_on_larger_gpus(self) -> None:
        sentence = _cause(_of_nodes(_on_node("OverLimit", _limit(requested="1.5")))).sentence
        assert sentence.endswith("it can never start there on GPUs of this size")

    @pytest.mark.parametrize("unit", ["Reason: OverLimit, Details: ", "Reason: OverLimit, Details: a\n"])
    def test_a_long_text_leads_to_an_answer(self, unit: str) -> None:
        assert _cause(unit * 100_000).code is Code.QUEUE_OVER_LIMIT


class TestDisplayNames:
    """KAI's text has the display name of the queue, if it has one, and the PodGroup its name."""

    @pytest.mark.parametrize("words", [f"OverLimit: {_limit('Batch eval')}", _quota("Batch eval")])
    def test_the_queue_with_the_display_name_is_found(self, words: str) -> None:
        reason = "OverLimit" if words.startswith("OverLimit") else "NonPreemptibleOverQuota"
        queues = {
            "vision": make_queue(display_name="Batch eval"),
            "research": make_queue("research", parent=""),
        }
        text = words if words.startswith(reason) else f"{reason}: {words}"
        cause = _cause(text, queues=queues)
        assert "the queue vision" in cause.sentence
        assert "above" not in cause.sentence
        assert _commands(cause) == [f"{_EDIT} vision"]

    def test_a_parent_is_named_as_one(self) -> None:
        queues = {
            "vision": make_queue(),
            "research": make_queue("research", parent="", display_name="All of Research"),
        }
        cause = _cause(f"OverLimit: {_limit('All of Research')}", queues=queues)
        assert cause.sentence.startswith("the queue research, above the pod's queue vision, may use 1 GPU")
        assert _commands(cause) == [f"{_EDIT} research"]
        quota = _cause(f"NonPreemptibleOverQuota: {_quota('All of Research')}", queues=queues)
        assert "the quota of the queue research, above the pod's queue vision: 1 GPU" in quota.sentence

    @pytest.mark.parametrize(
        "queues",
        [
            {"vision": make_queue(), "research": make_queue("research", parent="")},
            {"vision": Absence.FORBIDDEN},
            {
                "vision": make_queue(display_name="Batch eval"),
                "research": make_queue("research", parent="", display_name="Batch eval"),
            },
        ],
    )
    def test_no_queue_is_edited_whose_name_is_not_known(self, queues: Any) -> None:
        cause = _cause(f"OverLimit: {_limit('Batch eval')}", queues=queues)
        assert cause.sentence.startswith(
            "the queue Batch eval, which is the pod's queue vision or above it, may use 1 GPU"
        )
        assert _commands(cause) == [_LIST]

    def test_the_display_name_of_one_queue_may_be_the_name_of_another(self) -> None:
        queues = {
            "vision": make_queue(display_name="research"),
            "research": make_queue("research", parent="", display_name="Everything"),
        }
        assert _commands(_cause(f"OverLimit: {_limit('research')}", queues=queues)) == [f"{_EDIT} vision"]

    def test_the_pod_group_names_the_queue(self) -> None:
        words = f"OverLimit: {_limit('Batch eval')}"
        details = {"queueDetails": {"name": "research"}}
        group = make_pod_group(message=words, reason="OverLimit", details=details)
        cause = _cause(words, pod_group=group)
        assert cause.sentence.startswith("the queue research, above the pod's queue vision,")
        assert _commands(cause) == [f"{_EDIT} research"]

    def test_a_queue_that_the_pod_does_not_use_is_not_edited(self) -> None:
        words = f"OverLimit: {_limit('Batch eval')}"
        details = {"queueDetails": {"name": "finance"}}
        group = make_pod_group(message=words, reason="OverLimit", details=details)
        assert _commands(_cause(words, pod_group=group)) == []

    def test_the_pod_group_counts_only_for_the_same_words(self) -> None:
        details = {"queueDetails": {"name": "research"}}
        group = make_pod_group(
            message=f"OverLimit: {_limit('research')}", reason="OverLimit", details=details
        )
        assert _commands(_cause(f"OverLimit: {_limit()}", pod_group=group)) == [f"{_EDIT} vision"]

    @pytest.mark.parametrize(
        "details", [None, 1, "text", [], {}, {"queueDetails": None}, {"queueDetails": {"name": 1}}]
    )
    def test_details_of_another_form_are_ignored(self, details: Any) -> None:
        words = f"OverLimit: {_limit()}"
        group = make_pod_group(message=words, reason="OverLimit", details=details)
        assert _commands(_cause(words, pod_group=group)) == [f"{_EDIT} vision"]


@pytest.mark.parametrize(
    ("words", "amount", "remedy"),
    [
        (
            (
                "OverLimit: vision quota has reached the allowable limit of CPU cores. Limit is 10 cores, currently 8"
                " cores allocated and workload requested 4 cores"
            ),
            "may use 10 CPU cores and uses 8; the pod requests 4",
            "raise spec.resources.cpu.limit of the queue",
        ),
        (
            (
                "OverLimit: vision quota has reached the allowable limit of memory. Limit is 500 GB, currently 400 GB"
                " allocated and workload requested 200 GB"
            ),
            "may use 500 GB of memory and uses 400; the pod requests 200",
            "raise spec.resources.memory.limit of the queue",
        ),
        (
            (
                "NonPreemptibleOverQuota: Non-preemptible workload is over quota. Workload requested 4 CPU cores, but"
                " vision quota is 10 cores, while 8 cores are already allocated for non-preemptible pods."
            ),
            "10 CPU cores, of which 8 is used; the pod requests 4",
            "raise spec.resources.cpu.quota of the queue",
        ),
        (
            (
                "NonPreemptibleOverQuota: Non-preemptible workload is over quota. Workload requested 200 GB memory, but"
                " vision quota is 500 GB, while 400 GB are already allocated for non-preemptible pods."
            ),
            "500 GB of memory, of which 400 is used; the pod requests 200",
            "raise spec.resources.memory.quota of the queue",
        ),
    ],
)
def test_the_resource_that_is_used_up_is_named(words: str, amount: str, remedy: str) -> None:
    cause = _cause(words)
    assert amount in cause.sentence
    assert any(remedy in each.text for each in cause.remedies)


_JOB_SET = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "web", "uid": "u"}


def _owner(kind: str = "Deployment", name: str = "web", **fields: Any) -> WorkloadObject:
    return decode_workload(json.dumps({"kind": kind, "metadata": {"name": name}} | fields).encode())


def _template(**labels: str) -> dict[str, Any]:
    return {"template": {"metadata": {"labels": labels}}}


class TestAnotherQueue:
    """The label of the namespace is changed only where the pod has its queue from there."""

    @staticmethod
    def _evidence(owners: Sequence[WorkloadObject]) -> PodEvidence:
        return make_evidence(
            make_pod(labels={keys.QUEUE_LABEL: "visoin"}),
            pod_group=make_pod_group(queue="visoin"),
            queues={"visoin": Absence.MISSING},
            owners=owners,
            decision=PolicyDecision(reason="", now_reason="", now=""),
        )

    @pytest.mark.parametrize(
        "owner",
        [
            _owner(metadata={"name": "web", "labels": {keys.QUEUE_LABEL: "visoin"}}),
            _owner(spec=_template(**{keys.QUEUE_LABEL: "visoin"})),
        ],
    )
    def test_a_workload_that_names_its_queue_is_changed(self, owner: WorkloadObject) -> None:
        cause = explain(self._evidence([owner])).cause
        assert cause.code is Code.QUEUE_MISSING
        assert cause.remedies[0].text == (
            f"Set the label {keys.QUEUE_LABEL} to an existing queue without child queues: on Deployment web and in"
            " its pod template."
        )
        assert _commands(cause) == [_LIST]

    def test_a_workload_that_names_no_queue_has_that_of_the_namespace(self) -> None:
        cause = explain(self._evidence([_owner(spec=_template(app="web"))])).cause
        assert [remedy.text.partition(":")[0] for remedy in cause.remedies] == [
            "Policy owner",
            "Administrator",
        ]
        assert cause.remedies[0].command.startswith("kubectl label namespace team ")

    @pytest.mark.parametrize(
        "owners",
        [
            [],
            [_owner("RayCluster", "ray")],
            [_owner(spec={"template": "text"})],
            [
                _owner(
                    "Job",
                    metadata={
                        "name": "web",
                        "ownerReferences": [_JOB_SET],
                    },
                    spec=_template(app="web"),
                )
            ],
        ],
    )
    def test_both_are_told_where_the_origin_of_the_label_is_not_known(
        self, owners: list[WorkloadObject]
    ) -> None:
        texts = _remedies(self._evidence(owners))
        assert texts[0].startswith("Policy owner: unless the workload names its queue itself, name ")
        assert texts[1].startswith(f"If it does, set the label {keys.QUEUE_LABEL} to an existing queue")


class TestPreemptibility:
    """The label decides before the priority."""

    @staticmethod
    def _evidence(priority: str, owners: Sequence[WorkloadObject] = (), **labels: str) -> PodEvidence:
        pod = make_pod(unschedulable=f"NonPreemptibleOverQuota: {_quota()}", labels=labels)
        group = make_pod_group(priorityClassName=priority)
        return make_evidence(pod, pod_group=group, owners=owners)

    @pytest.mark.parametrize(
        ("owners", "labels", "place"),
        [
            ([], {keys.PREEMPTIBILITY: "non-preemptible"}, "in a new pod, which replaces this one"),
            (
                [_owner(metadata={"name": "web", "labels": {keys.PREEMPTIBILITY: "non-preemptible"}})],
                {},
                "on Deployment web and in its pod template",
            ),
        ],
    )
    def test_the_label_is_to_be_removed(
        self, owners: list[WorkloadObject], labels: dict[str, str], place: str
    ) -> None:
        evidence = self._evidence("train", owners, **labels)
        assert _remedies(evidence)[0].startswith(f"Remove the label {keys.PREEMPTIBILITY}, {place}. KAI may ")
        assert (
            f"not preemptible (label {keys.PREEMPTIBILITY}: non-preemptible)"
            in explain(evidence).cause.sentence
        )

    def test_a_priority_that_is_not_preemptible_is_to_be_changed_too(self) -> None:
        remedies = _remedies(self._evidence("inference", **{keys.PREEMPTIBILITY: "non-preemptible"}))
        assert remedies[0].startswith(
            f"Remove the label {keys.PREEMPTIBILITY} and set {keys.PRIORITY_LABEL}: train, in a new pod"
        )

    @pytest.mark.parametrize("labels", [{}, {keys.PREEMPTIBILITY: "preemptible"}])
    def test_without_the_label_the_priority_decides(self, labels: dict[str, str]) -> None:
        evidence = self._evidence("inference", **labels)
        assert _remedies(evidence)[0].startswith("Use a preemptible priority")
        assert "not preemptible (priority inference)" in explain(evidence).cause.sentence
