"""The webhook and the admission policies do the same: the short form of tests/comparisons/admission_forms.py."""

import os
from pathlib import Path

import pytest

from kube.client import KubeClient
from tests.comparisons.admission_forms import compare_forms
from tests.support.control_plane import ControlPlane
from tests.support.markers import scaled

PODS = int(os.environ.get("KAISHARE_GENERATED_PODS", scaled(35)))
"""Number of generated pods; a larger one takes longer and finds more."""


@pytest.mark.kubernetes(1, 36)
@pytest.mark.slow
async def test_pods_are_the_same_under_both_forms(own_plane: ControlPlane, tmp_path: Path) -> None:
    async with KubeClient(own_plane.access()) as client:
        tally = await compare_forms(
            own_plane,
            client,
            tmp_path,
            number=15,
            clusters=2,
            namespaces=20,
            pods=PODS,
            directed_pods=3 * PODS,
        )
    assert not tally.unexpected, "\n\n".join(tally.unexpected[:3])
    assert tally.results["equal"] > PODS
    assert tally.results["denied by both"] > PODS / 20
    assert tally.results["different as listed"] < tally.results["equal"] / 4
    assert {"whole-gpu-converted", "own-share", "several-gpus", "size-unknown"} <= tally.reasons.keys()
