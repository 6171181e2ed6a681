"""Events about flags: wording and rate."""

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.actions.flag_events import FIRST_WAIT, LONGEST_WAIT, FlagEvents
from gpuagent.first_acts import FOR_FLAG
from gpuagent.pods.inventory import NodePod
from gpuagent.pods.node_pods import read_pod
from gpuagent.shares.pod_share import PodShare
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.verdict import Change, Key, Transition, Verdict
from kai.installation import SharingMode
from kube.events import Event
from tests.support.kube_objects import fraction
from tests.support.samples import (
    GIB,
    A,
    B,
    gpu,
    in_pod,
    pod,
    pod_share,
    sample,
    snapshot_of,
    uid_of,
    with_limit,
)

DAY = 86400.0


@dataclass
class EventRecorder:
    """Records Events with the time of a simulated clock."""

    bounds: dict[str, Any] = field(default_factory=dict)
    now: float = 0.0
    events: list[tuple[float, Event]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flags = FlagEvents(self, clock=lambda: self.now, **self.bounds)

    def emit(self, event: Event) -> None:
        self.events.append((self.now, event))

    @property
    def reasons(self) -> list[str]:
        return [event.reason for _, event in self.events]

    def take(self, *transitions: Transition, pods: Iterable[str] = ("train",)) -> None:
        pod_shares = [pod_share(name, GIB) for name in pods]
        taken = sample(gpu(), gpu(uuid=B, index=1), at=self.now)
        self.flags.handle(snapshot_of(taken, *pod_shares), transitions)


def transition(
    change: Change = Change.FLAGGED,
    reason: FlagReason = FlagReason.OVER_SHARE,
    *,
    name: str = "train",
    pod_share: PodShare | None = None,
    uuid: str = A,
    seconds: float = 120.0,
    **fields: Any,
) -> Transition:
    figures = {"used_bytes": 12 * GIB, "allowed_bytes": 8 * GIB, **fields}
    verdict = Verdict(
        key=Key(uid_of(name), uuid, reason), pod_share=pod_share or PodShare(pod=pod(name)),
        gpu_index=None if not uuid else 0, is_flagged=change is Change.FLAGGED, since=0.0, **figures,
    )  # fmt: skip
    return Transition(change=change, verdict=verdict, seconds=seconds)


def the_event(*transitions: Transition) -> Event:
    recorder = EventRecorder()
    recorder.take(*transitions)
    ((_, event),) = recorder.events
    return event


MESSAGES = [
    (FlagReason.OVER_SHARE, {}, "GPUMemoryOverShare", f"uses 12.0 GiB on GPU 0 ({A}), above its share of 8.0 GiB, for 2 min"),
    (FlagReason.LIMIT_BYPASSED, {}, "GPULimitBypassed", f"uses 12.0 GiB on GPU 0 ({A}), above its memory limit of 8.0 GiB, which is not enforced, for 2 min"),
    (FlagReason.UNASSIGNED_GPU, {"allowed_bytes": None}, "GPUNotAssigned", f"uses 12.0 GiB on GPU 0 ({A}), which is not assigned to it, for 2 min"),
    (FlagReason.NO_SHARE, {"allowed_bytes": None}, "GPUShareMissing", f"uses 12.0 GiB on GPU 0 ({A}) without a GPU share, for 2 min"),
    (FlagReason.SHARE_CHANGED, {"uuid": "", "used_bytes": None, "pod_share": PodShare(pod=pod("train"), changed="the pod declares gpu-fraction 0.9, its BindRequest allocates 0.50")}, "GPUShareChanged", "the change to its GPU share has no effect: the pod declares gpu-fraction 0.9, its BindRequest allocates 0.50"),
    (FlagReason.NO_RESERVATION, {"used_bytes": None}, "GPUReservationMissing", "its GPU is no longer reserved, so KAI may give the GPU to other pods or delete this pod"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "fields", "event", "message"), MESSAGES, ids=[case[2] for case in MESSAGES]
)
def test_each_flag_is_one_warning_with_figures_and_the_first_act(
    reason: FlagReason, fields: dict[str, Any], event: str, message: str
) -> None:
    made = the_event(transition(reason=reason, **fields))
    assert (made.reason, made.is_warning) == (event, True)
    assert made.message == f"{message}. {FOR_FLAG[reason].text}"
    about = made.about
    assert (about.api_version, about.kind, about.uid) == ("v1", "Pod", uid_of("train"))
    assert (about.namespace, about.name) == ("team-a", "train")
    assert made.namespace == "team-a", "API servers refuse an Event in another namespace than its object's"
    assert made.name.startswith("train."), "vCluster replaces the pod's name at the beginning"


def test_only_a_cleared_over_share_flag_makes_an_event_and_a_normal_one() -> None:
    recorder = EventRecorder()
    for reason in FlagReason:
        recorder.take(transition(reason=reason))
    recorder.events.clear()
    recorder.now += 3600
    for reason in FlagReason:
        recorder.take(transition(Change.CLEARED, reason, used_bytes=7 * GIB))
    ((_, event),) = recorder.events
    assert (event.reason, event.is_warning) == ("GPUMemoryWithinShare", False)
    assert event.message == f"uses 7.0 GiB on GPU 0 ({A}), within its share of 8.0 GiB again"
    dropped = EventRecorder()
    dropped.take(transition(Change.DROPPED))
    assert dropped.events == []


def test_event_names_differ_by_pod_reason_and_gpu() -> None:
    first = the_event(transition()).name
    assert the_event(transition(used_bytes=20 * GIB)).name == first
    other = PodShare(pod=replace(pod("train"), uid=uid_of("other")))
    for different in (transition(uuid=B), transition(reason=FlagReason.NO_SHARE)):
        assert the_event(different).name != first
    recorder = EventRecorder()
    of_another = transition(pod_share=other, name="other")
    recorder.take(of_another, pods=("other",))
    assert recorder.events[0][1].name != first, "a StatefulSet gives a new pod an old one's name"


def runs(*containers: dict[str, Any]) -> NodePod:
    """A pod with a share, read from the API server's JSON."""
    made = fraction("train", containers=[{"name": "sidecar"}, *containers])
    return replace(pod("train"), commands=read_pod(json.dumps(made).encode()).commands)


VLLM = {"name": "main", "command": ["vllm", "serve", "M"], "env": [{"name": "HF_TOKEN", "value": "secret"}]}
TGI = {"name": "main", "image": "ghcr.io/huggingface/text-generation-inference:3"}


@pytest.mark.parametrize(
    ("container", "advice"),
    [
        ({"name": "main", "command": ["python", "train.py"]}, ""),
        (VLLM, "; vLLM: set --gpu-memory-utilization=0.33 (by default it takes about 0.9 of the GPU)"),
        ({**VLLM, "args": ["--gpu-memory-utilization", "0.5"]}, "; vLLM: set --gpu-memory-utilization=0.33 (now 0.5)"),
        ({**VLLM, "args": ["--gpu-memory-utilization=0.3"]}, ""),
        ({**VLLM, "args": ["--gpu-memory-utilization=$(PART)"]}, ""),
        ({**VLLM, "args": ["--config", "x.yaml"]}, ""),
        ({"name": "main", "command": ["sh", "-c", "exec vllm serve M --gpu-memory-utilization 0.7"]}, "; vLLM: set --gpu-memory-utilization=0.33 (now 0.7)"),
        (TGI, "; TGI: set --cuda-memory-fraction=0.33 (by default it takes all of the GPU)"),
        ({**TGI, "env": [{"name": "CUDA_MEMORY_FRACTION", "value": "0.4"}]}, "; TGI: set --cuda-memory-fraction=0.33 (now 0.4)"),
        ({"name": "main", "command": ["torchrun", "train.py"]}, "; PyTorch: set per_process_memory_fraction:0.3 in PYTORCH_ALLOC_CONF (2.10 on) (by default it takes all of the GPU)"),
        ({"name": "main", "env": [{"name": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": "0.5"}]}, "; JAX: set XLA_PYTHON_CLIENT_MEM_FRACTION=0.3 (now 0.5)"),
        ({"name": "main", "image": "ollama/ollama"}, "; Ollama: set OLLAMA_GPU_OVERHEAD to card less share (by default it takes all of the GPU)"),
        ({**VLLM, "args": ["x" * 5000]}, ""),
    ],
    ids=["no framework", "its default", "too much", "little enough", "a variable", "in a file", "in a shell", "TGI", "TGI by its environment", "PyTorch", "JAX", "Ollama", "longer than the excerpt"],
)  # fmt: skip
def test_the_advice_is_for_what_the_container_runs(container: dict[str, Any], advice: str) -> None:
    event = the_event(transition(pod_share=PodShare(pod=runs(container))))
    assert event.message.partition(" for 2 min")[2] == f"{advice}. {FOR_FLAG[FlagReason.OVER_SHARE].text}"


def test_where_containers_see_their_share_no_lower_value_is_advised() -> None:
    share = PodShare(pod=runs(VLLM), sharing_mode=SharingMode.HAMI_CORE)
    message = the_event(transition(pod_share=share)).message
    assert message.partition(" for 2 min")[2] == f". {FOR_FLAG[FlagReason.LIMIT_BYPASSED].text}"


def test_a_message_holds_nothing_of_labels_and_annotations() -> None:
    secret = {"vcluster.loft.sh/token-abcd1234": "eyJhbGciOi", "vcluster.loft.sh/object-name": "victim"}
    marked = replace(pod("train"), annotations=secret, labels=secret)
    for reason in FlagReason:
        event = the_event(transition(reason=reason, pod_share=PodShare(pod=marked)))
        assert "eyJhbGciOi" not in repr(event)
        assert "victim" not in repr(event)


def times(recorder: EventRecorder, name: str = "train") -> list[float]:
    """Return the times of the warnings about a pod."""
    return [at for at, event in recorder.events if event.about.uid == uid_of(name) and event.is_warning]


def flap(recorder: EventRecorder, seconds: float) -> None:
    """Raise and clear the flag of a pod in turn, every 10 s."""
    end, changes = recorder.now + seconds, itertools.cycle((Change.FLAGGED, Change.CLEARED))
    while recorder.now < end:
        recorder.take(transition(next(changes)))
        recorder.now += 10


def test_events_of_a_flapping_flag_back_off() -> None:
    recorder = EventRecorder()
    flap(recorder, 4 * 3600)
    assert times(recorder) == [0, 60, 180, 420, 900, 1860, 3780, 7380, 10980]
    quiet = recorder.now = recorder.now + 3700
    flap(recorder, 100)
    assert [at - quiet for at in times(recorder)[9:]] == [0, 60], "an hour of quiet resets the back-off"


def test_a_cleared_flag_makes_an_event_at_once_and_the_next_flag_waits() -> None:
    recorder = EventRecorder()
    for at, change in (
        (0, Change.FLAGGED),
        (20, Change.CLEARED),
        (40, Change.FLAGGED),
        (59, None),
        (60, None),
        (4000, None),
    ):
        recorder.now = at
        recorder.take(*([transition(change)] if change else []))
    events = [(at, event.reason) for at, event in recorder.events]
    assert events == [(0, "GPUMemoryOverShare"), (20, "GPUMemoryWithinShare"), (60, "GPUMemoryOverShare")]


def test_a_flag_cleared_before_its_event_makes_no_event() -> None:
    recorder = EventRecorder({"burst": 1, "per_second": 0.001})
    both = ("train", "other")
    recorder.take(transition(name="other"), pods=both)
    recorder.take(transition(), pods=both)
    recorder.take(transition(Change.CLEARED), pods=both)
    recorder.now = DAY
    recorder.take(pods=both)
    assert times(recorder) == []
    assert times(recorder, "other") == [0]
    assert recorder.reasons == ["GPUMemoryOverShare"], "nor does its end"


def test_deleted_pods_are_forgotten() -> None:
    recorder = EventRecorder()
    recorder.take(transition(), transition(name="other"), pods=("train", "other"))
    recorder.take(pods=("other",))
    assert {key.uid for key in recorder.flags._pending} == {uid_of("other")}


def test_pods_without_an_event_come_before_pods_with_one() -> None:
    recorder = EventRecorder({"burst": 1, "per_second": 1 / 3600})
    both = ("loud", "quiet")
    recorder.take(transition(name="loud"), pods=both)
    recorder.take(transition(Change.CLEARED, name="loud"), transition(name="quiet"), pods=both)
    recorder.now = 3600
    recorder.take(pods=both)
    assert [event.about.name for _, event in recorder.events] == ["loud", "quiet"]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from([5.0, 30.0, 70.0, 900.0, 4000.0])),
        max_size=60,
    )
)
def test_the_last_event_of_each_pod_is_correct_and_events_are_few(changes: list[tuple[str, float]]) -> None:
    recorder = EventRecorder({"burst": 3, "per_second": 0.01})
    pods, flagged = ("a", "b", "c"), dict.fromkeys("abc", False)
    for name, seconds in changes:
        flagged[name] = not flagged[name]
        change = Change.FLAGGED if flagged[name] else Change.CLEARED
        recorder.take(transition(change, name=name), pods=pods)
        recorder.now += seconds
    for _ in range(10):
        recorder.now += LONGEST_WAIT
        recorder.take(pods=pods)
    assert len(recorder.events) <= 3 + 0.01 * recorder.now
    last = {event.about.name: event.reason for _, event in recorder.events}
    for name, is_flagged in flagged.items():
        assert (last.get(name) == "GPUMemoryOverShare") is is_flagged
        for sooner, later in itertools.pairwise(times(recorder, name)):
            assert later - sooner >= FIRST_WAIT


def test_an_event_after_breaks_names_the_total_time() -> None:
    judge, recorder = Judge(grace=10, interval=10, longest_gap=15), EventRecorder()
    train = pod_share("train", 8 * GIB)
    for at in range(0, 60, 2):
        taken = sample(gpu((10, (12 if at % 4 else 8) * GIB)), origins={10: in_pod("train")}, at=at)
        snapshot = snapshot_of(taken, train)
        recorder.take(*judge.judge(snapshot)[1])
    (event,) = [event for _, event in recorder.events]
    assert f"uses 12.0 GiB on GPU 0 ({A}), above its share of 8.0 GiB, for 10 s in all." in event.message


def test_where_a_limit_is_bypassed_the_advice_is_for_the_limit() -> None:
    limited = with_limit(PodShare(pod=runs(VLLM)), 6 * GIB)
    event = the_event(transition(reason=FlagReason.LIMIT_BYPASSED, pod_share=limited, allowed_bytes=6 * GIB))
    assert (
        "; vLLM: set --gpu-memory-utilization=0.25 (by default it takes about 0.9 of the GPU). "
        in event.message
    )
