"""Every flag, problem and GPU in trouble has a first act, and every act a section of the runbooks."""

from pathlib import Path

import pytest

from gpuagent import first_acts
from gpuagent.first_acts import (
    FOR_FLAG,
    FOR_GPU_AT_RISK,
    FOR_OVERPROMISED_GPU,
    FOR_PROBLEM,
    FOR_RISK,
    FirstAct,
    for_gpu,
    for_problem,
)
from gpuagent.gpus.gpu_reading import LostGpu
from gpuagent.problems import NOT_LISTED, Cause, RiskName
from gpuagent.verdicts.flag_reasons import FlagReason

ACTS = [act for act in vars(first_acts).values() if isinstance(act, FirstAct)]


def test_every_flag_and_problem_has_an_act_with_a_section_of_the_runbooks() -> None:
    assert FOR_FLAG.keys() == set(FlagReason)
    assert FOR_PROBLEM.keys() == set(Cause)
    sections = (Path(__file__).parents[2] / "docs" / "runbooks.md").read_text("utf-8")
    for act in (*ACTS, *FOR_FLAG.values(), *FOR_PROBLEM.values(), *FOR_RISK.values()):
        assert f"\n## {act.section}\n" in sections
        assert (act.text[0].isupper(), act.text[-1]) == (True, ".")


@pytest.mark.parametrize(
    ("risk", "is_overpromised", "act"),
    [
        (RiskName.PODS, True, FOR_GPU_AT_RISK), (RiskName.PROMISES, True, FOR_OVERPROMISED_GPU),
        (RiskName.HOST, False, FOR_RISK[RiskName.HOST]), (None, True, FOR_OVERPROMISED_GPU), (None, False, None),
    ],
)  # fmt: skip
def test_the_largest_causes_act(risk: RiskName | None, is_overpromised: bool, act: FirstAct | None) -> None:
    assert FOR_RISK.keys() == set(RiskName)
    assert for_gpu(risk=risk, is_overpromised=is_overpromised) is act


@pytest.mark.parametrize(
    ("errors", "words", "is_lost"),
    [
        (("GpuIsLost", "ResetRequired", NOT_LISTED), "drain the node", True),
        (("DriverNotLoaded", "Uninitialized", "NotReady", "LibRmVersionMismatch"), "driver is being replaced", False),
        (("Unknown", "OperatingSystem"), "Restart the agent's pod", False),
        (("NoPermission",), "agent.gpuAccess", False),
        (("Timeout", ""), "nvidia-smi", False),
    ],
)  # fmt: skip
def test_the_act_follows_from_the_drivers_error(errors: tuple[str, ...], words: str, is_lost: bool) -> None:
    for error in errors:
        act = for_problem(Cause.NVML, error)
        assert act is not None
        assert words in act.text
        assert LostGpu(0, error=error).is_lost is is_lost
        assert ("drain" in act.text) is is_lost
