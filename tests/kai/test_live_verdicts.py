"""Pods judged by running KAI 0.9.8, 0.13.4 and 0.17.0, compared with `kai.refusals`."""

import json
from typing import Any

import pytest

from kai.refusals import asks_for_share, share_container
from kai.releases import Version
from tests.support.kai_oracle import refusal, runtime_class
from tests.support.pods import folder_from, view

RELEASES = ("v0.9.8", "v0.13.4", "v0.17.0")
# What the API server refuses by itself, whatever KAI does: fractional and unlimited GPU quantities.
API_SERVER_ONLY = {"whole 1500m", "request only", "fraction + 2m"}


def recorded(release: str, name: str) -> list[dict[str, Any]]:
    folder = folder_from("KAISHARE_FIXTURES", "the recorded verdicts of running KAI")
    rows: list[dict[str, Any]] = json.loads((folder / f"kai-live-{release}" / name).read_text())
    return rows


@pytest.mark.parametrize("release", RELEASES)
def test_every_recorded_verdict(release: str) -> None:
    version = Version.parse(release)
    rows = recorded(release, "admission-verdicts.json")
    judged = 0
    for row in rows:
        if row["case"] in API_SERVER_ONLY:
            assert row["refusedBy"] == "kube-apiserver"
            continue
        judged += 1
        pod = view(row["pod"])
        denial = refusal(pod, version)
        assert (denial is None) is row["admitted"], row["case"]
        if denial is not None:
            assert denial.by == row["refusedBy"], row["case"]
            if denial.by == "kai":
                assert denial.message == row["message"], row["case"]
            continue
        is_shared = asks_for_share(pod) and pod.scheduler_name == "kai-scheduler"
        container = [share_container(pod, version).name] if is_shared else []
        assert container == row["shareEnvIn"], row["case"]
        assert runtime_class(pod, version) == row["runtimeClassName"], row["case"]
    assert judged == 130 - len(API_SERVER_ONLY)


def test_recorded_verdicts_with_sharing_off() -> None:
    rows = recorded("v0.13.4", "admission-verdicts-sharing-off.json")
    for row in rows:
        denial = refusal(view(row["pod"]), Version.parse("v0.13.4"), sharing=False)
        assert (denial.message if denial else None) == row.get("message"), row["case"]
    assert len(rows) >= 4
