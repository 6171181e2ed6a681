"""`explain --policies cluster` says what the cluster's webhook does: the short form of tests/comparisons/preview.py."""

import os
from pathlib import Path

import pytest

from kube.client import KubeClient
from tests.comparisons.preview import compare_generated
from tests.support.control_plane import ControlPlane
from tests.support.markers import scaled

PODS = int(os.environ.get("KAISHARE_GENERATED_PODS", scaled(75)))
"""Number of generated workloads; a larger one takes longer and finds more."""
CLUSTERS = 3


@pytest.mark.slow
async def test_explain_equals_the_webhook_of_the_cluster(own_plane: ControlPlane, tmp_path: Path) -> None:
    at_once = -(-PODS // CLUSTERS)
    async with KubeClient(own_plane.access()) as client:
        tally = await compare_generated(
            own_plane, client, tmp_path, number=29, pods=PODS, at_once=at_once, namespaces=16
        )
    assert not tally.differences, "\n\n".join(map(str, tally.differences[:3]))
    assert not tally.unusable
    counts = tally.counts
    assert counts["results"]["reviewed, created"] > PODS / 4
    assert counts["results"]["patched manifest created"] > PODS / 6
    assert counts["results"]["denied by kaishare"] > PODS / 50
    assert {"injected whole-gpu-converted", "injected distributed", "skipped not-managed"} <= counts[
        "reasons"
    ].keys()
    assert {"default", "enforce", "observe", "off"} <= counts["modes"].keys()
    assert len(counts["releases"]) == CLUSTERS
    assert len(counts["kinds"]) > 12
    assert len(counts["limit_ranges"]) > 8
