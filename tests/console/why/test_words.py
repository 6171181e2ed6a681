"""Names in messages of other programs are hidden unless the user knows them."""

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.why.redaction import FIXED, WORDS, Redactor, without_suffixes
from tests.support.markers import scaled
from tests.support.why_evidence import GROUP, make_event, make_evidence, make_node, make_pod, make_queue

UUID = "c0627d2b-7ec1-4879-910d-bc33c85a86ca"
NAMES = frozenset(
    {"team", "train-1", f"pg-train-1-{UUID}", "vision", "node-1", "server-746f6bbdc7", "rack-topology", UUID}
)
USER = Redactor(NAMES)

NOT_A_SECRET = re.compile(r"[0-9.]+(ms|s|m|h)?|[0-9hm]+s|[a-z]|[ad][a-z]+n")
"""Names that a message may show: numbers, times, single letters, and beginnings such as `didn`."""


def is_secret(name: str) -> bool:
    return not (
        name in WORDS or name in FIXED or name in NAMES or NOT_A_SECRET.fullmatch(name) or len(name) < 2
    )


LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,12}[a-z0-9])?", fullmatch=True)
OBJECT_NAMES = st.one_of(
    LABELS,
    st.lists(LABELS, min_size=2, max_size=3).map(".".join),
    st.lists(st.sampled_from(sorted(WORDS)), min_size=2, max_size=3).map("-".join),
).filter(is_secret)
MARKED_NAMES = st.tuples(LABELS, LABELS).map("q7z".join)
PUNCTUATION = st.text("'\"`<>()[]{}:;,./=|\\!?*&%$#@+~_- \n\t“”…\u200b\u202e", min_size=1, max_size=3)
SURROUNDINGS = st.sampled_from(
    ["pod", "node-pool", "GPU", "Pod", "0.5", "kai.scheduler/queue", "nvidia.com/gpu=1", "team", "train-1", "",
     "team/train-1", "didn't", "node(s)", "subGroup", "namespace", "X", "é"]
)  # fmt: skip


@given(before=SURROUNDINGS, left=PUNCTUATION, name=MARKED_NAMES, right=PUNCTUATION, after=SURROUNDINGS)
@settings(max_examples=scaled(200))
def test_no_unknown_name_is_left_in_a_message(
    before: str, left: str, name: str, right: str, after: str
) -> None:
    text = f"Queue {before}{left}{name}{right}{after} does not exist"
    cleaned = USER.clean(text)
    assert name not in cleaned
    assert "q7z" not in cleaned


@given(
    name=OBJECT_NAMES,
    quotes=st.sampled_from(["''", '""', "<>", "()", "[]", "{}", "  ", " .", " :", " ,", "/ "]),
)
@settings(max_examples=scaled(150))
def test_an_unknown_name_of_any_form_is_hidden(name: str, quotes: str) -> None:
    left, right = quotes[0], quotes[1]
    cleaned = USER.clean(f"Waiting for {left}{name}{right} in team/{name}, not {name}/train-1; see {name}-7.")
    assert name not in re.findall(r"[a-z0-9.-]*[a-z0-9]", cleaned)
    assert cleaned.startswith("Waiting for ")


@given(name=OBJECT_NAMES, quotes=st.sampled_from(["''", '""', "<>", "()", "[]", "{}", "  "]))
def test_a_known_name_is_kept(name: str, quotes: str) -> None:
    left, right = quotes[0], quotes[1]
    redactor = Redactor(NAMES | {name})
    text = f"Waiting for {left}{name}{right} in team/{name}: {name}."
    assert redactor.clean(text) == " ".join(text.split())
    assert redactor.name(name) == name


RECORDED = [
    "QueueDoesNotExist: Queue 'vision' does not exist.",
    "Unable to schedule podgroup",
    (
        "NonPreemptibleOverQuota: Non-preemptible workload is over quota. Workload requested 0.5 GPUs, but vision"
        " quota is 1 GPUs, while 1 GPUs are already allocated for non-preemptible pods. Use a preemptible"
        " workload to go over quota.."
    ),
    (
        "OverLimit: vision quota has reached the allowable limit of GPUs. Limit is 1 GPUs, currently 1 GPUs"
        " allocated and workload requested 0.5 GPUs."
    ),
    (
        "PodSchedulingErrors: Resources were not found for pod team/train-1 due to: no nodes with enough resources"
        " were found: 2 node(s) didn't have enough resources: GPU memory. 2 node(s) didn't have enough"
        " resources: GPUs.."
    ),
    (
        "no nodes with enough resources were found: 1 node is not a gpu node or the gpu memory count on the node"
        " was not synced yet, task: <team/train-1>, node: <node-1>."
    ),
    (
        "MaxNodePoolResources: The pod team/train-1 requires GPU: 0.5, CPU: 64 (cores), memory: 0 (GB), pods: 1. Max"
        " CPU resources available in a single node in the default node-pool is topped at 16 cores."
    ),
    "2 node(s) didn't match Pod's node affinity/selector. 2 node(s) had untolerated taint(s).",
    (
        "Resources were found for 1 pods from all sub-groups while sub-group worker requires 3 pods for gang"
        " scheduling. Additional pods cannot be scheduled in this sub-group due to: no nodes"
    ),
    "Job is not ready for scheduling. Waiting for 3 pods for SubGroup worker, currently 1 exist, 0 are gated.",
    (
        "Job is stale. 1 pods are active, minMember is 2, subGroup worker minMember is 1 and 0 pods are active"
    ),
    (
        "plugin gpusharing failed in PreBind: failed to create capabilities configmap: failed to get capabilities"
        " configmap name: no desired configmap name found in pod team/train-1 annotations"
    ),
    "conditions not met: VolumeBinding: pod has unbound immediate PersistentVolumeClaims.",
    "PodSchedulingErrors: Requested topology rack-topology does not exist.",
    f"matching topology tree haven't been found for job pg-train-1-{UUID}, workload topology name: rack-topology",
    "Scheduling is blocked due to non-empty scheduling gates",
    (
        'admission webhook "admission.kai-scheduler.svc" denied the request: attempting to create a pod'
        " team/server-746f6bbdc7-… with gpu sharing request, while GPU sharing is disabled"
    ),
    'pods "server-746f6bbdc7-" is forbidden: pod rejected: RuntimeClass "nvidia" not found',
    (
        'pods "server-746f6bbdc7-…" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1,'
        " used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=0"
    ),
    (
        "vision uses <GPU: 4, CPU: 0 (cores), memory: 0 (GB)> with a quota of <GPU: 1, CPU: Unlimited (cores),"
        " memory: Unlimited (GB)>, fair-share of <GPU: 3, CPU: 0 (cores), memory: 0 (GB)> and queue priority"
        " of <100>."
    ),
    "0/5 nodes are available: 3 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {nvidia.com/gpu: }.",
    (
        "uses 12.0 GiB on GPU 0 (GPU-8d7a1b7c-2222-4333-8444-555555555555), above its share of 8.0 GiB, for 95 s;"
        " vLLM: set --gpu-memory-utilization=0.34 (by default it takes 0.9 of the GPU)"
    ),
]  # fmt: skip


@pytest.mark.parametrize("message", RECORDED)
def test_a_message_with_known_names_stays_as_it_is(message: str) -> None:
    assert USER.clean(message, 1000) == message


@given(message=st.sampled_from(RECORDED), name=MARKED_NAMES, place=st.integers(0, 40), mark=PUNCTUATION)
@settings(max_examples=scaled(200))
def test_a_name_anywhere_in_a_recorded_message_is_hidden(
    message: str, name: str, place: int, mark: str
) -> None:
    words = message.split(" ")
    words.insert(place, f"{mark}{name}{mark}")
    assert name not in USER.clean(" ".join(words))


def test_nothing_public_is_a_path_or_the_beginning_of_a_key() -> None:
    assert {text for text in FIXED if text != text.strip("/.-=") or text.endswith((".py", ".pyc"))} == set()
    assert "kai.scheduler/queue" in FIXED
    assert "project" not in FIXED | WORDS


HIDDEN = {
    "Queue 'secret-project' does not exist.": "Queue '…' does not exist.",
    "Pod other/train-1 was preempted by higher priority workload other/pg-llm-0": (
        "Pod … was preempted by higher priority workload …"
    ),
    (
        f"Failed to bind pod team/train-1 to node gpu-a: failed to reserve GPUs for pod <team/train-1> in gpu group"
        f" <{UUID}>: failed waiting for GPU reservation pod to allocate: kai-resource-reservation/gpu-reservation-gpu-a-75wj4"
    ): (
        f"Failed to bind pod team/train-1 to node …: failed to reserve GPUs for pod <team/train-1> in gpu group"
        f" <{UUID}>: failed waiting for GPU reservation pod to allocate: …"
    ),
    'failed to call webhook: Post "https://10.0.3.1:38781/mutate--v1-pod?timeout=10s": dial tcp 10.0.3.1:38781: connect': (
        'failed to call webhook: Post "…": dial tcp …: connect'
    ),
    "untolerated taint {example.com/reserved: speech}": "untolerated taint {…: …}",
    "kai.scheduler/queue=speech, kai.scheduler/queue=vision": "kai.scheduler/queue=…, kai.scheduler/queue=vision",
    "no room for alice, bob, carol and the others": "no room for … and the others",
    "Speech, TeamSpeech and SPEECH": "…, TeamSpeech and SPEECH",
    "pods of système-privé wait": "pods of … wait",
    "gpu-pods and node.pool and job_queue and pod:queue": "… and … and … and …",
    "spec.nodeName of NVIDIA-H100-80GB, not spec.speech": "spec.nodeName of NVIDIA-H100-80GB, not …",
    "requests.cpu=4, pods=1 and count/speech=2": "requests.cpu=4, pods=1 and …",
    "\x1b[31mred\x1b[0m\nnode\u202e1": "�[…�[0m node�1",
}  # fmt: skip


@pytest.mark.parametrize(("message", "cleaned"), HIDDEN.items())
def test_unknown_names_are_hidden(message: str, cleaned: str) -> None:
    assert USER.clean(message, 1000) == cleaned


def test_a_long_message_is_cut_before_the_beginning_of_a_name() -> None:
    text = "pods " * 818 + "team-of-speech"  # the cut is after `team`
    assert len(text) > 4096 > text.index("team") + 4
    cleaned = USER.clean(text, 5000)
    assert cleaned.endswith("pods …")
    assert "team" not in cleaned
    assert USER.clean("x" * 1_000_000) == "…"
    assert len(USER.clean("pod " * 1_000_000, 100)) == 100


def test_the_names_in_the_evidence_are_known() -> None:
    """The user's own pod names its image, claims and ConfigMaps; a queue's children are others' objects."""
    volumes = [{"name": "cfg", "configMap": {"name": "train-config"}}]
    pod = make_pod(
        spec={"containers": [{"name": "main", "image": "registry.example/team/train:1"}], "volumes": volumes},
        annotations={"kai.scheduler/topology": "racks", "example.com/note": "speech"},
        metadata={
            "ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "train", "controller": True}]
        },
    )
    evidence = make_evidence(
        pod,
        sees_all=False,
        nodes=[make_node("node-1")],
        queues={"vision": make_queue(children=["speech"])},
        pod_events=[make_event("BackOff", "speech", name="train-1")],
    )
    redactor = Redactor.of(evidence)
    for name in (
        "team/train-0", "train", "vision", "research", "node-1", "racks", "train-config", GROUP, "train-1",
        "registry.example/team/train:1", "main",
    ):  # fmt: skip
        assert redactor.clean(f"'{name}'") == f"'{name}'"
    for name in ("speech", "team/speech", "rivals/train-0", "node-2"):
        assert redactor.clean(f"'{name}'") == "'…'"
    broken = make_evidence(msgspec.structs.replace(pod, document=b"["), sees_all=False)
    assert Redactor.of(broken).clean("racks of speech") == "racks of …"


def test_an_administrator_sees_everything_in_one_line() -> None:
    redactor = Redactor(sees_all=True)
    assert redactor.clean("Queue 'speech'\ndoes not exist") == "Queue 'speech' does not exist"
    assert redactor.name("speech") == "speech"
    assert USER.name("speech") == "…"


def test_generated_ends_of_names_are_left_out() -> None:
    base = "server-746f6bbdc7"
    messages = [
        f'pods "{base}-gkczz" is forbidden',
        f'pods "{base}-j66wn" is forbidden',
        f'pods "{base}-" is forbidden',
    ]
    assert {without_suffixes(message, base) for message in messages} == {f'pods "{base}-…" is forbidden'}
    for other in (f'"{base}-0"', f'"x-{base}-gkczz"', f'"{base}"', "pods"):
        assert without_suffixes(other, base) == other
    assert without_suffixes("pods", "") == "pods"
