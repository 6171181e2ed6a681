"""The objects that the chart renders from its values, and their agreement with the programs."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import yaml

from gpuagent.actions.eviction_settings import Budget
from gpuagent.cli import _duration as agent_duration
from gpuagent.cli import _parser as agent_parser
from gpuagent.doctor.rights import CONFIG_MAPS, EVICTION_RIGHTS, RIGHTS, Right
from gpuagent.ledger.slack import Slack
from kai.own_labels import AGENT_EXCLUDED_NAMESPACES, EXCLUDED_NAMESPACES
from kai.version import Version
from service.http.listeners import Address
from service.units import parse_duration
from tests.support.helm_chart import (
    CHART,
    EVERYTHING,
    NAMESPACE,
    Object,
    find_object,
    helm,
    kinds,
    options,
    rendered,
)
from tests.support.markers import sampled
from webhook.cli import _parser as webhook_parser
from webhook.registration.configurations import (
    CONFIGURATION_NAME,
    ServiceTarget,
    mutating_configuration,
    validating_configuration,
)
from webhook.settings.arguments import parse_rule_options

DEPLOY = CHART.parents[1]
WEBHOOK: dict[str, Any] = {"agent": {"enabled": False}}
AGENT: dict[str, Any] = {"webhook": {"enabled": False}}
CERT_MANAGER: dict[str, Any] = {"webhook": {"certificates": {"mode": "cert-manager"}}}
PEM = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
GIVEN: dict[str, Any] = {"webhook": {"certificates": {"mode": "secret", "caBundle": PEM}}}
PUBLISHES = {
    "apiGroups": [""],
    "resources": ["configmaps"],
    "resourceNames": ["kaishare-settings"],
    "verbs": ["patch"],
}
"""The right of the webhook to publish its settings."""
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "everything": EVERYTHING,
    "only the webhook": WEBHOOK,
    "only the agent": AGENT,
    "nothing": {**WEBHOOK, **AGENT},
    "certificates of cert-manager": CERT_MANAGER,
    "certificates of an issuer": {
        "webhook": {"certificates": {"mode": "cert-manager", "certManager": {"issuerRef": {"kind": "ClusterIssuer", "name": "in-house"}}}}
    },
    "certificates of a Secret": GIVEN,
    "a cluster in use": {"webhook": {"defaultMode": "observe"}},
    "namespace of its own": {"webhook": {"createNamespace": True}},
    "GPUs by a mount": {"agent": {"gpuAccess": "volume-mounts"}},
    "GPUs by CDI": {"agent": {"gpuAccess": "cdi"}},
    "the MIG monitor capability": {"agent": {"migMonitor": True}},
    "a cluster without GPUs": {"agent": {"simulated": True}},
    "no runtime class": {"agent": {"runtimeClassName": ""}},
    "evictions as a dry run": {"agent": {"eviction": {"mode": "dry-run", "budget": "2/1h"}, "events": False}},
    "the host of vClusters": {**AGENT, "guard": {"enabled": True, "action": "deny"}},
    "the guard, asking": {
        "guard": {
            "enabled": True,
            "action": "warn",
            "kaiNamespaces": ["kai", "kai-two"],
            "schedulerName": "kai",
            "ownerKinds": [
                {"group": "kueue.x-k8s.io", "kind": "ClusterQueue"},
                {"group": "", "kind": "PersistentVolume"},
            ],
            "unguardedNamespaces": ["vcluster-b"],
        }
    },
    "no network policies": {"networkPolicies": {"enabled": False}},
    "one namespace": {"agent": {"namespace": NAMESPACE}},
    "readers of the settings": {"settings": {"readers": [{"kind": "ServiceAccount", "name": "ci", "namespace": "builds"}]}},
    "no readers of the settings": {"settings": {"readers": []}},
    "readers with tokens": {"authentication": {"enabled": True, "readerLabels": {"aggregate": "true"}}},
    "readers with tokens over TLS": {
        "authentication": {"enabled": True},
        "webhook": {"opsTlsSecret": "webhook-tls", "certificates": {"mode": "cert-manager"}},
        "agent": {"tlsSecret": "agent-tls"},
        "monitors": {"enabled": True, "tokenSecret": {"name": "token"}},
    },
    "an image by its digest": {"webhook": {"image": {"digest": "sha256:" + "0" * 64}}},
    "all the rest": {
        "kaiVersion": "0.13.0",
        "imagePullSecrets": ["registry", {"name": "mirror"}],
        "networkPolicies": {"apiServerCIDRs": ["10.0.0.10/32", "fd00::/64"]},
        "webhook": {
            "resources": {
                "requests": {"cpu": 0.5, "memory": "1e9", "ephemeral-storage": "1Gi"},
                "limits": {"cpu": "1500m", "memory": "1.5Gi"},
            },
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": {"a": "b"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "podAnnotations": {"a": "b"},
            "injectShares": False,
            "drainSeconds": 20,
            "podLabels": {"team": "platform"},
            "serviceAccountAnnotations": {"example.com/role": "reader"},
            "logLevel": "warning",
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        },
        "agent": {
            "priorityClassName": "system-node-critical",
            "affinity": {"nodeAffinity": {}},
            "seLinuxOptions": {"type": "spc_t"},
            "podAnnotations": {"a": "b"},
            "podLabels": {"team": "platform"},
            "serviceAccountAnnotations": {"example.com/role": "reader"},
            "logLevel": "warning",
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        },
    },
}  # fmt: skip


@pytest.fixture(params=VARIANTS, scope="module")
def variant(request: pytest.FixtureRequest) -> dict[str, Any]:
    return VARIANTS[request.param]


def pod_of(objects: list[Object], kind: str, name: str) -> Object:
    template: Object = find_object(objects, kind, name)["spec"]["template"]
    return template


def webhook_pod(values: dict[str, Any] | None = None) -> Object:
    return pod_of(rendered(values), "Deployment", "kaishare-webhook")


def agent_pod(values: dict[str, Any] | None = None) -> Object:
    return pod_of(rendered(values), "DaemonSet", "kaishare-agent")


def container(pod: Object) -> Object:
    (only,) = pod["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def test_helm_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


# What must hold whatever the values are.


def test_the_programs_accept_the_charts_options(variant: dict[str, Any]) -> None:
    for item in rendered(variant, tests=True):
        if item["kind"] == "Pod":
            webhook_parser().parse_args(container(item)["args"])
        if item["kind"] == "Deployment":
            webhook_parser().parse_args(container(item["spec"]["template"])["args"])
        if item["kind"] == "DaemonSet":
            agent_parser().parse_args(container(item["spec"]["template"])["args"])


def capabilities_of(item: dict[str, Any], variant: dict[str, Any]) -> dict[str, list[str]]:
    """Return the agent's capability on MIG nodes, which NVIDIA's toolkit needs for the monitor capability."""
    is_wanted = item["kind"] == "DaemonSet" and variant.get("agent", {}).get("migMonitor")
    return {"add": ["SYS_ADMIN"]} if is_wanted else {}


def test_pods_are_restricted_except_for_the_hosts_processes(variant: dict[str, Any]) -> None:
    for item in rendered(variant, tests=True):
        if item["kind"] not in ("Deployment", "DaemonSet", "Pod"):
            continue
        spec = item["spec"] if item["kind"] == "Pod" else item["spec"]["template"]["spec"]
        assert spec["securityContext"].items() >= {"runAsNonRoot": True, "runAsUser": 65532}.items()
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (one_container,) = spec["containers"]
        assert one_container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], **capabilities_of(item, variant)},
            "readOnlyRootFilesystem": True,
        }
        assert "limits" in one_container["resources"]
        assert "nvidia.com/gpu" not in json.dumps(one_container["resources"])
        is_simulated = variant.get("agent", {}).get("simulated", False)
        assert spec.get("hostPID", False) is (item["kind"] == "DaemonSet" and not is_simulated)
        assert not spec.get("hostNetwork")
        assert not spec.get("hostIPC")


def test_selectors_find_the_pods(variant: dict[str, Any]) -> None:
    objects = rendered(variant)
    pods = [item["spec"]["template"] for item in objects if item["kind"] in ("Deployment", "DaemonSet")]
    for item in objects:
        spec = item.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector")
        if selector is None or "template" in spec:
            continue
        wanted = selector.get("matchLabels", selector)
        name = item["metadata"]["name"]
        assert [
            pod["spec"]["serviceAccountName"]
            for pod in pods
            if wanted.items() <= pod["metadata"]["labels"].items()
        ] == [name]


def test_every_port_that_is_named_is_a_containers(variant: dict[str, Any]) -> None:
    ports: dict[str, dict[str, int]] = {}
    for item in rendered(variant):
        if item["kind"] in ("Deployment", "DaemonSet"):
            one_container = container(item["spec"]["template"])
            ports[item["metadata"]["name"]] = {
                port["name"]: port["containerPort"] for port in one_container["ports"]
            }
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert one_container[probe]["httpGet"]["port"] in ports[item["metadata"]["name"]]
    for item in rendered(variant):
        spec = item.get("spec", {})
        named: list[str] = []
        if item["kind"] == "Service":
            named = [port["targetPort"] for port in spec["ports"]]
        elif item["kind"] == "NetworkPolicy":
            named = [port["port"] for rule in spec["ingress"] for port in rule["ports"]]
        elif item["kind"] == "PodMonitor":
            named = [endpoint["port"] for endpoint in spec["podMetricsEndpoints"]]
        assert set(named) <= set(ports.get(item["metadata"]["name"], {})), item["kind"]


def test_no_rule_has_a_wildcard_or_may_escalate(variant: dict[str, Any]) -> None:
    for item in rendered(variant):
        for rule in item.get("rules", []):
            assert "*" not in json.dumps(rule)
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
            if "nonResourceURLs" in rule:
                assert rule["verbs"] == ["get"]
                continue
            if "secrets" in rule["resources"]:
                assert rule["resourceNames"]
            if "configmaps" in rule["resources"] and item["metadata"]["name"] != "kaishare-agent":
                assert rule["resourceNames"] == ["kaishare-settings"]
            if {"patch", "update", "delete"} & set(rule["verbs"]):
                assert rule["resources"] == ["events"] or rule["resourceNames"]


def test_the_grace_period_covers_the_drain_and_the_reviews_in_flight(variant: dict[str, Any]) -> None:
    for item in rendered(variant):
        if item["kind"] == "Deployment":
            spec = item["spec"]["template"]["spec"]
            (drain,) = (
                re.fullmatch(r"--drain=(\d+)s", argument)
                for argument in container({"spec": spec})["args"]
                if argument.startswith("--drain=")
            )
            assert drain is not None
            assert spec["terminationGracePeriodSeconds"] > 3 * int(drain[1]) + 10
            assert "lifecycle" not in spec["containers"][0]


# What the programs and the chart say alike.


@pytest.mark.parametrize("values", [{}, CERT_MANAGER, GIVEN], ids=["self", "cert-manager", "secret"])
def test_the_charts_webhook_configurations_equal_those_of_the_code(values: dict[str, Any]) -> None:
    target = ServiceTarget(namespace=NAMESPACE, name="kaishare-webhook")
    bundle = PEM.encode() if values is GIVEN else b""
    for build in (mutating_configuration, validating_configuration):
        expected = build(target, ca_bundle=bundle)
        configuration = find_object(rendered(values), expected["kind"], CONFIGURATION_NAME)
        assert configuration["webhooks"] == expected["webhooks"]
        assert configuration["apiVersion"] == expected["apiVersion"]


def test_the_containers_ports_are_those_that_the_programs_listen_on_and_document() -> None:
    webhook, agent = container(webhook_pod()), container(agent_pod())
    configured = webhook_parser().parse_args(webhook["args"])
    usual = webhook_parser().parse_args(["serve"])
    ports = {port["name"]: port["containerPort"] for port in webhook["ports"]}
    for name, option in (("admission", "listen"), ("ops", "ops_listen")):
        assert Address.parse(getattr(configured, option)) == Address("", ports[name])
        assert Address.parse(getattr(usual, option)).port == ports[name]
    (port,) = agent["ports"]
    assert Address.parse(agent_parser().parse_args(agent["args"]).listen) == Address(
        "", port["containerPort"]
    )
    assert Address.parse(agent_parser().parse_args(["serve"]).listen).port == port["containerPort"]
    elsewhere = container(webhook_pod({"webhook": {"port": 10250}}))
    assert "--listen=:10250" in elsewhere["args"]
    assert elsewhere["ports"][0]["containerPort"] == 10250


def test_names_in_the_cluster_are_the_programs_own_defaults() -> None:
    objects = rendered()
    usual = webhook_parser().parse_args(["serve"])
    configured = webhook_parser().parse_args(container(webhook_pod())["args"])
    for option in (
        "certs_secret",
        "service",
        "webhook_configuration",
        "drain",
        "max_in_flight",
    ):
        assert getattr(configured, option) == getattr(usual, option), option
    assert parse_rule_options(configured).rules() == parse_rule_options(usual).rules()
    assert find_object(objects, "Secret", usual.certs_secret)
    assert (
        find_object(objects, "Service", usual.service)["spec"]["ports"][0]["port"]
        == ServiceTarget(namespace="", name="").port
    )


def test_excluded_namespaces_are_the_programs_own_and_the_releases() -> None:
    (excluded,) = (argument for argument in container(webhook_pod())["args"] if "exclude" in argument)
    assert excluded == "--exclude-namespaces=" + ",".join(sorted(EXCLUDED_NAMESPACES))
    (of_agent,) = (argument for argument in container(agent_pod())["args"] if "exclude" in argument)
    assert of_agent == "--exclude-namespaces=" + ",".join(sorted(AGENT_EXCLUDED_NAMESPACES))
    elsewhere = rendered({"agent": {"namespace": "watchers"}, "excludedNamespaces": ["kube-system"]})
    webhook = find_object(elsewhere, "MutatingWebhookConfiguration", CONFIGURATION_NAME)["webhooks"][0]
    assert webhook["namespaceSelector"]["matchExpressions"][-1]["values"] == [
        "kaishare",
        "kube-system",
        "watchers",
    ]
    for kind, names in (
        ("Deployment", "kaishare,kube-system,watchers"),
        ("DaemonSet", "kaishare,kube-system,nvidia-device-plugin,watchers"),
    ):
        (item,) = (item for item in elsewhere if item["kind"] == kind)
        assert f"--exclude-namespaces={names}" in container(item["spec"]["template"])["args"]


@pytest.mark.parametrize("further", [[], None, ["mps"]], ids=str)
def test_the_agents_further_excluded_namespaces_replace_the_default(further: list[str] | None) -> None:
    arguments = container(agent_pod({"agent": {"excludedNamespaces": further}}))["args"]
    expected = sorted({*EXCLUDED_NAMESPACES, *(further or ())})
    assert "--exclude-namespaces=" + ",".join(expected) in arguments


def test_the_agent_has_the_permissions_that_its_doctor_checks() -> None:
    def find_allocation(objects: list[Object], right: Right) -> bool:
        resource = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
        kind = "Role" if right.is_in_own_namespace else "ClusterRole"
        return any(
            right.group in rule["apiGroups"] and resource in rule["resources"] and right.verb in rule["verbs"]
            for role in objects
            if (role["kind"], role["metadata"]["name"]) == (kind, "kaishare-agent")
            for rule in role["rules"]
        )

    usual, most = rendered(), rendered(EVERYTHING)
    for right in RIGHTS:
        if right in EVICTION_RIGHTS:
            assert not find_allocation(usual, right)
            assert find_allocation(most, right)
        else:
            assert find_allocation(usual, right), str(right)
    assert find_allocation(most, CONFIG_MAPS)
    assert not find_allocation(usual, CONFIG_MAPS)


def test_only_the_charts_own_accounts_are_bound() -> None:
    places = {
        "kaishare-webhook": NAMESPACE,
        "kaishare-agent": "kaishare-agent",
        "kaishare-reader": "kaishare-agent",
    }
    for item in rendered(EVERYTHING):
        if item["kind"].endswith("RoleBinding"):
            name = item["metadata"]["name"]
            if name == "kaishare-settings":  # tests/deploy/test_chart_settings.py
                continue
            subject = {"kind": "ServiceAccount", "name": name, "namespace": places[name]}
            assert item["subjects"] == [subject]
            assert item["roleRef"]["name"] == name


# What single values do.


def test_each_service_can_be_left_out() -> None:
    every = kinds(rendered(EVERYTHING))
    webhook, agent = kinds(rendered({**EVERYTHING, **WEBHOOK})), kinds(rendered({**EVERYTHING, **AGENT}))
    assert webhook | agent == every
    shared = {(kind, name) for kind, name in webhook & agent if not name.startswith("kaishare-guard-")}
    assert shared == {
        ("PrometheusRule", "kaishare"),
        *(("ConfigMap", f"kaishare-dashboard-{name}") for name in DASHBOARDS),
        ("ClusterRole", "kaishare-metrics-reader"),
    }
    assert rendered({**WEBHOOK, **AGENT}) == []


def test_in_mode_self_the_secret_has_no_data_and_the_chart_writes_no_bundle() -> None:
    objects = rendered()
    secret = find_object(objects, "Secret", "kaishare-webhook-ca")
    assert not {"data", "stringData"} & set(secret)
    assert "caBundle" not in json.dumps([item for item in objects if "webhooks" in item])
    secrets = {"resources": ["secrets"], "resourceNames": ["kaishare-webhook-ca"], "verbs": ["get", "patch"]}
    role = find_object(objects, "Role", "kaishare-webhook")
    assert role["rules"] == [PUBLISHES, {"apiGroups": [""], **secrets}]


@pytest.mark.parametrize("values", [CERT_MANAGER, GIVEN], ids=["cert-manager", "secret"])
def test_other_certificates_need_no_right_to_secrets_or_to_patch_a_configuration(
    values: dict[str, Any],
) -> None:
    objects = rendered(values)
    assert "Secret" not in {kind for kind, _ in kinds(objects)}
    assert find_object(objects, "Role", "kaishare-webhook")["rules"] == [PUBLISHES]
    for rule in find_object(objects, "ClusterRole", "kaishare-webhook")["rules"]:
        assert "patch" not in rule["verbs"] or rule["resources"] == ["events"]
    pod = pod_of(objects, "Deployment", "kaishare-webhook")
    assert "--certs=/etc/kaishare/certs" in container(pod)["args"]
    assert pod["spec"]["volumes"][0]["secret"]["secretName"] == "kaishare-webhook-tls"
    assert container(pod)["volumeMounts"][0]["mountPath"] == "/etc/kaishare/certs"


def test_cert_manager_issues_a_certificate_for_the_services_names() -> None:
    objects = rendered(CERT_MANAGER)
    certificate = find_object(objects, "Certificate", "kaishare-webhook")["spec"]
    assert certificate["dnsNames"] == ["kaishare-webhook.kaishare.svc", "kaishare-webhook.kaishare"]
    assert certificate["issuerRef"] == {"kind": "Issuer", "name": "kaishare-webhook"}
    assert (
        find_object(objects, "Issuer", "kaishare-webhook")["spec"]["ca"]["secretName"]
        == find_object(objects, "Certificate", "kaishare-webhook-ca")["spec"]["secretName"]
    )
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        annotations = find_object(objects, kind, CONFIGURATION_NAME)["metadata"]["annotations"]
        assert annotations == {"cert-manager.io/inject-ca-from": "kaishare/kaishare-webhook"}
    theirs = rendered(VARIANTS["certificates of an issuer"])
    assert not any(kind == "Issuer" for kind, _ in kinds(theirs))
    assert find_object(theirs, "Certificate", "kaishare-webhook")["spec"]["issuerRef"]["name"] == "in-house"


def environment(pod: Object) -> dict[str, str]:
    return {item["name"]: item["value"] for item in container(pod)["env"] if "value" in item}


def test_pods_can_be_copied_to_a_host() -> None:
    # In a vCluster's copy a key would stand in matchLabelKeys and in labelSelector, which is invalid.
    spec = find_object(rendered(WEBHOOK), "Deployment", "kaishare-webhook")["spec"]["template"]["spec"]
    assert all("matchLabelKeys" not in spread for spread in spec["topologySpreadConstraints"])


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_the_disruption_budget_allows_the_eviction_of_one_replica(replicas: int) -> None:
    objects = rendered({**WEBHOOK, "webhook": {"replicas": replicas}})
    spec = find_object(objects, "PodDisruptionBudget", "kaishare-webhook")["spec"]
    assert spec["minAvailable"] == replicas - 1
    assert "maxUnavailable" not in spec


def test_the_agent_reaches_the_driver_in_three_ways_and_takes_no_gpu() -> None:
    by_env = agent_pod()
    assert environment(by_env) == {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    assert by_env["spec"]["runtimeClassName"] == "nvidia"
    assert "volumes" not in by_env["spec"]
    by_mount = agent_pod(VARIANTS["GPUs by a mount"])
    assert environment(by_mount)["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    assert container(by_mount)["volumeMounts"][0]["mountPath"] == "/var/run/nvidia-container-devices/all"
    assert by_mount["spec"]["volumes"][0]["hostPath"]["path"] == "/dev/null"
    by_cdi = agent_pod(VARIANTS["GPUs by CDI"])
    assert environment(by_cdi) == {}
    assert "runtimeClassName" not in by_cdi["spec"]
    assert by_cdi["metadata"]["annotations"]["cdi.k8s.io/kaishare"] == "management.nvidia.com/gpu=all"
    assert "runtimeClassName" not in agent_pod(VARIANTS["no runtime class"])["spec"]


def test_the_agent_has_its_own_names_and_the_configured_ones() -> None:
    env = {variable["name"]: variable for variable in container(agent_pod())["env"]}
    assert env["POD_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert agent_parser().parse_args(container(agent_pod())["args"]).host_name == []
    named_agent = agent_pod({"agent": {"hostNames": ["Agent.example.com", "kaishare-agent"]}})
    assert agent_parser().parse_args(container(named_agent)["args"]).host_name == [
        "agent.example.com",
        "kaishare-agent",
    ]


def test_on_mig_nodes_the_agent_may_have_the_monitor_capability_without_root() -> None:
    made = agent_pod(VARIANTS["the MIG monitor capability"])
    assert environment(made) == {**environment(agent_pod()), "NVIDIA_MIG_MONITOR_DEVICES": "all"}
    security = container(made)["securityContext"]
    # The API server refuses "CAP_SYS_ADMIN" beside allowPrivilegeEscalation: false, and takes this name.
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert security["allowPrivilegeEscalation"] is False
    assert made["spec"]["securityContext"]["runAsUser"] == 65532
    mounted = agent_pod({"agent": {"migMonitor": True, "gpuAccess": "volume-mounts"}})
    assert environment(mounted)["NVIDIA_MIG_MONITOR_DEVICES"] == "all"


@pytest.mark.parametrize("access", ["env", "volume-mounts", "cdi"])
def test_a_simulated_agent_needs_nothing_of_the_node(access: str) -> None:
    agent = {"simulated": True, "gpuAccess": access, "migMonitor": access != "cdi"}
    made = agent_pod({"agent": agent})
    spec, only = made["spec"], container(made)
    assert "--gpus=simulated:cluster" in only["args"]
    assert "--gpus=simulated:cluster" not in container(agent_pod())["args"]
    assert {variable["name"] for variable in only["env"]} == {"NODE_NAME", "POD_NAME"}
    for field in ("runtimeClassName", "hostPID", "nodeSelector"):
        assert field not in spec
    assert not any(key.startswith("cdi.") for key in made["metadata"]["annotations"])
    assert "add" not in only["securityContext"]["capabilities"]
    (volume,) = spec["volumes"]
    assert volume.keys() == {"name", "emptyDir"}
    assert only["volumeMounts"] == [{"name": volume["name"], "mountPath": "/tmp"}]
    selected = {"nodeSelector": {"pool": "laptop"}, "tolerations": [], "simulated": True}
    chosen = agent_pod({"agent": selected})["spec"]
    assert chosen["nodeSelector"] == {"pool": "laptop"}
    assert "tolerations" not in chosen


def test_the_agents_namespace_is_made_with_the_profile_that_hostpid_needs() -> None:
    namespace = find_object(rendered(), "Namespace", "kaishare-agent")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert not any(kind == "Namespace" for kind, _ in kinds(rendered(VARIANTS["one namespace"])))
    own = find_object(rendered(VARIANTS["namespace of its own"]), "Namespace", NAMESPACE)
    assert own["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize(
    ("agent", "profile"),
    [({}, "privileged"), ({"simulated": True}, "restricted"), ({"enabled": False}, "restricted")],
)
def test_a_namespace_of_both_services_admits_the_agents_pods(agent: dict[str, Any], profile: str) -> None:
    values = {"webhook": {"createNamespace": True}, "agent": {"namespace": NAMESPACE, **agent}}
    namespace = find_object(rendered(values), "Namespace", NAMESPACE)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == profile


def test_only_the_admission_port_is_open_to_other_namespaces_than_monitoring() -> None:
    objects = rendered({"networkPolicies": {"monitoringNamespace": "observers"}})
    source = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observers"}}}]
    assert find_object(objects, "NetworkPolicy", "kaishare-webhook")["spec"]["ingress"] == [
        {"ports": [{"port": "admission"}]},
        {"ports": [{"port": "ops"}], "from": source},
    ]
    assert find_object(objects, "NetworkPolicy", "kaishare-agent")["spec"]["ingress"] == [
        {"ports": [{"port": "http"}], "from": source}
    ]


def test_monitors_keep_the_labels_that_attribute_memory() -> None:
    objects = rendered({"monitors": {"enabled": True, "labels": {"release": "prometheus"}}})
    for name in ("kaishare-webhook", "kaishare-agent"):
        monitor = find_object(objects, "PodMonitor", name)
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True


DASHBOARDS = ("fleet", "namespace", "node", "webhook")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_each_dashboard_is_one_config_map_for_grafanas_sidecar(name: str) -> None:
    objects = rendered({"dashboard": {"enabled": True}})
    dashboard = find_object(objects, "ConfigMap", f"kaishare-dashboard-{name}")
    text = dashboard["data"][f"kaishare-{name}.json"]
    assert text.strip() == (DEPLOY / "dashboards" / f"{name}.json").read_text().strip()
    assert fits_an_annotation(dashboard)
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["metadata"]["annotations"] == {"grafana_folder": "kaishare"}


def fits_an_annotation(item: Object) -> bool:
    """Whether `kubectl apply` can keep a copy of an object in an annotation, of at most 256 KiB."""
    return len(json.dumps(item).encode()) < 250 << 10


def test_the_dashboards_take_labels_and_annotations() -> None:
    objects = rendered(
        {"dashboard": {"enabled": True, "labels": {"board": "yes"}, "annotations": {"folder": "GPU"}}}
    )
    metadata = find_object(objects, "ConfigMap", "kaishare-dashboard-fleet")["metadata"]
    assert metadata["labels"]["board"] == "yes"
    assert metadata["annotations"]["folder"] == "GPU"


@pytest.mark.parametrize("name", ["fleet", "webhook"])
def test_dashboards_link_to_runbooks_where_the_chart_knows_their_address(name: str) -> None:
    address = "https://in.house/"
    objects = rendered({"alerts": {"runbooks": address}, "dashboard": {"enabled": True}})
    dashboard = find_object(objects, "ConfigMap", f"kaishare-dashboard-{name}")
    assert fits_an_annotation(dashboard)
    linked = json.loads(dashboard["data"][f"kaishare-{name}.json"])
    expected = json.loads((DEPLOY / "dashboards" / f"{name}.json").read_text())
    (variable,) = (item for item in expected["templating"]["list"] if item["name"] == "runbooks")
    assert (variable["query"], variable["current"]["value"]) == ("", "")
    variable["query"] = address
    variable["current"] = {"selected": True, "text": address, "value": address}
    assert linked == expected


@pytest.mark.parametrize("name", ["fleet", "node"])
def test_dashboards_link_to_agents_with_tls_by_https(name: str) -> None:
    objects = rendered({"agent": {"tlsSecret": "agent-tls"}, "dashboard": {"enabled": True}})
    dashboard = find_object(objects, "ConfigMap", f"kaishare-dashboard-{name}")
    assert fits_an_annotation(dashboard)
    linked = json.loads(dashboard["data"][f"kaishare-{name}.json"])
    expected = json.loads((DEPLOY / "dashboards" / f"{name}.json").read_text())
    (variable,) = (item for item in expected["templating"]["list"] if item["name"] == "agent_scheme")
    assert variable["current"]["value"] == "http"
    variable["current"] = {"selected": True, "text": "https", "value": "https"}
    for option in variable["options"]:
        option["selected"] = option["value"] == "https"
    assert linked == expected


def guards(values: dict[str, Any]) -> list[Object]:
    items = [
        item
        for item in rendered({"guard": values})
        if item["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "guard"
    ]
    for item in items:
        labels = item["metadata"]["labels"]
        item["metadata"]["labels"] = {key: value for key, value in labels.items() if "kaishare.dev" in key}
        if not item["metadata"]["labels"]:
            del item["metadata"]["labels"]
    return sorted(items, key=lambda item: str(item["metadata"]["name"]))


def plain_guards() -> list[Object]:
    files = [*(DEPLOY / "guard" / "policies").glob("*.yaml"), *(DEPLOY / "guard" / "bindings").glob("*.yaml")]
    items = [item for file in files for item in yaml.safe_load_all(file.read_text())]
    policies = [item for item in items if item["kind"].startswith("ValidatingAdmissionPolicy")]
    return sorted(policies, key=lambda item: str(item["metadata"]["name"]))


def test_the_charts_guard_equals_that_of_deploy() -> None:
    assert guards({"enabled": True}) == plain_guards()
    assert guards({"enabled": False}) == []


@pytest.mark.parametrize(("action", "actions"), [("warn", ["Warn", "Audit"]), ("deny", ["Deny"])])
def test_every_binding_has_the_guards_action(action: str, actions: list[str]) -> None:
    expected = plain_guards()
    for item in expected:
        if item["kind"] == "ValidatingAdmissionPolicyBinding":
            item["spec"]["validationActions"] = actions
    assert guards({"enabled": True, "action": action}) == expected


def test_the_guard_has_kais_namespaces_and_the_exempt_accounts() -> None:
    objects = guards(VARIANTS["the guard, asking"]["guard"])
    variables = {
        (variable["name"], variable["expression"])
        for item in objects
        for variable in item["spec"].get("variables", [])
        if variable["name"] in ("kaiNamespaces", "moreOwnerKinds", "schedulerName")
    }
    assert variables == {
        ("kaiNamespaces", "['kai', 'kai-two']"),
        ("moreOwnerKinds", "['ClusterQueue.kueue.x-k8s.io', 'PersistentVolume']"),
        ("schedulerName", "'kai'"),
    }
    for item in objects:
        if item["metadata"].get("labels", {}).get("kaishare.dev/guards") == "vclusters":
            selector = item["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
            assert selector == [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["vcluster-b"]}
            ]


# What values are refused.

SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"webhok": {}}, "'webhok' not allowed"),
        ({"webhook": {"replica": 3}}, "'replica' not allowed"),
        ({"webhook": {"replicas": 0}}, "/webhook/replicas"),
        ({"webhook": {"replicas": None}}, "at '/webhook': missing property 'replicas'"),
        ({"webhook": {"certificates": {"mode": None}}}, "at '/webhook/certificates': missing property 'mode'"),
        ({"agent": {"image": {"repository": None}}}, "at '/agent/image': missing property 'repository'"),
        ({"guard": {"kaiNamespaces": None}}, "at '/guard': missing property 'kaiNamespaces'"),
        ({"excludedNamespaces": None}, "missing property 'excludedNamespaces'"),
        ({"webhook": {"certificates": {"mode": "none"}}}, "/webhook/certificates/mode"),
        ({"webhook": {"certificates": {"mode": "secret"}}}, "mode secret needs the CA's PEM certificates"),
        ({"webhook": {"certificates": {"caBundle": "MIIB"}}}, "/webhook/certificates/caBundle"),
        ({"webhook": {"port": 80}}, "/webhook/port"),
        ({"webhook": {"port": 8080}}, "webhook.port and webhook.opsPort are both 8080; they must differ"),
        ({"agent": {"gpuAccess": "privileged"}}, "/agent/gpuAccess"),
        ({"agent": {"migMonitor": "all"}}, "/agent/migMonitor"),
        ({"agent": {"migMonitor": True, "gpuAccess": "cdi"}}, "/agent/migMonitor"),
        ({"agent": {"simulated": "cluster"}}, "/agent/simulated"),
        (
            {"agent": {"simulated": True, "eviction": {"mode": "on"}}},
            "agent.simulated=true refuses agent.eviction.mode=on: synthetic figures must not evict pods",
        ),
        ({"agent": {"interval": "5"}}, "/agent/interval"),
        ({"agent": {"interval": "0s"}}, "/agent/interval"),
        ({"agent": {"grace": "99ms"}}, "/agent/grace"),
        ({"agent": {"graceMin": "0m"}}, "/agent/graceMin"),
        ({"agent": {"graceMin": "61m", "graceMax": "1h"}}, "agent.graceMin=61m is longer than agent.graceMax=1h"),
        ({"agent": {"graceMin": "999999999h"}}, "agent.graceMin=999999999h is longer than agent.graceMax=24h"),
        ({"agent": {"runtimeClassName": "a b"}}, "/agent/runtimeClassName"),
        ({"webhook": {"resources": {"limit": {"memory": "1Gi"}}}}, "'limit' not allowed"),
        ({"agent": {"resources": {"limits": {"memory": "512MB"}}}}, "/agent/resources/limits/memory"),
        ({"agent": {"resources": {"requests": {"cpu": {"min": 1}}}}}, "/agent/resources/requests/cpu"),
        ({"webhook": {"extraEnv": [{"name": "PORT", "value": 3128}]}}, "/webhook/extraEnv/0/value"),
        ({"agent": {"extraEnv": [{"name": "DEBUG", "value": True}]}}, "/agent/extraEnv/0/value"),
        ({"agent": {"cdiDevice": "nvidia.com/gpu=all: x"}}, "/agent/cdiDevice"),
        ({"webhook": {"image": {"tag": "1.0 # newest"}}}, "/webhook/image/tag"),
        ({"webhook": {"image": {"repository": "*registry"}}}, "/webhook/image/repository"),
        (
            {"webhook": {"certificates": {"certManager": {"issuerRef": {"kind": "ClusterIssuer"}}}}},
            "/webhook/certificates/certManager/issuerRef': properties 'name' required",
        ),
        ({"agent": {"eviction": {"mode": True}}}, "/agent/eviction/mode"),
        ({"agent": {"slack": "5%"}}, "/agent/slack"),
        ({"agent": {"namespace": "Not A Name"}}, "/agent/namespace"),
        ({"agent": {"hostNames": ["agent:9445"]}}, "/agent/hostNames/0"),
        ({"agent": {"hostNames": ["*.example.com"]}}, "/agent/hostNames/0"),
        ({"webhook": {"hostNetwork": True, "port": 10250}}, "port 10250 of a node is the kubelet's"),
        ({"webhook": {"logLevel": "trace"}}, "/webhook/logLevel"),
        ({"agent": {"logLevel": None}}, "at '/agent': missing property 'logLevel'"),
        ({"webhook": {"podLabels": {"app.kubernetes.io/component": "agent"}}}, "invalid propertyName 'app.kubernetes.io/component'"),
        ({"agent": {"podLabels": {"team": "a b"}}}, "/agent/podLabels/team"),
        ({"agent": {"podAnnotations": {"cdi.k8s.io/kaishare": "nvidia.com/gpu=all"}}}, "invalid propertyName 'cdi.k8s.io/kaishare'"),
        ({"agent": {"extraEnv": [{"name": "NODE_NAME", "value": "another"}]}}, "/agent/extraEnv/0/name"),
        ({"agent": {"extraEnv": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}}, "/agent/extraEnv/0/name"),
        ({"webhook": {"extraVolumes": [{"name": "certs", "emptyDir": {}}]}}, "/webhook/extraVolumes/0/name"),
        (
            {"webhook": {"extraVolumeMounts": [{"name": "a", "mountPath": "/etc//kaishare/certs"}]}},
            "/webhook/extraVolumeMounts/0/mountPath",
        ),
        (
            {"agent": {"extraVolumeMounts": [{"name": "a", "mountPath": "/proc"}]}},
            "/agent/extraVolumeMounts/0/mountPath",
        ),
        ({"networkPolicies": {"apiServerCIDRs": ["10.0.0.10"]}}, "/networkPolicies/apiServerCIDRs/0"),
        ({"imagePullSecrets": [{"nam": "registry"}]}, "/imagePullSecrets/0"),
        (
            {"authentication": {"enabled": True}, "monitors": {"enabled": True}},
            "needs monitors.tokenSecret.name, a Secret with Prometheus' token",
        ),
        ({"agent": {"tlsSecret": "Not A Name"}}, "/agent/tlsSecret"),
        ({"excludedNamespaces": "kube-system"}, "/excludedNamespaces"),
        ({"agent": {"excludedNamespaces": "mps"}}, "/agent/excludedNamespaces"),
        ({"kaiVersion": "latest"}, "/kaiVersion"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_an_invalid_value_is_refused_by_name(values: dict[str, Any], problem: str) -> None:
    done = helm("template", "kaishare", str(CHART), "--kube-version", "1.30.0", *options(values))
    assert done.returncode != 0
    assert problem in done.stderr


def test_an_old_kubernetes_is_refused() -> None:
    done = helm("template", "kaishare", str(CHART), "--kube-version", "1.29.9")
    assert done.returncode != 0
    assert ">=1.30.0" in done.stderr


@pytest.mark.parametrize("word", sampled(["0x1f", "007", "null", "yes"], 4))
def test_a_name_that_yaml_reads_as_another_type_stays_a_text(word: str) -> None:
    """A namespace may be named 007, which YAML reads as the number 7."""

    def texts(name: str) -> list[Object]:
        tls = {"opsTlsSecret": name, "certificates": {"mode": "secret", "tlsSecret": name, "caBundle": PEM}}
        values: dict[str, Any] = {
            **EVERYTHING,
            "imagePullSecrets": [name, {"name": name}],
            "networkPolicies": {"monitoringNamespace": name},
            "webhook": {**tls, "priorityClassName": name, "image": {"repository": name, "tag": name}},
            "agent": {
                "namespace": name,
                "tlsSecret": name,
                "priorityClassName": name,
                "runtimeClassName": name,
            },
            "authentication": {
                "enabled": True,
                "readers": [{"kind": "ServiceAccount", "name": name, "namespace": name}],
            },
            "settings": {"readers": [{"kind": "ServiceAccount", "name": name, "namespace": name}]},
            "monitors": {"enabled": True, "tokenSecret": {"name": name, "key": name}},
        }
        self_signed = {"webhook": {"certificates": {"mode": "self", "caSecret": name}}}
        issued = {"webhook": {"certificates": {"mode": "cert-manager", "tlsSecret": name}}}
        return [
            item
            for chosen in (values, self_signed, issued)
            for item in yaml.safe_load_all(
                helm(
                    "template", name, str(CHART), "--namespace", name, "--kube-version", "1.30.0",
                    *options(chosen),
                ).stdout
            )
            if item is not None
        ]  # fmt: skip

    for plain, item in zip(texts("plain-name"), texts(word), strict=True):
        assert list(misread(plain, item, "plain-name", word)) == []


def misread(plain: Any, value: Any, old: str, new: str, path: str = "") -> Iterator[str]:
    """Yield the places whose value is not the plain one with the new word in the place of the old one."""
    if type(plain) is not type(value):
        yield f"{path}: {plain!r} became {value!r}"
    elif isinstance(plain, dict):
        assert plain.keys() == value.keys(), path
        for key in plain:
            yield from misread(plain[key], value[key], old, new, f"{path}.{key}")
    elif isinstance(plain, list):
        assert len(plain) == len(value), path
        for index, (before, after) in enumerate(zip(plain, value, strict=True)):
            yield from misread(before, after, old, new, f"{path}[{index}]")
    elif plain == old and value != new and "values" not in path:  # lists of namespaces are sorted
        yield f"{path}: {plain!r} became {value!r}"


WORDS = [
    "", "0", "5", "5s", "0s", "100ms", "2m", "1h", "1d", "5 s", "-5s", "1.5s", "9999999999s", "1/10m", "1/0m", "0/10m", "1000/10m",
    "01/10m", "1/10", "1 / 10m", "256Mi,5%", "0,0%", "1Gi,0.5%", "256Mi,100%", "256Mi,101%", "256MiB,5%", "5%", "256Mi,5", ",5%",
    "256Mi,5%,", "0.13.0", "v0.13.0", "0.13", "0.13.0-rc1", "0.13.0foo", "0.13.0-", "00.1.2", "0.17.0.1", "latest", "0.1234567.0",
]  # fmt: skip
READ = {
    "kaiVersion": (SCHEMA["properties"]["kaiVersion"], Version.parse),
    "a duration": (SCHEMA["definitions"]["duration"], parse_duration),
    "a duration of the agent": (SCHEMA["definitions"]["agentDuration"], agent_duration),
    "agent.slack": (SCHEMA["properties"]["agent"]["properties"]["slack"], Slack.parse),
    "agent.eviction.budget": (
        SCHEMA["properties"]["agent"]["properties"]["eviction"]["properties"]["budget"],
        Budget.parse,
    ),
}


@pytest.mark.parametrize("value", READ)
def test_the_programs_accept_every_word_of_the_schema(value: str) -> None:
    schema, read = READ[value]
    taken = set()
    for word in WORDS:
        with suppress(ValueError):
            read(word)
            taken.add(word)
    unset = {""} if value == "kaiVersion" else set[str]()
    assert {word for word in WORDS if re.fullmatch(schema["pattern"], word)} == taken | unset


def every_key(schema: Object, values: Object, path: str = "") -> list[str]:
    """Return the keys that only one of both has."""
    known = schema["properties"]
    odd = [f"{path}.{key}" for key in set(known) ^ set(values) if key != "global"]
    for key in set(known) & set(values):
        inner = (
            known[key]
            if "$ref" not in known[key]
            else SCHEMA["definitions"][known[key]["$ref"].split("/")[-1]]
        )
        if "properties" in inner and isinstance(values[key], dict) and values[key]:
            odd += every_key(inner, values[key], f"{path}.{key}")
    return odd


def test_the_schema_has_exactly_the_values_of_the_chart() -> None:
    assert every_key(SCHEMA, yaml.safe_load((CHART / "values.yaml").read_text())) == []


def optional_values(schema: Object, values: Object, replace: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the values with every value that may be null replaced."""
    optional: dict[str, Any] = {}
    for key, value in values.items():
        inner = schema["properties"][key]
        if "$ref" in inner:
            inner = SCHEMA["definitions"][inner["$ref"].split("/")[-1]]
        if key not in schema.get("required", ()):
            optional[key] = replace(value)
        elif "properties" in inner and (among := optional_values(inner, value, replace)):
            optional[key] = among
    return optional


def emptied(value: Any) -> Any:
    """Return the empty value of the same type. Helm merges maps, so every key of a map becomes null."""
    return dict.fromkeys(value) if isinstance(value, dict) else type(value)()


def without_empty(value: Any) -> Any:
    """Return a value without nulls, empty maps and empty lists."""
    if isinstance(value, dict):
        inner = {key: without_empty(item) for key, item in value.items()}
        return {key: item for key, item in inner.items() if item not in (None, {}, [])}
    if isinstance(value, list):
        return [without_empty(item) for item in value]
    return value


def test_a_null_value_counts_as_empty() -> None:
    """helm removes a value that is set to null, and with it the chart's default."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    null = optional_values(SCHEMA, values, lambda _: None)
    empty = optional_values(SCHEMA, values, emptied)
    assert null["agent"]["nodeSelector"] is None
    assert empty["agent"]["runtimeClassName"] == ""
    assert without_empty(rendered(null)) == without_empty(rendered(empty))
    on = {"enabled": True}
    for part in ("monitors", "alerts", "dashboard", "guard"):
        null[part], empty[part] = {**null.get(part, {}), **on}, {**empty.get(part, {}), **on}
    assert without_empty(rendered(null)) == without_empty(rendered(empty))


# What Kubernetes itself explains, and switches named after what they switch.
PLAIN = {
    "affinity", "digest", "enabled", "image", "nodeSelector", "podAnnotations", "pullPolicy", "repository", "resources", "tag",
    "tolerations", "agent", "webhook", "certificates", "certManager", "duration", "renewBefore", "createNamespace", "interval",
    "requests", "limits", "extraVolumeMounts", "name", "grafana_dashboard", "grafana_folder", "cpu", "memory", "key", "operator", "grace", "monitoringNamespace", "eviction",
}  # fmt: skip


def test_every_value_is_explained() -> None:
    above, odd = "", []
    for line in (CHART / "values.yaml").read_text().splitlines():
        key = re.match(r" *(\w+):", line)
        if key and key[1] not in PLAIN and not above.lstrip().startswith("#"):
            odd.append(key[1])
        above = line
    assert odd == []
