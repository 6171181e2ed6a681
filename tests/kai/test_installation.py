"""KAI's settings, read from the arguments of its pods."""

import pytest

from kai.installation import Installation, ProgramContainer, ProgramPod, ProgramSpec


def installed(*args: str, program: str = "admission", tag: str = "v0.13.4") -> Installation:
    container = ProgramContainer(image=f"example.invalid/{program}:{tag}", args=list(args))
    return Installation.seen_in([ProgramPod(spec=ProgramSpec(containers=[container]))])


def both(*installations: Installation) -> Installation:
    containers = tuple(c for installation in installations for c in installation.programs["admission"])
    return Installation({"admission": containers})


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
        (installed("--gpu-sharing-enabled"), {"NonMemoryEnforced"}),
        (installed("--gpu-sharing-enabled=true"), {"NonMemoryEnforced"}),
        (installed("--gpu-sharing-enabled=true", "--hami-core-enabled=true"), {"HamiCore"}),
        (installed("--nv-fractions-enabled=true", tag="v0.18.0"), {"NvFractions"}),
        (installed("--nv-fractions-enabled=true", "--gpu-sharing-enabled=true"), {"NvFractions"}),
        (installed("--nv-fractions-enabled=false"), {"Disabled"}),
        (installed("--gpu-sharing-enabled=false", "--hami-core-enabled=true"), {"Disabled"}),
        (installed(), {"Disabled"}),
        (installed("--gpu-sharing-enabled", program="scheduler"), set()),
        (both(installed(), installed("--gpu-sharing-enabled")), {"Disabled", "NonMemoryEnforced"}),
    ],
)
def test_the_sharing_mode_follows_from_the_arguments_of_the_admission(
    installation: Installation, expected: set[str]
) -> None:
    assert installation.sharing_modes == expected


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("v0.7.11", "global.gpuSharing=true"),
        ("v0.17.0", "global.gpuSharing=true"),
        ("v0.18.0", "global.gpuSharingMode=NonMemoryEnforced"),
        ("latest", "global.gpuSharing=true (since v0.18: global.gpuSharingMode=NonMemoryEnforced)"),
    ],
)
def test_the_value_of_the_chart_that_turns_sharing_on_depends_on_the_release(tag: str, expected: str) -> None:
    assert installed(tag=tag).sharing_values == expected


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
