"""KAI's settings, read from the arguments of its pods."""

import json
from typing import Any

import pytest

from kai.installation import Installation, SharingMode, configured_modes
from kube.kinds import Container


def installed(*args: str, program: str = "admission", tag: str = "v0.13.4") -> Installation:
    return Installation.seen_in(
        [(Container(image=f"example.invalid/{program}:{tag}", args=list(args)), False)]
    )


def both(*installations: Installation) -> Installation:
    containers = tuple(c for installation in installations for c in installation.programs["admission"])
    return Installation({"admission": containers})


SETTINGS: list[tuple[str, Installation, object]] = [
    ("runtime_class", installed(), "nvidia"),
    ("runtime_class", installed("--gpu-pod-runtime-class-name=gpu"), "gpu"),
    ("runtime_class", installed("--gpu-pod-runtime-class-name", "gpu"), "gpu"),
    ("runtime_class", installed("--gpu-pod-runtime-class-name="), ""),
    ("runtime_class", installed("--gpu-pod-runtime-class-name", "--qps=5"), ""),
    ("runtime_class", installed("--gpu-pod-runtime-class-name=old", "--gpu-fraction-runtime-class-name=new"), "new"),
    ("runtime_class", installed(program="binder", tag="v0.7.11"), ""),
    ("runtime_class", installed(program="scheduler"), None),
    ("runtime_class", installed(tag="latest"), None),
    ("runtime_class", Installation.seen_in([]), None),
    ("reservation_runtime_class", installed("--runtime-class-name=gpu", program="binder"), "gpu"),
    ("reservation_runtime_class", installed(program="binder"), ""),
    ("reservation_runtime_class", installed("--runtime-class-name=gpu"), None),
    ("queue_label", installed("--queue-label-key", "example.com/queue", program="podgrouper"), "example.com/queue"),
    ("queue_label", installed(program="podgrouper"), "kai.scheduler/queue"),
    ("queue_label", installed("--queue-label-key=example.com/queue", program="binder"), None),
    ("sharing_modes", installed("--gpu-sharing-enabled"), {"NonMemoryEnforced"}),
    ("sharing_modes", installed("--gpu-sharing-enabled=true"), {"NonMemoryEnforced"}),
    ("sharing_modes", installed("--gpu-sharing-enabled=true", "--hami-core-enabled=true"), {"HamiCore"}),
    ("sharing_modes", installed("--nv-fractions-enabled=true", tag="v0.18.0"), {"NvFractions"}),
    ("sharing_modes", installed("--nv-fractions-enabled=true", "--gpu-sharing-enabled=true"), {"NvFractions"}),
    ("sharing_modes", installed("--nv-fractions-enabled=false"), {"Disabled"}),
    ("sharing_modes", installed("--gpu-sharing-enabled=false", "--hami-core-enabled=true"), {"Disabled"}),
    ("sharing_modes", installed(), {"Disabled"}),
    ("sharing_modes", installed("--gpu-sharing-enabled", program="scheduler"), set()),
    ("sharing_modes", both(installed(), installed("--gpu-sharing-enabled")), {"Disabled", "NonMemoryEnforced"}),
    ("sharing_values", installed(tag="v0.7.11"), "global.gpuSharing=true"),
    ("sharing_values", installed(tag="v0.17.0"), "global.gpuSharing=true"),
    ("sharing_values", installed(tag="v0.18.0"), "global.gpuSharingMode=NonMemoryEnforced"),
    ("sharing_values", installed(tag="latest"), "global.gpuSharing=true (since v0.18: global.gpuSharingMode=NonMemoryEnforced)"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "installation", "expected"), SETTINGS)
def test_a_setting_follows_from_the_arguments_and_the_release(
    setting: str, installation: Installation, expected: object
) -> None:
    assert getattr(installation, setting) == expected


def config(mode: str | None = None, *, sharing: bool | None = None, **plugins: bool) -> bytes:
    named = {name: {"enabled": enabled} for name, enabled in plugins.items()}
    spec: dict[str, Any] = {"global": {"gpuSharingMode": mode}, "binder": {"plugins": named}}
    return json.dumps({"spec": {**spec, "admission": {"gpuSharing": sharing}}}).encode()


BOTH = (
    b'{"spec": {"global": {"gpuSharingMode": "HamiCore"}, "admission": {"plugins": {"hamicore": {"enabled": %s}}},'
    b' "binder": {"plugins": {"hamicore": {"enabled": %s}}}}}'
)


@pytest.mark.parametrize(
    ("document", "mode"),
    [
        *((config(mode), mode) for mode in SharingMode), (config(), None),
        (config(sharing=True), SharingMode.NON_MEMORY_ENFORCED),
        (config(sharing=True, hamicore=False), SharingMode.NON_MEMORY_ENFORCED),
        (config(sharing=True, hamicore=True), SharingMode.HAMI_CORE),
        (config(hamicore=True), SharingMode.HAMI_CORE),
        (config(hamicore=False), None),
        (config(sharing=False, hamicore=True), SharingMode.DISABLED),
        (config(sharing=True, hamicore=True, nvfractions=True), None),
        (config(sharing=False), SharingMode.DISABLED),
        (config("hamicore"), None),
        (config("HamiCore", hamicore=True), SharingMode.HAMI_CORE),
        (config("HamiCore", hamicore=False), None),
        (config("NonMemoryEnforced", hamicore=True), None),
        (config("NonMemoryEnforced", nvfractions=False), SharingMode.NON_MEMORY_ENFORCED),
        (BOTH % (b"false", b"true"), None),  # the part that is read last does not win
        (BOTH % (b"true", b"true"), SharingMode.HAMI_CORE), (BOTH % (b"[1]", b"true"), None), (b"{}", None),
        (b"[]", None), (b"no JSON", None), (b"[" * 100_000, None),
        (b'{"spec": {"global": {"gpuSharingMode": ["HamiCore"]}}}', None),
    ],
)  # fmt: skip
def test_the_mode_is_known_or_not_guessed(document: bytes, mode: SharingMode | None) -> None:
    modes = configured_modes(document)
    assert (next(iter(modes)) if len(modes) == 1 else None) is mode
