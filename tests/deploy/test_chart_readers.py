"""Values of the chart for readers: tokens, the readers' role, TLS, and Prometheus as a reader."""

from typing import Any

import pytest

from console.cluster.agents import AGENT_ACCOUNT, AGENT_NAMESPACE
from gpuagent.cli import _parser as agent_parser
from kube.tokens import right_url
from service.http.authentication import HEALTH_PATHS
from service.page import static_pages
from tests.support.chart_variants import AGENT, WEBHOOK
from tests.support.helm_chart import (
    CHART,
    agent_pod,
    container,
    find_object,
    helm,
    kinds,
    options,
    rendered,
    webhook_pod,
)
from webhook.cli import _parser as webhook_parser

READER = "kaishare-metrics-reader"
ACCOUNT, TOKENS = "kaishare-reader", "kaishare-reader-tokens"
ON: dict[str, Any] = {"authentication": {"enabled": True}}
TLS: dict[str, Any] = {"webhook": {"opsTlsSecret": "webhook-tls"}, "agent": {"tlsSecret": "agent-tls"}}
MONITORS: dict[str, Any] = {"enabled": True, "tokenSecret": {"name": "prometheus", "key": "bearer"}}
PODS = {"webhook": (webhook_pod, webhook_parser), "agent": (agent_pod, agent_parser)}
PAGES = {*static_pages(), "/metrics", "/api/v1/shares", "/api/v1/history", "/policies"}
REVIEWS = {("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews")}


def reviews(values: dict[str, Any], name: str) -> set[tuple[str, str]]:
    """Return the reviews that a service account may create."""
    rules = find_object(rendered(values), "ClusterRole", name)["rules"]
    pairs = {
        (group, resource)
        for rule in rules
        if rule["verbs"] == ["create"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    return pairs & REVIEWS


def test_nothing_asks_for_tokens_and_no_account_may_review_them_unless_it_is_asked_for() -> None:
    assert ("ClusterRole", READER) not in kinds(rendered())
    for name, (make, parser) in PODS.items():
        assert parser().parse_args(container(make())["args"]).authentication == "none"
        assert reviews({}, f"kaishare-{name}") == set()


@pytest.mark.parametrize("name", PODS)
def test_a_service_that_asks_for_tokens_may_review_them(name: str) -> None:
    make, parser = PODS[name]
    assert parser().parse_args(container(make(ON))["args"]).authentication == "tokens"
    assert reviews(ON, f"kaishare-{name}") == REVIEWS


def test_the_readers_role_has_every_page_by_the_url_that_the_services_ask_for() -> None:
    def urls(values: dict[str, Any]) -> set[str]:
        (rule,) = find_object(rendered(values), "ClusterRole", READER)["rules"]
        assert rule["verbs"] == ["get"]
        return set(rule["nonResourceURLs"])

    assert urls(ON) == {right_url(path) for path in PAGES}
    assert urls({**ON, **WEBHOOK}) == {"/metrics", "/kaishare/policies"}
    assert urls({**ON, **AGENT}) == urls(ON) - {"/kaishare/policies"}
    assert ("ClusterRole", READER) not in kinds(rendered({**ON, **WEBHOOK, **AGENT}))
    # /api and /api/* belong to every authenticated user by Kubernetes' role system:discovery.
    assert not any(url.startswith("/api") for url in urls(ON))
    aggregated = rendered({"authentication": {"enabled": True, "readerLabels": {"aggregate": "true"}}})
    assert find_object(aggregated, "ClusterRole", READER)["metadata"]["labels"]["aggregate"] == "true"


@pytest.mark.parametrize("name", PODS)
def test_tls_has_its_secret_and_the_kubelet_its_scheme(name: str) -> None:
    make, parser = PODS[name]
    plain, pod = make(), make(TLS)
    options = parser().parse_args(container(pod)["args"])
    directory = options.certs if name == "agent" else options.ops_certs
    (mount,) = container(pod)["volumeMounts"]
    assert (mount["mountPath"], mount["readOnly"]) == (str(directory), True)
    (volume,) = pod["spec"]["volumes"]
    assert volume["secret"] == {"secretName": f"{name}-tls", "defaultMode": 0o440}
    assert pod["spec"]["securityContext"]["fsGroup"] == pod["spec"]["securityContext"]["runAsGroup"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = container(pod)[probe]["httpGet"]
        assert get["path"] in HEALTH_PATHS  # the kubelet has no token
        assert get["scheme"] == "HTTPS"
        assert "scheme" not in container(plain)[probe]["httpGet"]


def endpoint(values: dict[str, Any], name: str) -> dict[str, Any]:
    (fields,) = find_object(rendered(values), "PodMonitor", f"kaishare-{name}")["spec"]["podMetricsEndpoints"]
    assert isinstance(fields, dict)
    return fields


@pytest.mark.parametrize(("name", "namespace"), [("webhook", "kaishare"), ("agent", "kaishare-agent")])
def test_prometheus_follows_the_ports(name: str, namespace: str) -> None:
    usual = endpoint({"monitors": {"enabled": True}}, name)
    assert not {"scheme", "tlsConfig", "authorization"} & set(usual)
    with_token = endpoint({**ON, "monitors": MONITORS}, name)
    assert with_token["authorization"] == {
        "type": "Bearer",
        "credentials": {"name": "prometheus", "key": "bearer"},
    }
    assert "scheme" not in with_token
    over_tls = endpoint({**ON, **TLS, "monitors": MONITORS}, name)
    assert (over_tls["scheme"], over_tls["tlsConfig"]) == ("https", {"insecureSkipVerify": True})
    trusted = {"ca": {"secret": {"name": "ca", "key": "ca.crt"}}}
    verified = endpoint({**TLS, "monitors": {**MONITORS, "tlsConfig": trusted}}, name)
    assert verified["tlsConfig"] == {**trusted, "serverName": f"kaishare-{name}.{namespace}.svc"}
    assert "authorization" not in verified
    named = endpoint({**TLS, "monitors": {**MONITORS, "tlsConfig": {**trusted, "serverName": "x"}}}, name)
    assert named["tlsConfig"]["serverName"] == "x"


# The account of people's tokens.


def test_the_account_of_peoples_tokens_exists_with_authentication_alone() -> None:
    objects = [
        ("ServiceAccount", ACCOUNT),
        ("ClusterRole", ACCOUNT),
        ("ClusterRoleBinding", ACCOUNT),
        ("Role", TOKENS),
    ]
    for values in ({}, {**ON, **WEBHOOK}):
        assert not set(objects) & kinds(rendered(values))
    assert set(objects) <= kinds(rendered({**ON, **AGENT}))
    assert (ACCOUNT, find_object(rendered(ON), "ServiceAccount", ACCOUNT)["metadata"]["namespace"]) == (
        AGENT_ACCOUNT,
        AGENT_NAMESPACE,
    )


def test_the_account_has_one_role_and_no_pod_runs_with_its_token() -> None:
    objects = rendered({**ON, "agent": {"namespace": "gpu-agents"}})
    account = find_object(objects, "ServiceAccount", ACCOUNT)
    assert account["automountServiceAccountToken"] is False
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "gpu-agents"}
    bindings = [item for item in objects if subject in item.get("subjects", ())]
    assert [(item["kind"], item["roleRef"]["name"]) for item in bindings] == [("ClusterRoleBinding", ACCOUNT)]
    # Not /metrics, which is a path of the API server, too.
    assert find_object(objects, "ClusterRole", ACCOUNT)["rules"] == [
        {
            "nonResourceURLs": [right_url("/api/v1/shares"), right_url("/api/v1/history")],
            "verbs": ["get"],
        }
    ]
    names = [
        item["spec"]["template"]["spec"].get("serviceAccountName")
        for item in objects
        if "template" in item.get("spec", {})
    ]
    assert names
    assert ACCOUNT not in names


def test_only_the_named_readers_may_create_its_tokens() -> None:
    assert not [item for item in rendered(ON) if item["kind"] == "RoleBinding" and TOKENS in str(item)]
    readers: list[dict[str, str]] = [
        {"kind": "Group", "name": "oidc:platform team"},
        {"kind": "User", "name": "a@example.com"},
        {"kind": "ServiceAccount", "name": "ci", "namespace": "builds"},
    ]
    objects = rendered({"authentication": {"enabled": True, "readers": readers}})
    binding, role = find_object(objects, "RoleBinding", TOKENS), find_object(objects, "Role", TOKENS)
    assert binding["metadata"]["namespace"] == role["metadata"]["namespace"] == AGENT_NAMESPACE
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": TOKENS,
    }
    assert [subject["name"] for subject in binding["subjects"]] == [reader["name"] for reader in readers]
    assert binding["subjects"][2] == readers[2]
    assert {(rule["resources"][0], *rule["verbs"]) for rule in role["rules"]} == {
        ("serviceaccounts/token", "create"),
        ("pods", "list"),
        ("pods/proxy", "get"),
    }
    (tokens,) = (rule for rule in role["rules"] if rule["resources"] == ["serviceaccounts/token"])
    assert tokens["resourceNames"] == [ACCOUNT]


@pytest.mark.parametrize(
    "reader",
    [
        {"kind": "ServiceAccount", "name": "ci"},
        {"kind": "Group", "name": "platform", "namespace": "builds"},
        {"kind": "Robot", "name": "platform"},
        {"kind": "Group", "name": ""},
        "platform",
    ],
)
def test_a_reader_that_rbac_would_refuse_or_misread_is_refused_by_the_schema(reader: object) -> None:
    values = {"authentication": {"enabled": True, "readers": [reader]}}
    done = helm("template", "kaishare", str(CHART), *options(values))
    assert done.returncode != 0
    assert "readers" in done.stderr


VIEW = {"subjects": [{"kind": "Group", "name": "developers"}], "namespaces": ["team-a", "team-b"]}


def test_the_view_of_a_namespace_is_off_by_default_and_gives_one_right_in_it() -> None:
    name = "kaishare-viewer"
    assert not [item for item in rendered(ON) if item["metadata"]["name"] == name]
    objects = rendered({"authentication": {"enabled": True, "namespaceView": VIEW}})
    role = find_object(objects, "ClusterRole", name)
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    shares = {"apiGroups": ["kaishare.dev"], "resources": ["shares"], "verbs": ["get"]}
    tokens = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [name], "verbs": ["create"]}  # fmt: skip
    assert role["rules"] == [shares, tokens]
    own = [item for item in objects if item["metadata"]["name"] == name and item["kind"] != "ClusterRole"]
    assert sorted((item["metadata"]["namespace"], item["kind"]) for item in own) == [
        ("kaishare-agent", "Role"),
        ("kaishare-agent", "RoleBinding"),
        *(
            (team, kind)
            for team in ("team-a", "team-b")
            for kind in ("Role", "RoleBinding", "ServiceAccount")
        ),
    ]
    by_place = {(item["metadata"]["namespace"], item["kind"]): item for item in own}
    assert by_place["team-a", "Role"]["rules"] == [shares]
    assert by_place["team-a", "RoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": name, "namespace": "team-a"}
    ]
    way = by_place["kaishare-agent", "Role"]["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in way] == [
        (["pods"], ["list"]),
        (["pods/proxy"], ["get"]),
    ]
