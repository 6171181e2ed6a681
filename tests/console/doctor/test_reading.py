"""Facts from API servers that refuse, are unreachable or are something else; checks that ask the cluster."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from console.cluster.facts import FactReader, items
from console.doctor.check_results import CheckResult, State, as_text, exit_status, named
from console.doctor.cluster_state import ClusterFacts, DoctorOptions, Scope, read_cluster
from console.doctor.command import reach
from console.doctor.dry_run import pods_are_changed
from console.doctor.kai_checks import no_kai_inside_vclusters, nodes_are_added, runtime_classes_exist
from console.doctor.policy_checks import enforce_is_enforced
from console.doctor.registration import caller_may_install, webhook_exists
from console.render.policy_manifests import MUTATING, objects_of
from kai.installation import Installation
from kube.access import InCluster
from kube.client import KubeClient
from kube.kinds import PODS, Container
from tests.console.doctor.test_checks import BATCH, NAMES, matching
from tests.support.api_server import Answer, ApiServer, lists, refuses, says
from tests.support.cluster_facts import (
    KAI_CONDITION,
    UNREAD,
    but,
    installed,
    namespace,
    of_kai,
    other,
    validating,
    whole,
)
from tests.support.kinds import made
from tests.support.kube_objects import reservation
from tests.support.published_settings import settings_object
from tests.support.webhook_checks import examine
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode
from webhook.registration.configuration_objects import WebhookConfiguration
from webhook.registration.configurations import CONFIGURATION_NAME


async def examined(server: ApiServer, account: Path) -> list[CheckResult]:
    return await examine(InCluster(folder=account, environment=server.environment), CONFIGURATION_NAME)


async def results(check: Any, cluster: ClusterFacts, client: KubeClient) -> list[CheckResult]:
    return [*named(NAMES[check], [each async for each in check(cluster, FactReader(client))])]


def always(item: Any) -> Answer:
    """Return an answer to any request: a list of one item."""
    return says(json.dumps({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": [item]}))


@pytest.mark.parametrize(
    "answer",
    [
        says("<html>not found</html>", status=404, kind="text/html"),  # a web server that is something else
        says(""),
        says('{"kind": "List", "metadata": {}}'),
        says(b"\xff\xfe"),
        refuses(401, "Unauthorized"),
        refuses(429, "TooManyRequests", Retry_After="1"),
        refuses(503, "ServiceUnavailable", "\x1b[31mred\nlines"),
        always("text"),
        always({"metadata": {"name": 5}}),
        always({"metadata": {"name": "a", "labels": {"kaishare.dev/mode": 5}}, "webhooks": {}}),
    ],
)
async def test_an_invalid_api_server_is_a_problem(server: ApiServer, account: Path, answer: Answer) -> None:
    server.always = answer
    answers = await examined(server, account)
    assert exit_status(answers) == 1
    assert all(line.isprintable() for line in as_text(answers).splitlines())
    problems = {result.check for result in answers if result.state is State.PROBLEM}
    assert problems & {"managed namespaces", "API server"}


async def test_a_caller_without_rights_is_no_problem_and_one_line(server: ApiServer, account: Path) -> None:
    server.always = refuses(403, "Forbidden")
    answers = await examined(server, account)
    assert exit_status(answers) == 0
    (rights,) = [result for result in answers if result.check == "rights"]
    assert rights.state is State.UNKNOWN
    assert rights.what.startswith("not visible to you: ")
    assert rights.advice.startswith(
        "kaishare doctor -n NAMESPACE checks one namespace with your rights; the rights to ask for: list"
        " mutatingwebhookconfigurations.admissionregistration.k8s.io, list "
    )


async def test_an_unreachable_server_ends_the_checks_at_once(server: ApiServer, account: Path) -> None:
    await server.stop()
    (result,) = await examined(server, account)
    assert (result.state, result.check) == (State.PROBLEM, "API server")
    assert "Connection refused" in result.what


@pytest.mark.parametrize(
    ("path", "answer", "expected"),
    [
        ("/podgroups", refuses(500, "InternalError"), "unknown: PodGroups: podgroups not read: "),
        ("/configmaps", refuses(500, "InternalError"), "unknown: settings: the webhook's settings are not"),
        ("/kai-scheduler/pods", refuses(500, "InternalError"), "unknown: API server: pods in kai-scheduler not read"),
        ("/namespaces", refuses(500, "InternalError"), "problem: managed namespaces: namespaces not read: "),
        ("/priorityclasses", always({"metadata": 1}), "unknown: priorities: 1 object of priorityclasses cannot"),
    ],
)  # fmt: skip
async def test_a_check_says_by_itself_what_it_could_not_read(
    server: ApiServer, account: Path, path: str, answer: Answer, expected: str
) -> None:
    server.refusals = {"/version": says('{"major": "1", "minor": "36"}'), path: answer}
    lines = [f"{each.state}: {each.check}: {each.what}" for each in await examined(server, account)]
    assert any(line.startswith(expected) for line in lines), lines
    assert len([line for line in lines if line.startswith(expected)]) == 1, "once"


@pytest.mark.parametrize(
    ("scope", "namespace"), [(Scope.CLUSTER, ""), (Scope.NAMESPACE, "a"), (Scope.PRE, "")]
)
async def test_a_scope_reads_no_more_than_it_needs(
    server: ApiServer, client: KubeClient, scope: Scope, namespace: str
) -> None:
    server.always = refuses(403, "Forbidden")
    await read_cluster(FactReader(client), DoctorOptions(scope=scope, namespace=namespace))
    paths = [request.path for request in server.requests]
    assert ("/api/v1/nodes" in paths) is (scope is not Scope.NAMESPACE)
    assert ("/api/v1/pods" in paths) is (scope is not Scope.NAMESPACE)
    assert ("/api/v1/namespaces/a/pods" in paths) is (scope is Scope.NAMESPACE)
    assert ("/api/v1/namespaces/a" in paths) is (scope is Scope.NAMESPACE)
    assert any("podgroups" in path for path in paths) is (scope is not Scope.PRE)


def list_path(kind: str) -> str:
    return f"/apis/admissionregistration.k8s.io/v1/{kind}"


NOT_KNOWN = "unknown: installation: no configuration kai-00-kaishare exists, and whether "
ABSENT = "problem: installation: kaishare's webhook is not installed here"
ENFORCED = whole(namespace("a"), namespace("e", mode="enforce"))


def altered(field: str, value: Any) -> Answer:
    """Return a list of the policy with another value of a field."""
    (item, *_) = objects_of(MUTATING, DecisionSettings())
    *parents, last = field.split("/")
    holder = item["spec"]
    for parent in parents:
        holder = holder[parent]
    holder[last] = value
    return lists(item)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (refuses(403, "Forbidden"), NOT_KNOWN),
        (refuses(500, "InternalError"), NOT_KNOWN),
        (says('{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": 1}}]}'), NOT_KNOWN),
        *(
            (altered(field, value), NOT_KNOWN)
            for field in ("variables", "matchConstraints", "matchConstraints/resourceRules")
            for value in (1, "x", [None], [1])
        ),
        (refuses(404, "NotFound"), ABSENT),
        (lists(), ABSENT),
    ],
)
async def test_policies_that_could_not_be_read_or_have_another_form_are_not_missing(
    server: ApiServer, client: KubeClient, answer: Answer, expected: str
) -> None:
    server.refusals = {
        list_path("mutatingwebhookconfigurations"): lists(),
        list_path("validatingwebhookconfigurations"): lists(),
        list_path("mutatingadmissionpolicies"): answer,
    }
    cluster = await read_cluster(FactReader(client), DoctorOptions())
    assert cluster.admission.is_known is (expected == ABSENT)
    cluster = replace(cluster, namespaces=ENFORCED)
    (finding,) = webhook_exists(cluster)
    assert f"{finding.state}: installation: {finding.what}".startswith(expected)
    assert any(enforce_is_enforced(cluster)) is (expected == ABSENT)


def notable_pod(annotations: dict[str, str], **spec: Any) -> str:
    metadata = {"name": "p", "namespace": "a", "labels": {"runai-gpu-group": "g"}, "annotations": annotations}
    container = {"name": "main", "env": [{"name": "WORLD_SIZE", "value": "4"}], **spec.pop("container", {})}
    spec = {"schedulerName": "kai-scheduler", "nodeName": "n", "containers": [container], **spec}
    return json.dumps({"metadata": metadata, "spec": spec})


GIVEN = {"kaishare.dev/reason": "whole-gpu-converted", "pod-group-name": "pg"}
RANK = ("a/p", "", "WORLD_SIZE is 4", ("a", "pg"), ("g",))


@pytest.mark.parametrize(
    ("document", "distributed", "expected"),
    [
        (notable_pod(GIVEN), "keep", [RANK]),
        (notable_pod(GIVEN), "share", []),
        (notable_pod(GIVEN, nodeName=""), "keep", []),
        (notable_pod(GIVEN, schedulerName="default-scheduler"), "keep", []),
        (notable_pod(GIVEN, nodeName="", runtimeClassName="kata"), "keep", [("a/p", "runtime-class", "", ("a", "pg"), ("g",))]),
        (notable_pod({}, nodeName="", runtimeClassName="kata"), "keep", []),
        ("[]", "keep", []),
    ],
)  # fmt: skip
async def test_pods_that_keep_a_share_or_are_ranks_are_read(
    server: ApiServer, client: KubeClient, document: str, distributed: str, expected: list[Any]
) -> None:
    labels = {
        "kai.scheduler/queue": "q",
        "kaishare.dev/gpu-fraction": "0.5",
        "kaishare.dev/distributed": distributed,
    }
    server.refusals = {
        r"/v1/namespaces(\?|$)": lists({"metadata": {"name": "a", "labels": labels}}),
        "/v1/pods.*queue": lists(json.loads(document)),
        "": lists(),
    }
    cluster = await read_cluster(FactReader(client), DoctorOptions())
    assert [*items(cluster.notable)] == expected


async def test_what_the_chart_publishes_counts_for_admission_policies(
    server: ApiServer, client: KubeClient
) -> None:
    settings = settings_object(DecisionSettings(default_mode=Mode.OBSERVE))
    policies = lists(*objects_of(MUTATING, DecisionSettings()))
    server.refusals = {
        "kaishare-settings": says(json.dumps(settings)),
        "mutatingadmissionpolicies": policies,
        "": lists(),
    }
    cluster = await read_cluster(FactReader(client), DoctorOptions())
    assert (cluster.is_by_policies, cluster.running.rules.default_mode) == (True, Mode.OBSERVE)


IN_KAI = {"service": {"name": "admission", "namespace": "kai", "path": "/mutate--v1-pod"}}


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ([matching(KAI_CONDITION), of_kai("b", clientConfig=IN_KAI)], "kai"),
        ([matching(KAI_CONDITION)], "batch-system"),
        ([matching(BATCH), other("c")], "kai-scheduler"),
    ],
)
async def test_kais_service_names_its_namespace_before_a_match_on_its_scheduler(
    server: ApiServer, client: KubeClient, hooks: list[WebhookConfiguration], expected: str
) -> None:
    server.refusals[list_path("mutatingwebhookconfigurations")] = lists(*map(msgspec.to_builtins, hooks))
    assert (await read_cluster(FactReader(client), DoctorOptions())).kai_namespace == expected


def status(reason: str, **details: str) -> str:
    return json.dumps({"kind": "Status", "reason": reason, "details": details})


REVIEW = '{"kind": "SelfSubjectAccessReview", "status": {"allowed": %s}}'
NO_KAI = but(scope=Scope.PRE, installation=Installation.seen_in(()))


@pytest.mark.parametrize(
    ("check", "cluster", "answer", "expected"),
    [
        # Only an object proves that a RuntimeClass exists. Before an installation KAI may set none.
        (runtime_classes_exist, but(), says('{"metadata": {"name": "nvidia"}}'), "ok: "),
        (runtime_classes_exist, but(installation=installed("--gpu-fraction-runtime-class-name=", "--runtime-class-name=gpu", program="binder")), says(status("NotFound", name="gpu"), status=404), "problem: \"gpu\", which KAI sets"),
        (runtime_classes_exist, but(), says("<!DOCTYPE html><p>Log in"), "unknown: "),
        (runtime_classes_exist, but(), says("{}"), "unknown: "),
        (runtime_classes_exist, but(), says(status("NotFound", name="nvidia"), status=404), "problem: "),
        (runtime_classes_exist, but(), says(status("Forbidden"), status=403), "unknown: "),
        (runtime_classes_exist, but(), says(status(""), status=500), "unknown: "),
        (runtime_classes_exist, NO_KAI, says('{"metadata": {"name": "nvidia"}}'), "ok: "),
        (runtime_classes_exist, NO_KAI, says(status("NotFound", name="nvidia"), status=404), "warning: "),
        (runtime_classes_exist, NO_KAI, says("{}"), "unknown: "),
        # Without a policy no pod is created.
        (pods_are_changed, but(namespaces=whole()), says("{}"), "unknown: no namespace has a policy that would change a pod"),
        (pods_are_changed, but(namespaces=UNREAD), says("{}"), "unknown: the policies are not known"),
        (caller_may_install, but(), says(REVIEW % "true"), "ok: the caller may create webhook configurations"),
        (caller_may_install, but(), says(REVIEW % "false"), "problem: the caller may not create mutatingwebhookconfigurations.ad"),
        (caller_may_install, but(), says("[]"), "unknown: "),
    ],
)  # fmt: skip
async def test_a_check_of_one_answer(
    server: ApiServer, client: KubeClient, check: Any, cluster: ClusterFacts, answer: Answer, expected: str
) -> None:
    server.always = answer
    (finding,) = await results(check, cluster, client)
    assert f"{finding.state}: {finding.what}".startswith(expected)


@pytest.mark.parametrize(("minor", "release"), [("36+", (1, 36)), ("x", None)])
async def test_the_release_of_the_api_server(
    server: ApiServer, client: KubeClient, minor: str, release: tuple[int, int] | None
) -> None:
    server.always = says(json.dumps({"major": "1", "minor": minor}))
    assert (await reach(client))[1] == release


TENANT = "reservation-1-x-kai-resource-reservation-x-red"


HOST_NAME, OF = "vcluster.loft.sh/object-host-name", "vcluster.loft.sh/object-namespace"


def tenants_reservation(
    host: str = "red", *, phase: str = "Running", spec: Any = None, **annotations: str
) -> dict[str, Any]:
    """A reservation pod of a KAI inside a vCluster, as vCluster's syncer copies it to the host."""
    pod = reservation(namespace=host, phase=phase)
    pod["metadata"]["name"] = TENANT
    pod["metadata"]["labels"]["vcluster.loft.sh/managed-by"] = "red"
    own = {OF: "kai-resource-reservation", HOST_NAME: TENANT, "vcluster.loft.sh/object-host-namespace": host}
    pod["metadata"]["annotations"] |= own | annotations
    pod["spec"] |= {"schedulerName": "default-scheduler", **(spec or {})}  # the API server's default
    return pod


def hosting(**changes: Any) -> ClusterFacts:
    pods = [PODS.decode(json.dumps(made("Pod", "p", name))) for name in ("red", "blue")]
    labelled = namespace("red", vcluster="true")
    return but(**{"namespaces": whole(labelled), "synced": whole(*pods), **changes})


@pytest.mark.parametrize(
    ("pod", "changes", "is_warned"),
    [
        (tenants_reservation(), {}, True),
        (tenants_reservation(), {"installation": Installation.seen_in(())}, False),
        (tenants_reservation(), {"namespaces": whole()}, False),
        (tenants_reservation(phase="Succeeded"), {}, False),
        (tenants_reservation(**{OF: "default"}), {}, False),
        (tenants_reservation(**{HOST_NAME: "another"}), {}, False),
        (tenants_reservation(spec={"nodeName": ""}), {}, False),
        (tenants_reservation(spec={"schedulerName": "kai-scheduler"}), {}, False),
        (tenants_reservation("blue"), {}, False),
    ],
)  # fmt: skip
async def test_a_kai_inside_a_vcluster_beside_that_of_the_host_is_a_warning_that_names_its_pod(
    server: ApiServer, client: KubeClient, pod: dict[str, Any], changes: dict[str, Any], is_warned: bool
) -> None:
    server.refusals = {"/api/v1/pods": lists(pod)}
    findings = await results(no_kai_inside_vclusters, hosting(**changes), client)
    words = f"inside vClusters, too (pod red/{TENANT} of red): a KAI on the host deletes"
    assert [(each.check, each.state, words in each.what) for each in findings] == [
        ("vClusters", State.WARNING, True)
    ] * is_warned


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
    (finding,) = await results(pods_are_changed, cluster, client)
    assert finding.state is state
    assert finding.what.startswith("refused in a: " if state is State.PROBLEM else "in b the pod gets queue")
    assert bool(finding.advice) is ("failed calling" in message and state is State.PROBLEM)


OTHER_KIND = "problem: answers, but not as an API server: GET /version: "


@pytest.mark.parametrize(
    ("answer", "expected", "advice"),
    [
        *((says(body), OTHER_KIND, "compare the address") for body in ("<!DOCTYPE html><p>Log in", "[]", "")),
        (refuses(302, "Found"), OTHER_KIND.rpartition(": GET")[0], "compare the address"),
        (refuses(401, "Unauthorized"), "problem: does not accept your credentials: 401", "log in again; nothing else was checked"),
        (refuses(403, "Refused"), "ok: answers (no version: ", ""),
        (refuses(404, "Refused"), "ok: answers (no version: ", ""),
    ],
)  # fmt: skip
async def test_an_api_server_of_another_kind_or_another_user_is_a_problem(
    server: ApiServer, client: KubeClient, answer: Answer, expected: str, advice: str
) -> None:
    server.always = answer
    reached, release = await reach(client)
    assert release is None
    assert expected in f"{reached.state}: {reached.what}".replace(f"{client.server} ", "")
    assert reached.advice.startswith(advice)


ADJUSTER = Container(image="ghcr.io/kai-scheduler/node-scale-adjuster:v0.17.0")

SHARING = but(namespaces=whole(namespace("team-a", gpu_fraction="0.5")))


def _groups(*names: str) -> dict[str, Any]:
    kind = {"kind": "NodePool"}
    resources = [{"resource": "nodepools", "scope": "Cluster", "responseKind": kind}]
    versions = [{"version": "v1", "resources": resources}]
    return {"items": [{"metadata": {"name": name}, "versions": versions} for name in names]}


UNSEEN = "warning: no node is added for a pod with a share: "


@pytest.mark.parametrize(
    ("cluster", "has_status", "groups", "expected"),
    [
        (SHARING, True, (), [f"{UNSEEN}cluster-autoscaler cannot see"]),
        (SHARING, False, ("apps", "karpenter.sh"), [f"{UNSEEN}Karpenter cannot"]),
        (SHARING, True, ("karpenter.sh",), [f"{UNSEEN}Karpenter, cluster-autoscaler cannot"]),
        (SHARING, False, ("apps",), []),
        (but(installation=Installation.seen_in([(ADJUSTER, False)])), True, (), ["ok: KAI's node-scale-adjuster asks"]),
        # without shares, and without KAI
        (but(namespaces=whole()), True, (), []),
        (but(scope=Scope.PRE, installation=Installation.seen_in(())), True, (), []),
    ],
)  # fmt: skip
async def test_autoscaling(
    server: ApiServer, client: KubeClient, cluster: ClusterFacts, has_status: bool, groups: tuple[str, ...],
    expected: list[str],
) -> None:  # fmt: skip
    name = "cluster-autoscaler-status"
    found, missing = (
        says(json.dumps({"metadata": {"name": name}})),
        says(status("NotFound", name=name), status=404),
    )
    server.refusals = {"/apis$": says(json.dumps(_groups(*groups))), name: found if has_status else missing}
    lines = [f"{each.state}: {each.what}" for each in await results(nodes_are_added, cluster, client)]
    assert [text[: len(words)] for text, words in zip(lines, expected, strict=True)] == expected
