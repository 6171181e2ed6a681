"""The dry run of a pod where no namespace is known to have a policy."""

import pytest

from kube.client import KubeClient
from service.check_results import State
from tests.support.cluster_facts import but
from webhook.doctor.api_reader import ListOutcome, ListResult
from webhook.doctor.cluster import Namespace
from webhook.doctor.dry_run import dry_run_findings


@pytest.mark.parametrize(
    ("namespaces", "why"),
    [
        (ListResult((), ListOutcome.WHOLE), "no namespace has a policy that would change a pod"),
        (ListResult(), "the policies are not known"),
    ],
)
async def test_without_a_policy_no_pod_is_created(
    client: KubeClient, namespaces: ListResult[Namespace], why: str
) -> None:
    (finding,) = await dry_run_findings(client, but(namespaces=namespaces))
    assert (finding.state, finding.what) == (State.UNKNOWN, why)
