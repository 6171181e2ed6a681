"""The digest of the guard's policies, and the surroundings without which its rules do not hold."""

import copy
from typing import Any

import msgspec
import pytest

from console.cluster.facts import FactReader
from console.doctor import admission
from console.doctor.admission import DIGEST
from console.doctor.check_results import CheckResult, State
from console.doctor.guard import guard_stands
from kube.client import KubeClient
from kube.kinds import AdmissionPolicySpec
from tests.support import cluster_facts
from tests.support.cluster_facts import but, installed, mutating, of_kai, other, whole
from tests.support.guard import rendered

OPTIONAL = {"subgroups": True, "configMap": True, "maxGraceSeconds": 3600}


def digest(spec: dict[str, Any]) -> str:
    return admission.digest(msgspec.convert(spec, AdmissionPolicySpec))


def policies() -> list[dict[str, Any]]:
    return [item for item in rendered(optional=OPTIONAL) if not item["kind"].endswith("Binding")]


def test_every_policy_of_the_chart_has_its_digest() -> None:
    digests = {item["metadata"]["name"]: item["metadata"]["annotations"][DIGEST] for item in policies()}
    assert digests == {item["metadata"]["name"]: digest(item["spec"]) for item in policies()}
    assert len(digests) == 7


def test_values_of_the_chart_change_no_digest() -> None:
    changed = rendered(
        kaiNamespaces=["kai"],
        schedulerName="kai-b",
        preemptibleClasses=["low"],
        unguardedNamespaces=["a"],
        optional={**OPTIONAL, "maxGraceSeconds": 60},
    )
    for item in changed:
        if not item["kind"].endswith("Binding"):
            assert digest(item["spec"]) == item["metadata"]["annotations"][DIGEST]


@pytest.mark.parametrize(
    "part", ["matchConstraints", "matchConditions", "variables", "validations", "mutations"]
)
def test_a_change_of_any_part_changes_the_digest(part: str) -> None:
    specs = [item["spec"] for item in policies() if item["spec"].get(part)]
    assert specs
    for spec in specs:
        changed = copy.deepcopy(spec)
        if part == "matchConstraints":
            changed[part]["resourceRules"][0]["operations"].pop()
        else:
            changed[part].pop()
        assert digest(changed) != digest(spec)


async def findings(client: KubeClient, **changes: Any) -> list[CheckResult]:
    """Return the findings about the chart's guard where no namespace needs it."""
    cluster = but(admission=cluster_facts.admission(rendered()), **changes)
    return [result async for result in guard_stands(cluster, FactReader(client))]


async def test_kai_resource_management_and_the_guard_exclude_each_other(client: KubeClient) -> None:
    ready = installed(program="podgroupcontroller", is_ready=True)
    assert await findings(client, mutating=whole(mutating(), of_kai()), installation=ready) == []
    assigned = whole(mutating(), of_kai(), other("kai-pod-group-mutation"))
    (finding,) = await findings(client, mutating=assigned, installation=ready)
    assert finding.state is State.PROBLEM
    assert finding.what.startswith("kai-resource-management writes queues on PodGroups")


async def test_a_podgroup_controller_that_does_not_run_is_a_problem(client: KubeClient) -> None:
    for installation in (
        installed(program="podgroupcontroller"),
        installed(program="scheduler", is_ready=True),
    ):
        (finding,) = await findings(client, installation=installation)
        assert finding.state is State.PROBLEM
        assert finding.what.startswith("KAI's podgroup-controller is not running")
    assert await findings(client, installation=None) == [], "unknown"
