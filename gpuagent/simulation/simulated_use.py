"""How much memory each pod of a simulated node uses, over time. Pure."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from gpuagent.shares.pod_share import PodShare, ShareSource
from kai.kaishare_keys import SIMULATE
from service.text import quoted

DEFAULT_PERCENT: Final = 80
"""Memory of a pod's process without the annotation, as a percentage of the share."""
MOST_PERCENT: Final = 1000
MOST_STEPS: Final = 32
_ALWAYS = re.compile(r"([0-9]{1,4})%")
_STEP = re.compile(r"([0-9]{1,6})s:([0-9]{1,4})%")
_LONGEST: Final = MOST_STEPS * len("999999s:1000% ")
_FORM: Final = (
    f"allowed: a part of the share from 0% to {MOST_PERCENT}%, or at most {MOST_STEPS} steps such as"
    " 0s:40% 60s:150%"
)
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Course:
    """Part of the share that a pod uses, over time: seconds since its start and percentages, in order."""

    steps: tuple[tuple[int, int], ...] = ((0, DEFAULT_PERCENT),)

    @classmethod
    def parse(cls, text: str) -> "Course":
        """Parse `40%` or `0s:40% 60s:150%`, the value of `kaishare.dev/simulate`.

        Raises:
            ValueError: the text has another form; the message is one line with the allowed form.
        """
        match = _ALWAYS.fullmatch(text)
        steps = [(0, int(match[1]))] if match else []
        if not match and len(text) <= _LONGEST:
            matches = [_STEP.fullmatch(word) for word in text.split(" ")]
            steps = [(int(step[1]), int(step[2])) for step in matches if step]
            if len(steps) < len(matches) or any(step[0] >= later[0] for step, later in pairwise(steps)):
                steps = []
        if not 0 < len(steps) <= MOST_STEPS or any(percent > MOST_PERCENT for _, percent in steps):
            raise ValueError(f"{SIMULATE} {quoted(text)} is invalid; {_FORM}")
        return cls(tuple(steps))

    def at(self, seconds: float) -> int:
        """Return the percentage at a time; before the first step, that of the first step."""
        percent = self.steps[0][1]
        for since, later in self.steps:
            if since > seconds:
                break
            percent = later
        return percent


@dataclass(frozen=True, slots=True)
class SimulatedPod:
    """A running pod with a share: what it may use, and what it is told to use."""

    uid: str
    shares: Mapping[str, int]
    """Bytes of its share by GPU UUID."""
    is_annotated: bool
    """Whether the share is from an annotation, which any user can write, and not from KAI's record."""
    course: Course


def read_pods(
    pod_shares: Iterable[PodShare], whole: Mapping[str, Collection[str]]
) -> tuple[tuple[SimulatedPod, ...], dict[str, str]]:
    """Return the running pods with a share, and by UID why an annotation is invalid."""
    pods: list[SimulatedPod] = []
    invalid: dict[str, str] = {}
    for pod_share in pod_shares:
        pod, shares = pod_share.pod, pod_share.shares
        if not shares or not pod.is_running or not _UID.fullmatch(pod.uid):
            continue
        course = Course()
        if SIMULATE in pod.annotations:
            try:
                course = Course.parse(pod.annotations[SIMULATE])
            except ValueError as error:
                invalid[pod.uid] = str(error)
        given = {
            gpu: share.bytes
            for gpu, share in shares.items()
            if share.source is not ShareSource.WHOLE_GPU or gpu in whole.get(pod.uid, ())
        }
        is_annotated = any(share.source is ShareSource.ANNOTATION for share in shares.values())
        pods.append(SimulatedPod(pod.uid, given, is_annotated, course))
    return tuple(pods), invalid


def used_bytes(
    pods: Sequence[SimulatedPod], seconds: Mapping[str, float], totals: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Return the memory of each pod by GPU UUID and pod UID, without pods that use nothing.

    A GPU cannot hold more than its memory. Pods within their shares get theirs first, those with a share that
    KAI recorded before those with an annotation. A pod above its share gets at most what is left. `seconds`
    is the time since the start of each pod, and `totals` the memory of each GPU.
    """
    wanted: dict[str, list[tuple[bool, bool, str, int]]] = {gpu: [] for gpu in totals}
    for pod in pods:
        percent = pod.course.at(seconds[pod.uid])
        for gpu, share in pod.shares.items():
            if gpu in wanted:
                wanted[gpu].append((percent > 100, pod.is_annotated, pod.uid, share * percent // 100))
    by_gpu: dict[str, dict[str, int]] = {}
    for gpu, left in totals.items():
        used = by_gpu[gpu] = {}
        for _, _, uid, amount in sorted(wanted[gpu]):
            if left and amount:
                used[uid] = min(amount, left)
                left -= used[uid]  # noqa: PLW2901 - what is left of this GPU
    return by_gpu
