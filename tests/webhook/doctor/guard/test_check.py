"""The doctor's check of the guard, on the manifests of deploy/guard."""

from collections.abc import Iterable
from typing import Any

import pytest

from kube.client import KubeClient
from service.check_results import CheckResult, State
from tests.support.api_server import ApiServer, refuses
from tests.support.cluster_facts import WELL, but, namespace, whole
from tests.support.guard import GUARD, rendered
from tests.support.guarded_api_server import HOST, GuardedApi
from tests.support.hollow_guards import HOLLOW, UNCHANGED_EFFECT, HollowGuard, variable
from tests.support.markers import sampled
from webhook.doctor.api_reader import ApiReader
from webhook.doctor.cluster import Cluster
from webhook.doctor.guard.check import guard_findings

ENFORCED = but(namespaces=whole(namespace("strict", mode="enforce"), namespace("vision")))
REMEDY = "apply this release's guard (chart: guard.action=deny; or kubectl apply -k deploy/guard/deny)"
POLICIES = "kaishare-guard-keys, kaishare-guard-owners, kaishare-guard-references"
STANDS = (
    "refuses ways past the webhook in 1 namespace, the same as this release's; proved by dry runs in strict:"
    f" {POLICIES}; kaiNamespaces: kai-scheduler"
)
READY = (
    "ready for vClusters, the same as this release's; compared, not proved; kaiNamespaces: kai-scheduler;"
    " schedulerName: kai-scheduler"
)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.doctor.guard.proof._TAKES_EFFECT_SECONDS", 0)


async def findings(client: KubeClient, cluster: Cluster = ENFORCED) -> list[CheckResult]:
    return await guard_findings(ApiReader(client), cluster)


def serve(server: ApiServer, objects: list[dict[str, Any]], **options: Any) -> GuardedApi:
    api = GuardedApi(objects=objects, **options)
    api.serve_on(server)
    return api


def lines(results: Iterable[CheckResult], *states: State) -> list[str]:
    return [result.what for result in results if result.state in states]


async def test_the_guard_on_deny_stands(server: ApiServer, client: KubeClient) -> None:
    serve(server, rendered(GUARD / "deny"))
    results = await findings(client)
    assert [(result.state, result.what) for result in results] == [(State.OK, STANDS), (State.OK, READY)]


@pytest.mark.parametrize("overlay", ["audit", "warn"])
async def test_a_guard_that_refuses_nothing_is_a_warning_and_is_not_proved(
    server: ApiServer, client: KubeClient, overlay: str
) -> None:
    api = serve(server, rendered(GUARD / overlay))
    report, proof = await findings(client)
    assert report.state is State.WARNING
    assert report.what == (
        f"strict: kaishare.dev/mode=enforce, but the guard only reports violations of {POLICIES}"
    )
    assert proof.state is State.UNKNOWN
    assert proof.what.startswith("compared, not proved: kaishare-guard-keys (an existing pod), ")
    assert proof.what.endswith(": the binding does not deny")
    assert api.edits == []


@pytest.mark.parametrize(
    ("without", "what"),
    [
        ("kaishare-guard-keys", "the guard lacks kaishare-guard-keys"),
        ("kaishare-guard-keys-enforce", "the guard lacks kaishare-guard-keys"),
        ("kaishare-guard-owners-enforce", "the guard lacks kaishare-guard-owners"),
        ("kaishare-guard-queues", ""),
        ("kaishare-guard-queues-vclusters", ""),
        ("kaishare-guard", "the guard is not installed"),
    ],
)
async def test_a_missing_policy_or_binding_is_named(
    server: ApiServer, client: KubeClient, without: str, what: str
) -> None:
    names = {without} if without != "kaishare-guard" else {item["metadata"]["name"] for item in rendered()}
    serve(server, [item for item in rendered() if item["metadata"]["name"] not in names])
    results = await findings(client)
    assert lines(results, State.PROBLEM, State.UNKNOWN) == []
    assert lines(results, State.WARNING) == (
        [f"strict: kaishare.dev/mode=enforce, but {what}"] if what else []
    )


@pytest.mark.parametrize("hollow", HOLLOW.values(), ids=HOLLOW)
async def test_each_hollow_guard_is_a_problem(
    server: ApiServer, client: KubeClient, hollow: HollowGuard
) -> None:
    serve(server, hollow.applied_to(rendered(GUARD / "deny")))
    results = await findings(client)
    (complaint,) = [result for result in results if result.state in (State.PROBLEM, State.WARNING)]
    assert complaint.state is State.PROBLEM
    assert (
        complaint.what
        == f"{hollow.name} differs from this release's in {hollow_paths(hollow)}: it may admit forbidden edits"
    )
    assert complaint.advice == REMEDY
    assert lines(results, State.OK) == []


def hollow_paths(hollow: HollowGuard) -> str:
    more = "spec.matchConditions.changes-metadata-or-is-read-whole, "
    return more + hollow.path if hollow.path == "spec.matchConditions.never" else hollow.path


@pytest.mark.parametrize("title", sampled(HOLLOW, 5))
async def test_a_hollow_guard_that_only_audits_is_a_warning(
    server: ApiServer, client: KubeClient, title: str
) -> None:
    hollow = HOLLOW[title]
    serve(server, hollow.applied_to(rendered(GUARD / "audit")))
    results = await findings(client)
    assert lines(results, State.PROBLEM, State.OK) == []
    assert [what for what in lines(results, State.WARNING) if what.startswith(f"{hollow.name} differs")]


@pytest.mark.parametrize("changed", UNCHANGED_EFFECT.values(), ids=UNCHANGED_EFFECT)
async def test_a_change_without_an_effect_on_refusals_is_a_warning(
    server: ApiServer, client: KubeClient, changed: HollowGuard
) -> None:
    serve(server, changed.applied_to(rendered(GUARD / "deny")))
    results = await findings(client)
    assert lines(results, State.WARNING) == [
        f"{changed.name} differs from this release's in {changed.path}, but refuses the same requests"
    ]
    assert lines(results, State.OK) == [STANDS, READY]


async def test_at_most_five_differences_are_named(server: ApiServer, client: KubeClient) -> None:
    objects = rendered(GUARD / "deny")
    for item in objects:
        if item["metadata"]["name"] == "kaishare-guard-keys":
            item["spec"]["variables"][4:] = []
    serve(server, objects)
    (problem,) = lines(await findings(client), State.PROBLEM)
    assert problem.count("spec.variables.") == 5
    assert " and " in problem
    assert " more: it may admit" in problem


async def test_a_namespace_that_no_binding_selects_is_named(server: ApiServer, client: KubeClient) -> None:
    objects = rendered()
    for item in objects:
        selector = item["spec"].get("matchResources", {}).get("namespaceSelector")
        if selector:
            selector["matchExpressions"][-1]["values"].append("strict")
    api = serve(server, objects, pods={"tight": ["train-0"]})
    both = but(namespaces=whole(namespace("strict", mode="enforce"), namespace("tight", mode="enforce")))
    results = await findings(client, both)
    assert lines(results, State.PROBLEM) == [
        f"strict: kaishare.dev/mode=enforce, but no binding selects them for {POLICIES}"
    ]
    assert lines(results, State.OK, State.WARNING) == []
    assert {path.split("/")[4] for _, path in api.edits} == {"tight"}


# --- several bindings ---


def another(objects: list[dict[str, Any]], **spec: Any) -> list[dict[str, Any]]:
    """Add a binding of kaishare-guard-keys under another name."""
    (item,) = (item for item in objects if item["metadata"]["name"] == "kaishare-guard-keys-enforce")
    return [*objects, {**item, "metadata": {"name": "mine"}, "spec": {**item["spec"], **spec}}]


async def test_a_binding_that_audits_in_addition_changes_nothing(
    server: ApiServer, client: KubeClient
) -> None:
    serve(server, another(rendered(GUARD / "deny"), validationActions=["Audit"]))
    assert lines(await findings(client), *State) == [STANDS, READY]


async def test_one_complete_binding_that_denies_is_enough(server: ApiServer, client: KubeClient) -> None:
    objects = HOLLOW["a binding for pods/status"].applied_to(
        another(rendered(GUARD / "deny"), validationActions=["Deny"])
    )
    mine = objects[-1]["spec"] = {**objects[-1]["spec"], "matchResources": matching(objects)}
    assert "resourceRules" not in mine["matchResources"]
    serve(server, objects)
    assert lines(await findings(client), *State) == [STANDS, READY]


def matching(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (item,) = (item for item in objects if item["metadata"]["name"] == "kaishare-guard-owners-enforce")
    result: dict[str, Any] = item["spec"]["matchResources"]
    return result


async def test_a_complete_binding_that_audits_does_not_replace_a_hollow_one(
    server: ApiServer, client: KubeClient
) -> None:
    objects = HOLLOW["a binding for pods/status"].applied_to(rendered(GUARD / "deny"))
    complete = another(rendered(GUARD / "audit"))[-1]
    serve(server, [*objects, complete])
    (problem,) = lines(await findings(client), State.PROBLEM, State.WARNING)
    assert problem.startswith("kaishare-guard-keys-enforce differs from this release's in ")


# --- vClusters ---


async def test_the_guard_of_vclusters_is_proved_in_a_host_namespace(
    server: ApiServer, client: KubeClient
) -> None:
    api = serve(server, rendered(GUARD / "deny"), pods={HOST: ["train-x-ml-x-a"]})
    (stands,) = await findings(client, WELL)
    assert (stands.state, stands.what) == (
        State.OK,
        (
            "refuses forbidden edits of vClusters in 1 host namespace, the same as this release's; proved by dry runs in"
            f" {HOST}: kaishare-guard-keys, kaishare-guard-queues; kaiNamespaces: kai-scheduler; schedulerName: kai-scheduler"
        ),
    )
    assert api.edits == [
        ("PATCH", f"/api/v1/namespaces/{HOST}/pods/train-x-ml-x-a"),
        ("POST", f"/api/v1/namespaces/{HOST}/pods"),
        ("POST", f"/api/v1/namespaces/{HOST}/pods"),
    ]


@pytest.mark.parametrize("without", ["kaishare-guard-queues", "kaishare-guard-queues-vclusters"])
async def test_a_missing_part_of_the_guard_of_vclusters_is_named(
    server: ApiServer, client: KubeClient, without: str
) -> None:
    objects = [item for item in rendered(GUARD / "deny") if item["metadata"]["name"] != without]
    serve(server, objects, pods={HOST: ["a"]})
    assert lines(await findings(client, WELL), *State) == [
        f"{HOST}: pods of vClusters, but the guard lacks kaishare-guard-queues"
    ]


async def test_the_guard_of_vclusters_on_audit_is_a_warning_where_there_are_vclusters(
    server: ApiServer, client: KubeClient
) -> None:
    serve(server, rendered(GUARD / "audit"))
    assert lines(await findings(client, WELL), *State) == []
    serve(server, rendered(GUARD / "audit"), pods={HOST: ["a"]})
    report, proof = await findings(client, WELL)
    assert report.what == (
        f"{HOST}: pods of vClusters, but the guard only reports violations of kaishare-guard-keys, kaishare-guard-queues"
    )
    assert "compared, not proved" in proof.what


def excluding(*requirements: dict[str, Any]) -> list[dict[str, Any]]:
    objects = rendered(GUARD / "deny")
    for item in objects:
        if item["metadata"]["name"].endswith("-vclusters"):
            item["spec"]["matchResources"]["namespaceSelector"] = {"matchExpressions": list(requirements)}
    return objects


async def test_an_excluded_host_namespace_is_named_and_is_no_problem(
    server: ApiServer, client: KubeClient
) -> None:
    unguarded = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [HOST]}
    api = serve(server, excluding(unguarded), pods={HOST: ["a"]})
    (stands,) = await findings(client, WELL)
    assert stands.state is State.OK
    assert stands.what.endswith(f"; not guarded: {HOST}")
    assert "compared, not proved" in stands.what
    assert api.edits == []


async def test_host_namespaces_that_are_selected_by_labels_are_a_warning(
    server: ApiServer, client: KubeClient
) -> None:
    serve(server, excluding({"key": "guarded", "operator": "Exists"}), pods={HOST: ["a"]})
    results = await findings(client, WELL)
    assert lines(results, *State) == [
        f"{name} selects host namespaces by more than their names: compared, not proved"
        for name in ("kaishare-guard-keys-vclusters", "kaishare-guard-queues-vclusters")
    ]


# --- parameters, rights, old API servers ---


async def test_the_parameters_are_named(server: ApiServer, client: KubeClient) -> None:
    objects = rendered(GUARD / "deny")
    for item in objects:
        if item["metadata"]["name"] == "kaishare-guard-references":
            variable(item["spec"], "moreOwnerKinds")["expression"] = "['ClusterQueue.kueue.x-k8s.io']"
    serve(server, objects)
    results = await findings(client)
    assert [result.state for result in results] == [State.OK, State.OK]
    assert results[0].what.endswith(
        "; kaiNamespaces: kai-scheduler; moreOwnerKinds: ClusterQueue.kueue.x-k8s.io"
    )


async def test_a_tenants_namespace_among_kais_is_a_problem(server: ApiServer, client: KubeClient) -> None:
    objects = rendered(GUARD / "deny")
    for item in objects:
        if item["metadata"]["name"] == "kaishare-guard-keys":
            variable(item["spec"], "kaiNamespaces")["expression"] = "['kai-scheduler', 'strict']"
    serve(server, objects)
    results = await findings(client)
    assert lines(results, *State) == [
        (
            "kaishare-guard-keys: kaiNamespaces has strict: the accounts of the tenant's namespace strict may change"
            " everything that the guard protects"
        )
    ]
    assert results[0].state is State.PROBLEM


async def test_without_guard_and_without_an_enforced_namespace_nothing_is_reported(
    server: ApiServer, client: KubeClient
) -> None:
    serve(server, [])
    assert await findings(client, WELL) == []


async def test_without_the_right_to_list_the_state_is_unknown(server: ApiServer, client: KubeClient) -> None:
    server.always = refuses(403, "Forbidden")
    reader = ApiReader(client)
    assert await guard_findings(reader, ENFORCED) == []
    (finding,) = reader.missing
    assert finding.state is State.UNKNOWN
    assert "list validatingadmissionpolicies.admissionregistration.k8s.io" in finding.what
    assert "list validatingadmissionpolicybindings.admissionregistration.k8s.io" in finding.what


async def test_an_object_that_cannot_be_decoded_leaves_the_check_without_a_verdict(
    server: ApiServer, client: KubeClient
) -> None:
    broken = {"kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "b"}, "spec": []}
    serve(server, [*rendered(GUARD / "deny"), broken])
    assert lines(await findings(client), *State) == []


async def test_an_api_server_without_admission_policies_has_no_guard(
    server: ApiServer, client: KubeClient
) -> None:
    server.always = refuses(404, "NotFound")
    (finding,) = await findings(client)
    assert finding.what == "strict: kaishare.dev/mode=enforce, but the guard is not installed"
