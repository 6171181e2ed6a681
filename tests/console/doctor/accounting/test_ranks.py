"""Ranks of distributed jobs that share a GPU."""

from typing import Any

from console.doctor.accounting import rank_findings
from kube.client import KubeClient
from tests.console.doctor.accounting.test_reader import Doctor, serve
from tests.support.api_server import ApiServer
from tests.support.cluster_facts import namespace, whole
from tests.support.kai_accounts import KaiAccounts

TWO_RANKS = [{"name": "WORLD_SIZE", "value": "2"}]


def with_ranks(*fractions: str, env: Any = TWO_RANKS, group: str | None = "pg-job") -> KaiAccounts:
    """Return a cluster with a rank for each share; an empty share is a whole GPU."""
    accounts = KaiAccounts.of_two_nodes()
    for number, fraction in enumerate(fractions):
        pod = accounts.run(f"rank-{number}", 0 if fraction else 1, fraction=fraction)
        pod["spec"]["containers"][0]["env"] = env
        pod["metadata"]["annotations"]["pod-group-name"] = group or ""
    return accounts


def findings(accounts: KaiAccounts, *namespaces: str) -> list[str]:
    return [f"{f.state}: {f.what}" for f in rank_findings(accounts.reading(), namespaces or ("team-b",))]


MET = (
    "warning: 2 ranks on a GPU with another rank of the job: team-b/rank-0 (WORLD_SIZE is 2), team-b/rank-1"
    " (WORLD_SIZE is 2)"
)


def test_two_ranks_of_a_job_on_one_gpu() -> None:
    assert findings(with_ranks("0.5", "0.5")) == [MET]
    assert findings(with_ranks("0.5", "0.5"), "team-a") == []


def test_ranks_on_gpus_of_their_own() -> None:
    assert findings(with_ranks("", "")) == ["ok: no GPU has two ranks of a job; 2 ranks with whole GPUs"]
    accounts = with_ranks("0.5", "0.5")
    accounts.pods[1]["metadata"]["labels"]["runai-gpu-group"] = "another"
    assert findings(accounts) == ["ok: no GPU has two ranks of a job; 0 ranks with whole GPUs"]


def test_ranks_of_different_jobs_on_one_gpu() -> None:
    accounts = with_ranks("0.5", "0.5")
    accounts.pods[1]["metadata"]["annotations"]["pod-group-name"] = "pg-other"
    assert [line.partition(":")[0] for line in findings(accounts)] == ["ok"]
    assert [line.partition(":")[0] for line in findings(with_ranks("0.5", "0.5", group=None))] == ["ok"]


def test_pods_without_evidence_are_no_ranks() -> None:
    assert findings(with_ranks("0.5", "0.5", env=[])) == []
    assert findings(with_ranks("", "", env=[{"name": "WORLD_SIZE", "value": "1"}])) == []
    accounts = with_ranks("0.5", "0.5")
    for pod in accounts.pods:
        pod["spec"]["schedulerName"] = "default-scheduler"
    assert findings(accounts) == []


async def test_the_policy_of_the_namespace_decides(server: ApiServer, client: KubeClient) -> None:
    serve(server, with_ranks("0.5", "0.5"))
    queue = {"kai.scheduler/queue": "team-b"}
    for labels, expected in (
        (queue, [MET]),
        (queue | {"kaishare.dev/distributed": "share"}, []),
        (queue | {"kaishare.dev/mode": "off"}, []),
        ({"kai.scheduler/queue": "-"}, []),
    ):
        lines = await Doctor(server, client).examine(namespaces=whole(namespace("team-b", **labels)))
        assert [line for line in lines if "rank of the job" in line] == expected, labels
