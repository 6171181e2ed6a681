"""KAI's settings, read from the arguments of its pods."""

import pytest

from kai.installation import Installation, KaiContainer, KaiPod, KaiSpec


def installed(*args: str, program: str = "admission", tag: str = "v0.13.4") -> Installation:
    container = KaiContainer(image=f"example.invalid/{program}:{tag}", args=list(args))
    return Installation.seen_in([KaiPod(spec=KaiSpec(containers=[container]))])


@pytest.mark.parametrize(
    ("installation", "expected"),
    [
        (installed(), "nvidia"),
        (installed("--gpu-pod-runtime-class-name=gpu"), "gpu"),
        (installed("--gpu-pod-runtime-class-name", "gpu"), "gpu"),
        (installed("--gpu-pod-runtime-class-name="), ""),
        (installed("--gpu-pod-runtime-class-name", "--qps=5"), ""),
        (installed("--gpu-pod-runtime-class-name=old", "--gpu-fraction-runtime-class-name=new"), "new"),
        (installed(program="binder", tag="v0.7.11"), ""),
        (installed(program="scheduler"), None),
        (installed(tag="latest"), None),
        (Installation.seen_in([]), None),
    ],
)
def test_the_runtime_class_of_pods_with_a_share(installation: Installation, expected: str | None) -> None:
    assert installation.runtime_class == expected


@pytest.mark.parametrize(
    ("installation", "expected"),
    [
        (installed("--gpu-sharing-enabled"), True),
        (installed("--gpu-sharing-enabled=true"), True),
        (installed("--gpu-sharing-enabled=false"), False),
        (installed(), False),
        (installed("--gpu-sharing-enabled", program="scheduler"), None),
    ],
)
def test_sharing_is_known_if_admission_is_installed(
    installation: Installation, expected: bool | None
) -> None:
    assert installation.shares_gpus is expected


@pytest.mark.parametrize(
    ("installation", "expected"),
    [
        (installed("--runtime-class-name=gpu", program="binder"), "gpu"),
        (installed(program="binder"), ""),
        (installed("--runtime-class-name=gpu"), None),
    ],
)
def test_the_runtime_class_of_reservation_pods_is_the_binders(
    installation: Installation, expected: str | None
) -> None:
    assert installation.reservation_runtime_class == expected


@pytest.mark.parametrize(
    ("installation", "expected"),
    [
        (installed("--queue-label-key", "example.com/queue", program="podgrouper"), "example.com/queue"),
        (installed(program="podgrouper"), "kai.scheduler/queue"),
        (installed("--queue-label-key=example.com/queue", program="binder"), None),
    ],
)
def test_the_queue_label_is_the_pod_groupers(installation: Installation, expected: str | None) -> None:
    assert installation.queue_label == expected
