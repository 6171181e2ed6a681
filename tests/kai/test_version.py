"""Differences between releases of KAI that depend on several release lines."""

import pytest

from kai.releases import Version


@pytest.mark.parametrize(
    ("version", "by_label"),
    [
        ("v0.7.11", True),
        ("v0.9.8", True),
        ("v0.9.12", True),
        ("v0.9.13", False),
        ("v0.10.5", True),
        ("v0.12.14", True),
        ("v0.12.15", False),
        ("v0.13.0", False),
        ("v0.17.0", False),
    ],
)
def test_queues_are_summed_by_label_before_the_fix_of_each_release_line(version: str, by_label: bool) -> None:
    """CHANGELOG.md of the branches v0.9, v0.12 and v0.13: PR #1049."""
    assert Version.parse(version).sums_queues_by_label is by_label


@pytest.mark.parametrize(("version", "reads"), [("v0.17.0", False), ("v0.18.0", True)])
def test_requests_of_single_containers_are_read_since_v0_18(version: str, reads: bool) -> None:
    assert Version.parse(version).reads_container_memory is reads
