"""The words of the scheduler and the kubelet for a pod that is not ready."""

from typing import Any

import msgspec
import pytest

from kube.kinds import PodStatus

READY = {"type": "Ready", "status": "True"}


def scheduled(**fields: str) -> dict[str, Any]:
    return {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", **fields}]}


def waiting(reason: str, message: str = "", kind: str = "containerStatuses") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", kind: [{"restartCount": 2, "state": state}]}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Running", "conditions": [READY]}, ""),
        ({"phase": "Running"}, "not ready"),
        ({"phase": "Pending"}, "Pending"),
        ({}, "no status"),
        (scheduled(reason="Unschedulable", message="0/3 nodes are available"), "Unschedulable: 0/3 nodes are available"),
        (scheduled(), "not scheduled"),
        (waiting("ErrImagePull", "no such\nimage"), "ErrImagePull: no such image"),
        (waiting("CrashLoopBackOff"), "CrashLoopBackOff"),
        (waiting("ImagePullBackOff", "x", "initContainerStatuses") | waiting("PodInitializing"), "ImagePullBackOff: x"),
        (waiting("PodInitializing"), "Pending"),
    ],
)  # fmt: skip
def test_the_most_specific_reason(status: dict[str, Any], expected: str) -> None:
    assert msgspec.convert(status, PodStatus).trouble == expected


def test_a_long_or_hostile_message_is_one_short_line() -> None:
    trouble = msgspec.convert(scheduled(reason="x", message="\x1b[2J\n" * 9999), PodStatus).trouble
    assert len(trouble) <= 200
    assert trouble.isprintable()
    assert msgspec.convert(waiting("x"), PodStatus).restarts == 2
