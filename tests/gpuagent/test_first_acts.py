"""Every flag, problem and GPU in trouble has a first act, and every act a section of the runbooks."""

from pathlib import Path

import pytest

from gpuagent import first_acts
from gpuagent.first_acts import (
    FOR_FLAG,
    FOR_GPU_AT_RISK,
    FOR_OVERPROMISED_GPU,
    FOR_PROBLEM,
    FirstAct,
    for_gpu,
)
from gpuagent.problems import Cause
from gpuagent.verdicts.flag_reasons import FlagReason

ACTS = [act for act in vars(first_acts).values() if isinstance(act, FirstAct)]


def test_every_flag_and_problem_has_an_act_with_a_section_of_the_runbooks() -> None:
    assert FOR_FLAG.keys() == set(FlagReason)
    assert FOR_PROBLEM.keys() == set(Cause)
    sections = (Path(__file__).parents[2] / "docs" / "runbooks.md").read_text("utf-8")
    for act in (*ACTS, *FOR_FLAG.values(), *FOR_PROBLEM.values()):
        assert f"\n## {act.section}\n" in sections
        assert (act.text[0].isupper(), act.text[-1]) == (True, ".")


@pytest.mark.parametrize(
    ("is_at_risk", "is_overpromised", "has_pod_above_share", "act"),
    [
        (True, False, True, FOR_GPU_AT_RISK),
        (True, True, True, FOR_GPU_AT_RISK),
        (True, True, False, FOR_OVERPROMISED_GPU),
        (True, False, False, FOR_GPU_AT_RISK),
        (False, True, False, FOR_OVERPROMISED_GPU),
        (False, False, True, None),
    ],
)
def test_a_pod_is_to_release_memory_only_where_one_holds_too_much(
    is_at_risk: bool, is_overpromised: bool, has_pod_above_share: bool, act: FirstAct | None
) -> None:
    assert (
        for_gpu(
            is_at_risk=is_at_risk, is_overpromised=is_overpromised, has_pod_above_share=has_pod_above_share
        )
        is act
    )
