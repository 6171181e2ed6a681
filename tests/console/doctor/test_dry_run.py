"""The dry runs of pods: where no namespace has a policy, and what a webhook's refusal says."""

import json

import pytest
from aiohttp import web

from console.doctor.api_reader import ListOutcome, ListResult
from console.doctor.check_results import State
from console.doctor.cluster_state import Namespace
from console.doctor.dry_run import dry_run_findings
from kube.client import KubeClient
from tests.support.api_server import ApiServer, refuses
from tests.support.cluster_facts import but, namespace, validating, whole


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


@pytest.mark.parametrize(
    ("message", "state"),
    [
        ('admission webhook "validate.kyverno.svc-fail" denied the request: a label is required', State.OK),
        ("pods \"x\" is forbidden: ValidatingAdmissionPolicy 'labels' with binding 'b' denied request: no", State.OK),
        ('admission webhook "other" denied the request: failed calling webhook "pods.mutate.kaishare.dev"', State.OK),
        ('admission webhook "pods.validate.kaishare.dev" denied the request: no', State.PROBLEM),
        ('admission webhook "admission.kai-scheduler.svc" denied the request: no', State.PROBLEM),
        ('admission webhook "renamed.example.com" denied the request: no', State.PROBLEM),
        ('Internal error occurred: failed calling webhook "validate.kyverno.svc-fail": timeout', State.PROBLEM),
    ],
)  # fmt: skip
async def test_a_refusal_is_a_problem_only_if_a_webhook_of_kaishare_or_kai_refuses_or_one_fails(
    server: ApiServer, client: KubeClient, message: str, state: State
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "/namespaces/a/" in request.path:
            return await refuses(403, "Forbidden", message)(request)
        pod = await request.json()
        pod["metadata"] |= {"labels": {"kai.scheduler/queue": "team-a"}}
        pod["spec"]["schedulerName"] = "kai-scheduler"
        return web.Response(text=json.dumps(pod), content_type="application/json")

    server.always = answer
    policies = whole(namespace("a", mode="enforce"), namespace("b", mode="enforce"))
    cluster = but(namespaces=policies, validating=whole(validating(name="renamed.example.com")))
    (finding,) = await dry_run_findings(client, cluster)
    assert finding.state is state
    assert finding.what.startswith("refused in a: " if state is State.PROBLEM else "in b the pod gets queue")
