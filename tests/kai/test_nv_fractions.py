"""KAI's refusals in the sharing mode NvFractions, by the rows of its own tests; never run on a real KAI 0.18."""

from typing import Any

import pytest

from kai.installation import SharingMode
from kai.refusals import Refusal, judge
from kai.releases import Version
from tests.support.pods import container, gpu_container, pod, view
from webhook.policy.checks import share_findings
from webhook.policy.label_values import PolicyShare
from webhook.policy.reasons import Reason

MEMORY = "nvidia.com/container.main.gpu-memory"
PORTION = "kai.scheduler/container.main.gpu-memory.portion.limit"
FRACTION = {"gpu-fraction": "0.5"}
FIRST, LATER, UNKNOWN = Version(0, 18, 0), Version(0, 18, 3), Version(0, 17, 0)

REFUSED: list[tuple[dict[str, str], str]] = [
    ({"gpu-fraction-num-devices": "2"}, "cannot request multiple fractional devices"),
    *(({f"{MEMORY}.{kind}": value}, "must be a valid Kubernetes memory quantity greater than 0")
      for kind in ("request", "limit") for value in ("", "0", "-1Gi", "NaN", "not-a-quantity")),
    ({"nvidia.com/container.main.gpu-memory": "1Gi"}, "invalid NvFractions annotation key:"),
    ({"nvidia.com/container..gpu-memory.request": "1Gi"}, "invalid NvFractions annotation key:"),
    ({"nvidia.com/container.main.gpu-compute.mode": "mps"}, "invalid NvFractions compute mode:"),
    ({"nvidia.com/container.other.gpu-memory.request": "1Gi"}, "not found in pod spec"),
    ({f"{MEMORY}.request": "2Gi", f"{MEMORY}.limit": "1Gi"}, "request is greater than limit"),
    ({f"{MEMORY}.request": "2Gi", "nvidia.com/container.second.gpu-memory.request": "1Gi"},
     "doesn't support multiple containers"),
    ({f"{MEMORY}.request": "2Gi", "gpu-fraction-container-name": "second"}, "does not match container name"),
    ({**FRACTION, f"{MEMORY}.limit": "1Gi"}, "cannot combine"),
    ({"gpu-fraction": "0.5", "gpu-memory": "2000"}, "cannot request both gpu-fraction and GPU memory request"),
    ({"gpu-memory": "2000", f"{MEMORY}.request": "1Gi"}, "does not match gpu-memory annotation value"),
    ({PORTION: "0.7"}, "can only be used together with"),
    ({**FRACTION, PORTION.replace("main", "second"): "0.7"}, "does not match"),
    ({**FRACTION, PORTION: "0.123456"}, "at most 5 digits"),
    *(({**FRACTION, PORTION: value}, "must be a positive number smaller than 1.0")
      for value in ("1", "0", "-0.7", "NaN", "x", "")),
    ({**FRACTION, PORTION: "0.5"}, "must be greater than"),
    ({"nvidia.com/container.main.gpus.devices": "GPU-1"}, ".gpus.devices annotations may only be modified"),
    ({"gpu-fraction": "half"}, "gpu-fraction"),
    ({"gpu-memory": "2Gi"}, "gpu-memory"),
]  # fmt: skip
ADMITTED: list[dict[str, str]] = [
    {}, {f"{MEMORY}.request": "1Gi"}, {f"{MEMORY}.request": "1Gi", f"{MEMORY}.limit": "1Gi"}, FRACTION,
    {**FRACTION, PORTION: "0.7"}, {"gpu-memory": "2000"}, {"gpu-memory": "2000", f"{MEMORY}.request": "2000Mi"},
    {"gpu-memory": "2000", f"{MEMORY}.request": "2000Mi", "gpu-fraction-container-name": "main"},
    {**FRACTION, "nvidia.com/container.main.gpu-compute.mode": "sm-sharing"},
    {"nvidia.com/container.first.gpu-memory.request": "1Gi"},
]  # fmt: skip
SINCE_0_18_3: list[tuple[dict[str, str], str]] = [
    ({"gpu-fraction.limit": "0.7"}, "can only be used together with gpu-fraction"),
    ({**FRACTION, "gpu-fraction.limit": "0.5"}, "must be greater than"),
    ({**FRACTION, "gpu-fraction.limit": "NaN"}, "must be a positive number smaller than 1.0"),
    ({"gpu-memory.limit": "8Gi"}, "can only be used together with gpu-memory"),
    ({"gpu-memory": "2000", "gpu-memory.limit": "8000"}, "with a unit"),
    ({"gpu-memory": "2000", "gpu-memory.limit": "1Gi"}, "must not be smaller than"),
]


def refusal(annotations: dict[str, str], version: Version = FIRST, **fields: Any) -> Refusal | None:
    containers = fields.pop("containers", (container("main"), container("second")))
    made = pod(*containers, init=[container("first")], annotations=annotations)
    return judge(view(made), version, mode=SharingMode.NV_FRACTIONS)


@pytest.mark.parametrize("version", [FIRST, LATER, UNKNOWN], ids=str)
@pytest.mark.parametrize(("annotations", "words"), REFUSED)
def test_each_refusal_has_kais_words(annotations: dict[str, str], words: str, version: Version) -> None:
    refused = refusal(annotations, version)
    assert refused is not None
    assert words in refused.message


@pytest.mark.parametrize("version", [FIRST, LATER, UNKNOWN], ids=str)
@pytest.mark.parametrize("annotations", ADMITTED)
def test_what_kai_admits_is_not_refused(annotations: dict[str, str], version: Version) -> None:
    assert refusal(annotations, version) is None


@pytest.mark.parametrize(("annotations", "words"), SINCE_0_18_3)
def test_short_limits_are_checked_since_0_18_3(annotations: dict[str, str], words: str) -> None:
    refused = refusal(annotations, LATER)
    assert refused is not None
    assert words in refused.message
    assert refusal(annotations, UNKNOWN) is None, "in doubt the pod goes through"


def test_a_limit_beside_gpu_memory_is_legal_since_0_18_3() -> None:
    annotations = {"gpu-memory": "2000", f"{MEMORY}.limit": "4000Mi", f"{MEMORY}.request": "2000Mi"}
    assert "cannot combine" in str(refusal(annotations, FIRST))
    assert refusal(annotations | {"gpu-memory.limit": "4000Mi"}, LATER) is None


def test_a_share_beside_a_whole_gpu_is_refused() -> None:
    for annotations in (FRACTION, {f"{MEMORY}.request": "1Gi"}):
        assert "cannot have both" in str(refusal(annotations, containers=(gpu_container("main"),)))


DOTTED = "KAI derives an invalid volume name from a dotted name"


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (None, DOTTED), (SharingMode.NON_MEMORY_ENFORCED, DOTTED), (SharingMode.HAMI_CORE, DOTTED),
        (SharingMode.NV_FRACTIONS, ""), (SharingMode.DISABLED, "while GPU sharing is disabled"),
    ],
)  # fmt: skip
def test_the_webhook_refuses_by_the_mode(mode: SharingMode | None, words: str) -> None:
    name = "a" if mode is SharingMode.DISABLED else "a.b"
    asked = view(pod(container("main"), annotations=FRACTION, metadata={"name": name}))
    findings = list(share_findings(asked, Version(0, 9, 8), sharing=True, mode=mode))
    refused = [each for each in findings if each.reason is Reason.KAI_REFUSES]
    assert bool(refused) == bool(words)
    assert all(words in str(each) for each in refused)


LIMIT = "kai.scheduler/container.main.gpu-memory.portion.limit"


@pytest.mark.parametrize(
    ("annotations", "policy_share", "words"),
    [
        ({LIMIT: "0.8"}, None, "can only be used together with gpu-fraction"),
        ({"gpu-memory.limit": "8Gi"}, None, "can only be used together with gpu-memory"),
        ({LIMIT: "0.8"}, "0.5", ""),
        ({LIMIT: "0.3"}, "0.5", "must be greater than gpu-fraction"),
        ({"gpu-fraction.limit": "0.3"}, "0.5", "must be greater than gpu-fraction"),
        ({"nvidia.com/container.main.gpu-compute.mode": "mps"}, "0.5", "invalid NvFractions compute mode"),
        ({}, "0.5", ""),
    ],
)
def test_a_limit_or_mode_without_a_share_of_its_own_is_judged_beside_the_policys(
    annotations: dict[str, str], policy_share: str | None, words: str
) -> None:
    injected = PolicyShare("gpu-fraction", policy_share) if policy_share else None
    asked = view(pod(gpu_container("main") if injected else container("main"), annotations=annotations))
    by_mode = {
        mode: list(share_findings(asked, LATER, sharing=True, mode=mode, injected=injected))
        for mode in (SharingMode.NV_FRACTIONS, None)
    }
    assert [words in each.sentence for each in by_mode[SharingMode.NV_FRACTIONS]] == [True] * bool(words)
    assert not by_mode[None], "other modes ignore it"
