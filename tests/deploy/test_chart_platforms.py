"""Values of the chart for the needs of platforms: networks, registries, further settings of pods, old clusters."""

import re
from typing import Any

import pytest

from gpuagent.cli import _parser as agent_parser
from tests.support.helm_chart import (
    CHART,
    NAMESPACE,
    ROOT,
    Object,
    agent_pod,
    container,
    find_object,
    helm,
    options,
    rendered,
    webhook_pod,
)
from webhook.cli import _parser as webhook_parser

PODS = {"webhook": webhook_pod, "agent": agent_pod}
KINDS = {"webhook": "Deployment", "agent": "DaemonSet"}
ON_THE_NODE = {"webhook": {"hostNetwork": True, "port": 9443, "opsPort": 9080, "createNamespace": True}}


def refusal(*arguments: str, values: dict[str, Any] | None = None) -> str:
    """Return helm's message for a chart that it does not render."""
    done = helm(
        "template", "kaishare", str(CHART), "--kube-version", "1.30.0", *arguments, *options(values or {})
    )
    assert done.returncode != 0
    return done.stderr


def test_api_servers_reach_the_agents_port_from_their_addresses_only_if_given() -> None:
    def sources(values: dict[str, Any]) -> list[Object]:
        (rule,) = find_object(rendered(values), "NetworkPolicy", "kaishare-agent")["spec"]["ingress"]
        assert rule["ports"] == [{"port": "http"}]
        peers: list[Object] = rule["from"]
        return peers

    monitoring = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    assert sources({}) == monitoring
    assert sources({"networkPolicies": {"apiServerCIDRs": ["10.0.0.10/32", "fd00::/64"]}}) == [
        *monitoring,
        {"ipBlock": {"cidr": "10.0.0.10/32"}},
        {"ipBlock": {"cidr": "fd00::/64"}},
    ]


def test_the_chart_accepts_the_port_that_the_page_on_clouds_names() -> None:
    ports = re.findall(r"`webhook\.port=(\d+)`", (ROOT / "docs" / "clouds.md").read_text(encoding="utf-8"))
    assert ports
    for port in ports:
        (admission, _) = container(webhook_pod({"webhook": {"port": int(port)}}))["ports"]
        assert admission["containerPort"] == int(port)


def test_the_webhook_may_use_the_network_of_its_node() -> None:
    objects = rendered(ON_THE_NODE)
    spec = find_object(objects, "Deployment", "kaishare-webhook")["spec"]
    pod = spec["template"]["spec"]
    assert pod["hostNetwork"] is True
    # Otherwise the pod resolves names as its node does, and finds no Service.
    assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]} == {
        "admission": 9443,
        "ops": 9080,
    }
    assert {"--listen=:9443", "--ops-listen=:9080"} <= set(pod["containers"][0]["args"])
    # Pods with the same ports of the host cannot share a node: with a surge, an update on as many nodes as replicas
    # would never end. The budget and the update then agree: one replica less at a time.
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert find_object(objects, "PodDisruptionBudget", "kaishare-webhook")["spec"]["minAvailable"] == 1
    namespace = find_object(objects, "Namespace", NAMESPACE)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def test_a_single_webhook_on_its_node_is_replaced_without_a_gap() -> None:
    objects = rendered({"webhook": {"hostNetwork": True, "replicas": 1}})
    spec = find_object(objects, "Deployment", "kaishare-webhook")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_the_webhook_usually_has_a_network_of_its_own() -> None:
    pod = webhook_pod()["spec"]
    assert not {"hostNetwork", "dnsPolicy"} & set(pod)
    spec = find_object(rendered(), "Deployment", "kaishare-webhook")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_pull_secrets_may_be_names_or_objects() -> None:
    values = {"imagePullSecrets": ["registry", {"name": "mirror"}]}
    for make in PODS.values():
        assert make(values)["spec"]["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]


@pytest.mark.parametrize("part", PODS)
def test_pods_have_the_further_settings(part: str) -> None:
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "token"}}}
    values = {
        part: {
            "extraEnv": [secret],
            "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            "podLabels": {"team": "platform"},
            "serviceAccountAnnotations": {"example.com/role": "reader"},
        }
    }
    pod, usual = PODS[part](values), PODS[part]()
    assert container(pod)["env"] == [*container(usual).get("env", []), secret]
    assert pod["spec"]["volumes"][-1] == {"name": "scratch", "emptyDir": {}}
    assert container(pod)["volumeMounts"][-1] == {"name": "scratch", "mountPath": "/scratch"}
    assert pod["metadata"]["labels"] == {**usual["metadata"]["labels"], "team": "platform"}
    selector = find_object(rendered(values), KINDS[part], f"kaishare-{part}")["spec"]["selector"]
    assert "team" not in selector["matchLabels"]
    account = find_object(rendered(values), "ServiceAccount", f"kaishare-{part}")
    assert account["metadata"]["annotations"] == {"example.com/role": "reader"}


@pytest.mark.parametrize(
    "values",
    [
        {"webhook": {"certificates": {"mode": "cert-manager"}}},
        {"agent": {"gpuAccess": "volume-mounts"}},
    ],
    ids=["webhook", "agent"],
)
def test_further_volumes_stand_beside_the_charts_own(values: dict[str, Any]) -> None:
    ((part, own),) = values.items()
    before = PODS[part](values)
    further = {
        "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    pod = PODS[part]({part: {**own, **further}})
    assert pod["spec"]["volumes"] == [*before["spec"]["volumes"], *further["extraVolumes"]]
    assert container(pod)["volumeMounts"] == [
        *container(before)["volumeMounts"],
        *further["extraVolumeMounts"],
    ]


@pytest.mark.parametrize("part", PODS)
def test_labels_of_pods_never_replace_those_of_selectors_even_unchecked(part: str) -> None:
    labels = {"app.kubernetes.io/name": "x", "app.kubernetes.io/component": "x", "team": "platform"}
    done = helm(
        "template", "kaishare", str(CHART), "--kube-version", "1.30.0", "--skip-schema-validation",
        *options({part: {"podLabels": labels}}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "app.kubernetes.io/name: x" not in done.stdout
    assert "app.kubernetes.io/component: x" not in done.stdout
    assert "team: platform" in done.stdout


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_the_programs_have_the_level_of_the_log(level: str) -> None:
    values = {"webhook": {"logLevel": level}, "agent": {"logLevel": level}}
    assert webhook_parser().parse_args(container(webhook_pod(values))["args"]).log_level == level
    assert agent_parser().parse_args(container(agent_pod(values))["args"]).log_level == level


KNOWN = ["v1/Pod", "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration"]
POLICIES = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"


@pytest.mark.parametrize(
    ("values", "served", "problem"),
    [
        ({}, KNOWN, f"does not serve {POLICIES}, which webhook.certificates.mode=self needs"),
        (
            {"webhook": {"enabled": False}, "guard": {"enabled": True}},
            KNOWN,
            f"does not serve {POLICIES}, which guard.enabled=true needs",
        ),
        (
            {"monitors": {"enabled": True}},
            [*KNOWN, POLICIES],
            "does not serve monitoring.coreos.com/v1/PodMonitor, which monitors.enabled=true needs",
        ),
        (
            {"alerts": {"enabled": True}},
            [*KNOWN, POLICIES],
            "does not serve monitoring.coreos.com/v1/PrometheusRule, which alerts.enabled=true needs",
        ),
        (
            {"webhook": {"certificates": {"mode": "cert-manager"}}},
            KNOWN,
            "does not serve cert-manager.io/v1/Certificate, which webhook.certificates.mode=cert-manager needs",
        ),
    ],
)
def test_a_kind_that_the_cluster_does_not_serve_is_refused_in_one_sentence(
    values: dict[str, Any], served: list[str], problem: str
) -> None:
    apis = [option for kind in served for option in ("--api-versions", kind)]
    assert f"this cluster (Kubernetes v1.30.0) {problem}" in refusal(*apis, values=values)


def test_a_cluster_with_all_kinds_is_accepted_and_so_is_an_unknown_one() -> None:
    values = {"monitors": {"enabled": True}, "alerts": {"enabled": True}}
    kinds = [
        *KNOWN,
        POLICIES,
        "monitoring.coreos.com/v1/PodMonitor",
        "monitoring.coreos.com/v1/PrometheusRule",
    ]
    apis = [option for kind in kinds for option in ("--api-versions", kind)]
    known = helm("template", "kaishare", str(CHART), "--kube-version", "1.30.0", *apis, *options(values))
    assert known.returncode == 0, known.stderr
    assert rendered(values)
