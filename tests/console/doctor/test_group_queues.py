"""PodGroups in another queue than their namespace's, and host namespaces of vClusters without the label."""

from typing import Any

import msgspec
import pytest

from console.doctor.api_reader import ListOutcome, ListResult
from console.doctor.check_results import CheckResult, State
from console.doctor.cluster_state import Cluster
from console.doctor.counted_pod_groups import PodGroup
from console.doctor.queue_checks import group_queue_findings
from console.doctor.vclusters import VclusterHosts, host_findings
from tests.support.cluster_facts import but, namespace, whole


def group(place: str, queue: str = "team-a", owner: str = "", **resources: Any) -> PodGroup:
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": "u"}] if owner else []
    document = {
        "metadata": {"name": "pg-door", "namespace": place, "ownerReferences": owners},
        "spec": {"queue": queue},
        "status": {"resourcesStatus": resources},
    }
    return msgspec.convert(document, PodGroup)


def findings_of(*groups: PodGroup, **changes: Any) -> list[CheckResult]:
    modes = (namespace("vision"), namespace("strict", mode="enforce"), namespace("quiet", mode="observe"))
    cluster: Cluster = but(namespaces=whole(*modes), pod_groups=whole(*groups), **changes)
    return list(group_queue_findings(cluster))


@pytest.mark.parametrize(
    "groups",
    [(), (group("vision"),), (group("strict"),), (group("quiet", "queue-b"),), (group("elsewhere", "b"),)],
)
def test_groups_in_their_namespaces_queue(groups: tuple[PodGroup, ...]) -> None:
    (finding,) = findings_of(*groups)
    assert (finding.check, finding.state) == ("PodGroups", State.OK)


def test_a_door_from_before_enforce_is_named_with_the_step_to_take_first() -> None:
    (finding,) = findings_of(group("vision", "queue-b", "door"))
    assert finding.state is State.WARNING
    assert 'vision/pg-door in "queue-b" of ConfigMap door' in finding.what
    assert finding.advice.startswith(
        "delete these PodGroups, or their owners, before kaishare.dev/mode=enforce"
    )


@pytest.mark.parametrize("queue", ["queue-b", ""])
def test_a_door_under_enforce_is_a_problem(queue: str) -> None:
    (finding,) = findings_of(group("strict", queue), group("vision"))
    assert finding.state is State.PROBLEM
    assert f'strict/pg-door in "{queue}"' in finding.what
    assert finding.advice.startswith("delete the objects that own them, with their pods")


def test_a_part_of_the_groups_is_not_called_right() -> None:
    cluster: Cluster = but(pod_groups=ListResult((), ListOutcome.PART))
    assert list(group_queue_findings(cluster)) == []


@pytest.mark.parametrize(
    ("resources", "has_pods"),
    [
        ({}, False),
        ({"allocated": {}, "requested": None}, False),
        ({"requested": {"cpu": "1"}}, True),
        ({"allocated": {"nvidia.com/gpu": "500m"}}, True),
    ],
)
def test_a_group_has_pods_while_its_status_has_resources(resources: dict[str, Any], has_pods: bool) -> None:
    assert group("vision", **resources).has_pods is has_pods


def host_findings_of(labels: dict[str, dict[str, str]], with_pods: set[str]) -> list[CheckResult]:
    items = [namespace(name, **values) for name, values in labels.items()]
    labelled = frozenset(name for name, values in labels.items() if values.get("vcluster") == "true")
    cluster: Cluster = but(namespaces=whole(*items))
    return list(host_findings(cluster, VclusterHosts(labelled, frozenset(with_pods))))


def test_hosts_that_need_the_label_come_with_the_command() -> None:
    assert host_findings_of({"host": {"vcluster": "true"}}, {"host"}) == []
    assert host_findings_of({"host": {"vcluster": "true"}}, set()) == []
    (finding,) = host_findings_of({"host": {"vcluster": "true"}}, {"host", "team-b", "team-a"})
    assert finding.state is State.WARNING
    assert "pods of team-a, team-b have vCluster's keys" in finding.what
    assert finding.advice.endswith("kubectl label namespace team-a team-b kaishare.dev/vcluster=true")


def test_a_host_under_enforce_without_the_label_is_a_problem() -> None:
    (finding,) = host_findings_of({"host": {"mode": "enforce"}}, {"host"})
    assert (finding.state, finding.what.endswith("mode enforce denies such pods in host")) == (
        State.PROBLEM,
        True,
    )
