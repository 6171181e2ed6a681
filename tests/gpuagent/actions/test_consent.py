"""Consent to an eviction: what the API server answers about the namespace and the pod, and what it means."""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from gpuagent.actions.consent import CONSENT_SECONDS, read_consent
from gpuagent.actions.eviction_rules import Budget, NotEvicted, candidates
from gpuagent.pods.node_pods import read_pod
from gpuagent.verdicts.verdict import Verdict
from kai import keys
from kai.kaishare_keys import MODE, OVER_SHARE, VCLUSTER
from kube.client import KubeClient
from tests.support.api_server import Answer, ApiServer, refuses, says
from tests.support.evaluations import RULES, SHARE, Node
from tests.support.eviction_histories import BUDGET, History, with_older_consent
from tests.support.kube_objects import GROUP_0, fraction, namespace_object
from tests.support.markers import sampled
from tests.support.samples import GIB, pod_share, uid_of

Object = dict[str, Any]
NAMESPACE_PATH = "/api/v1/namespaces/research"
POD_PATH = f"{NAMESPACE_PATH}/pods/half"
EVICT = {OVER_SHARE: "evict", keys.QUEUE_LABEL: "team-a"}
MIRRORED_EVICT = {"vcluster.loft.sh/ns-label-vc-x-f57c43a42d": "evict"}
"""The label `over-share` of a tenant's namespace, as vCluster copies it to the host pod."""
SYNCED = {
    keys.VCLUSTER_HOST_NAME: "half",
    keys.VCLUSTER_HOST_NAMESPACE: "research",
    keys.VCLUSTER_OBJECT_NAME: "train-0",
    keys.VCLUSTER_OBJECT_NAMESPACE: "ml",
}


def pod_object() -> Object:
    """Return the pod as the API server has it."""
    made = fraction()
    made["metadata"]["uid"] = uid_of("half")
    return made


def verdict_on(made: Object) -> Verdict:
    """Return the verdict on this pod, 12 GiB on a share of 8 GiB."""
    node_pod = read_pod(json.dumps(made).encode())
    resolved = pod_share("half", SHARE, pod=node_pod)
    (verdict,) = candidates(Node(resolved).flagged({"half": 12 * GIB}))
    return verdict


def named(server: ApiServer, namespace: Object | None, pod: Object | None) -> None:
    server.objects = {
        path: item for path, item in ((NAMESPACE_PATH, namespace), (POD_PATH, pod)) if item is not None
    }


async def read(client: KubeClient, judged: Object | None = None, *, accepts_edits: bool = False) -> str:
    verdict, reason = verdict_on(judged or pod_object()), NotEvicted("consent", "none")
    try:
        await read_consent(client, verdict, rules=RULES, clock=time.monotonic, accepts_edits=accepts_edits)
    except NotEvicted as error:
        reason = error
    assert reason.line
    assert "\n" not in reason.line
    return reason.result


async def test_consent_is_read_by_two_quorum_reads(server: ApiServer, client: KubeClient) -> None:
    """A GET without resourceVersion; any resourceVersion would allow the API server to answer from memory."""
    named(server, namespace_object("research", EVICT), pod_object())
    began = time.monotonic()
    expires_at = await read_consent(client, verdict_on(pod_object()), rules=RULES, clock=time.monotonic)
    assert [(request.method, request.path, dict(request.query)) for request in server.requests] == [
        ("GET", NAMESPACE_PATH, {}),
        ("GET", POD_PATH, {}),
    ]
    assert began <= expires_at - CONSENT_SECONDS <= time.monotonic()


@pytest.mark.parametrize(
    ("labels", "is_synced", "answer"),
    [
        (EVICT, False, "consent"),
        ({**EVICT, MODE: "observe"}, False, "consent"),
        ({**EVICT, MODE: "off"}, False, "consent-withdrawn"),
        ({**EVICT, OVER_SHARE: "report"}, False, "consent-withdrawn"),
        ({**EVICT, OVER_SHARE: "Evict"}, False, "consent-withdrawn"),
        ({keys.QUEUE_LABEL: "team-a"}, False, "consent-withdrawn"),
        ({OVER_SHARE: "evict"}, False, "consent-withdrawn"),
        ({}, False, "consent-withdrawn"),
        ({**EVICT, **{f"example.com/{n}": "x" * 60 for n in range(500)}, MODE: "off"}, False, "consent-withdrawn"),
        ({OVER_SHARE: "evict", VCLUSTER: "true"}, True, "consent"),
        ({OVER_SHARE: "evict", VCLUSTER: "true", MODE: "off"}, True, "consent-withdrawn"),
        ({OVER_SHARE: "evict", VCLUSTER: "false"}, True, "consent-withdrawn"),
        ({OVER_SHARE: "evict"}, True, "consent-withdrawn"),
        ({VCLUSTER: "true"}, True, "consent-withdrawn"),
        ({}, True, "consent-withdrawn"),
    ],
    ids=["evict", "observe", "off", "report", "misspelt", "gone", "no queue", "none", "off among many",
         "a vCluster needs no queue", "its host's is off", "no vCluster", "no label of one", "no eviction", "none of a host"],
)  # fmt: skip
async def test_labels_of_the_namespace_decide_and_a_vclusters_tenant_is_not_asked(
    server: ApiServer, client: KubeClient, labels: dict[str, str], is_synced: bool, answer: str
) -> None:
    pod = pod_object()
    if is_synced:
        pod["metadata"]["labels"] |= {keys.VCLUSTER_MANAGED_BY: "vc", **MIRRORED_EVICT}
        pod["metadata"]["annotations"] |= SYNCED
    named(server, namespace_object("research", labels), pod)
    assert await read(client, pod) == answer


def changed(*path: str, to: Any) -> Callable[[Object], None]:
    def change(item: Object) -> None:
        for key in path[:-1]:
            item = item.setdefault(key, {})
        item[path[-1]] = to

    return change


OF_POD = [
    (changed("metadata", "resourceVersion", to="77"), "consent"),
    (changed("metadata", "labels", "example.com/any", to="x"), "consent"),
    (changed("metadata", "annotations", "example.com/any", to="x"), "consent"),
    (changed("metadata", "uid", to="11111111-2222-4333-8444-555555555555"), "gone"),
    (changed("metadata", "deletionTimestamp", to="2026-11-22T00:00:00Z"), "terminating"),
    (changed("status", "phase", to="Succeeded"), "not-running"),
    (changed("status", "phase", to="Failed"), "not-running"),
    (changed("metadata", "annotations", keys.MIRROR_POD, to="x"), "static-pod"),
    (changed("metadata", "annotations", keys.GPU_FRACTION, to="0.9"), "pod-changed"),
    (changed("metadata", "annotations", f"{keys.CONTAINER_PREFIX}main.gpu-memory.limit", to="1Gi"), "pod-changed"),
    (changed("metadata", "labels", keys.GPU_GROUP, to="other"), "pod-changed"),
    (changed("metadata", "labels", f"{keys.GPU_GROUP_PREFIX}{GROUP_0}", to=GROUP_0), "pod-changed"),
    (changed("metadata", "uid", to=""), "failed"),
    (changed("metadata", "uid", to=None), "failed"),
    (changed("metadata", "annotations", to=[]), "failed"),
    (changed("status", to="Running"), "failed"),
    (changed("kind", to="Status"), "failed"),
]  # fmt: skip
OF_NAMESPACE = [
    (changed("metadata", "deletionTimestamp", to="2026-11-22T00:00:00Z"), "consent-withdrawn"),
    (changed("metadata", "labels", to=None), "consent-withdrawn"),
    (changed("metadata", "labels", to="evict"), "failed"),
    (changed("metadata", "labels", OVER_SHARE, to=True), "failed"),
    (changed("metadata", "name", to="other"), "failed"),
    (changed("metadata", to=None), "failed"),
    (changed("kind", to="Status"), "failed"),
]


@pytest.mark.parametrize(
    ("name", "change", "answer"),
    [*(("pod", *row) for row in OF_POD), *(("namespace", *row) for row in OF_NAMESPACE)],
)
async def test_the_answers_must_be_the_namespace_and_the_pod_of_the_verdict(
    server: ApiServer, client: KubeClient, name: str, change: Callable[[Object], None], answer: str
) -> None:
    objects = {"namespace": namespace_object("research", dict(EVICT)), "pod": pod_object()}
    change(objects[name])
    named(server, objects["namespace"], objects["pod"])
    assert await read(client, pod_object()) == answer


async def test_only_an_edit_of_the_share_may_be_accepted(server: ApiServer, client: KubeClient) -> None:
    fresh = pod_object()
    fresh["metadata"]["annotations"][keys.GPU_FRACTION] = "0.9"
    named(server, namespace_object("research", EVICT), fresh)
    assert await read(client) == "pod-changed"
    assert await read(client, accepts_edits=True) == "consent"
    fresh["metadata"]["deletionTimestamp"] = "2026-11-22T00:00:00Z"
    assert await read(client, accepts_edits=True) == "terminating"
    named(server, namespace_object("research", {}), pod_object())
    assert await read(client, accepts_edits=True) == "consent-withdrawn"


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hang(_request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


@pytest.mark.parametrize("path", [NAMESPACE_PATH, POD_PATH])
@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        (refuses(403, "Forbidden"), "forbidden"), (refuses(404, "NotFound"), "gone"),
        (says("404 page not found", status=404, kind="text/plain"), "failed"),
        (refuses(401, "Unauthorized"), "failed"), (refuses(410, "Gone"), "failed"),
        (refuses(429, "TooManyRequests", Retry_After="1"), "failed"), (refuses(500, "InternalError"), "failed"),
        (refuses(503, "ServiceUnavailable"), "failed"), (says(""), "failed"), (says("{}"), "failed"),
        (says("null"), "failed"), (says("<h1>log in</h1>", kind="text/html"), "failed"),
        (says('{"kind":"Namespace"}'), "failed"), (says('{"kind":"Pod","metadata":{"name":"half"}}'), "failed"),
        (says(json.dumps(pod_object())[:200]), "failed"), (cut, "failed"),
    ],
)  # fmt: skip
async def test_any_other_answer_is_no_consent(
    server: ApiServer, client: KubeClient, path: str, wrong: Answer, answer: str
) -> None:
    right = {NAMESPACE_PATH: namespace_object("research", EVICT), POD_PATH: pod_object()}

    async def respond(request: web.Request) -> web.StreamResponse:
        return await (wrong if request.path == path else says(json.dumps(right[request.path])))(request)

    server.always = respond
    assert await read(client) == answer


async def test_no_answer_in_2_seconds_is_no_consent(server: ApiServer, client: KubeClient) -> None:
    named(server, namespace_object("research", EVICT), pod_object())
    server.refusals = {POD_PATH: hang}
    began = time.monotonic()
    assert await read(client) == "failed"
    assert time.monotonic() - began < CONSENT_SECONDS / 2


async def test_the_wait_that_the_api_server_asks_for_is_kept(server: ApiServer, client: KubeClient) -> None:
    server.always = refuses(429, "TooManyRequests", Retry_After="17")
    with pytest.raises(NotEvicted) as reason:
        await read_consent(client, verdict_on(pod_object()), rules=RULES, clock=time.monotonic)
    assert reason.value.retry_after == 17


HISTORIES = 500


@pytest.mark.parametrize("part", sampled(range(20), 20))
def test_no_generated_history_has_an_eviction_without_fresh_consent(part: int) -> None:
    results: Counter[str] = Counter()
    sent = carried_out = 0
    for seed in range(part * HISTORIES, (part + 1) * HISTORIES):
        history = History(seed).run()
        assert not history.violations
        times = history.client.carried_out
        if not history.has_lost_records:
            pairs = itertools.pairwise(times)
            assert all(later - sooner >= BUDGET.seconds for sooner, later in pairs), f"seed {seed}: {times}"
        results += history.results
        sent += len(history.client.sent)
        carried_out += len(times)
    assert sent > HISTORIES / 10, "most histories must come close to an eviction"
    assert carried_out > HISTORIES / 20
    reasons = (
        "consent-withdrawn pod-changed gone terminating not-running forbidden failed disruption-budget budget"
    )
    for result in ("evicted", "owner-backoff", *reasons.split()):
        assert results[result] > HISTORIES / 1000, (result, results)


@pytest.mark.nightly
def test_the_check_finds_consent_that_is_too_old() -> None:
    with with_older_consent(60.0):
        assert any(History(seed, budget=Budget(9, 1)).run().violations for seed in range(500))
