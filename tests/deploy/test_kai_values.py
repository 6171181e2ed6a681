"""Values for KAI's chart, and the figures that deploy/kai/README.md gives for its queues."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kai.releases import Version
from tests.support import yaml_text
from tests.support.helm_chart import ROOT

FOLDER = ROOT / "deploy" / "kai"
AUTOSCALING = "global.clusterAutoscaling"
SHARED = {"global.gpuSharing", "global.resourceReservation.namespace"}
READ_BY_CHART: dict[str, set[str]] = {
    "v0.7.11": SHARED,
    "v0.9": {*SHARED, "global.resourceReservation.runtimeClassName", "admission.gpuPodRuntimeClassName"},
    "v0.13": {*SHARED, AUTOSCALING, "binder.runtimeClassName", "admission.gpuPodRuntimeClassName"},
    "v0.17": {*SHARED, AUTOSCALING, "binder.runtimeClassName", "admission.gpuFractionRuntimeClassName"},
}
"""Names that the templates of KAI's chart read.

Found by rendering the charts of v0.7.11, v0.9.8, v0.9.20, v0.13.4 and v0.17.0 with each name set. v0.10.0, v0.15.3 and
v0.16.8 read the names of the file that README.md gives for them. The value for autoscaling is that of KAI's page
gpu-sharing/autoscaling (v0.13.4, v0.17.0).
"""


def leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value with its dotted name."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def test_every_release_has_its_values() -> None:
    assert {path.stem.removeprefix("values-") for path in FOLDER.glob("values-*.yaml")} == set(READ_BY_CHART)


@pytest.mark.parametrize("release", READ_BY_CHART)
def test_a_file_has_the_values_that_its_chart_reads_and_the_command_that_installs_it(release: str) -> None:
    text = (FOLDER / f"values-{release}.yaml").read_text()
    values = dict(leaves(yaml_text.load(text)))
    assert set(values) == READ_BY_CHART[release]
    assert values.pop("global.gpuSharing") is True
    assert values.pop(AUTOSCALING, False) is False
    assert values.pop("global.resourceReservation.namespace") == "kai-resource-reservation"
    assert set(values.values()) <= {"nvidia"}
    (version,) = re.findall(r"--version v(\S+)", text)
    assert f"v{version}.".startswith(f"{release}.")
    assert f"-f deploy/kai/values-{release}.yaml" in text
    moved = Version.parse(version).minor >= 13
    assert ("oci://ghcr.io/kai-scheduler/" in text) is moved
    assert ("oci://ghcr.io/nvidia/" in text) is not moved


def table_after(text: str, heading: str) -> list[list[str]]:
    """Return the rows of the table whose heading row begins with the text."""
    rows = text.partition(f"| {heading}")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.strip().strip("|").split("|")] for row in rows]


def test_the_readme_shows_the_quotas_of_the_file_and_what_they_give() -> None:
    queues = {
        queue["metadata"]["name"]: queue["spec"]["resources"]["gpu"]
        for queue in yaml_text.load_all((FOLDER / "queues-teams.yaml").read_text())
    }
    total = queues.pop("teams")["quota"]
    text = (FOLDER / "README.md").read_text()
    assert table_after(text, "queue | quota") == [
        [
            name,
            f"{gpu['quota']}",
            "none" if gpu["limit"] == -1 else f"{gpu['limit']}",
            f"{gpu['overQuotaWeight']}",
        ]
        for name, gpu in queues.items()
    ]
    rows = table_after(text, "which teams ask")
    assert len(rows) == 4
    for row in rows:
        asking = set(queues) if row[0] == "all" else set(re.findall(r"team-[abc]", row[0]))
        shares = divided(total, {name: gpu for name, gpu in queues.items() if name in asking})
        assert [float(cell) for cell in row[1:]] == [pytest.approx(shares.get(name, 0)) for name in queues], (
            row
        )


def divided(total: float, queues: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Divide GPUs as KAI does (`resource_division.go`, v0.17.0): quotas first, the rest by weight up to limits."""
    shares = {name: min(gpu["quota"], total) for name, gpu in queues.items()}
    while (rest := total - sum(shares.values())) > 1e-9:
        open_ones = {
            name: gpu for name, gpu in queues.items() if gpu["limit"] == -1 or shares[name] < gpu["limit"]
        }
        if not open_ones:
            break
        weights = sum(gpu["overQuotaWeight"] for gpu in open_ones.values())
        for name, gpu in open_ones.items():
            more = rest * gpu["overQuotaWeight"] / weights
            shares[name] += more if gpu["limit"] == -1 else min(more, gpu["limit"] - shares[name])
    return shares
