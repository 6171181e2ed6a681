"""What single values of the chart change in its objects."""

import json
from typing import Any

import pytest

from gpuagent.cli import _parser as agent_parser
from tests.deploy.test_chart_dashboards import DASHBOARDS
from tests.support.chart_variants import AGENT, CERT_MANAGER, GIVEN, VARIANTS, WEBHOOK
from tests.support.helm_chart import (
    EVERYTHING,
    NAMESPACE,
    Object,
    agent_pod,
    container,
    find_object,
    kinds,
    pod_of,
    rendered,
)
from webhook.registration.configurations import (
    CONFIGURATION_NAME,
)

PUBLISHES = {
    "apiGroups": [""],
    "resources": ["configmaps"],
    "resourceNames": ["kaishare-settings"],
    "verbs": ["patch"],
}
"""The right of the webhook to publish its settings."""


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
    assert by_env["spec"]["volumes"] == [{"name": "state", "emptyDir": {"sizeLimit": "2Mi"}}]
    assert container(by_env)["volumeMounts"] == [{"name": "state", "mountPath": "/var/lib/kaishare"}]
    assert "--state=/var/lib/kaishare" in container(by_env)["args"]
    by_mount = agent_pod(VARIANTS["GPUs by a mount"])
    assert environment(by_mount)["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    assert container(by_mount)["volumeMounts"][0]["mountPath"] == "/var/run/nvidia-container-devices/all"
    assert by_mount["spec"]["volumes"][0]["hostPath"]["path"] == "/dev/null"
    by_cdi = agent_pod(VARIANTS["GPUs by CDI"])
    assert environment(by_cdi) == {}
    assert "runtimeClassName" not in by_cdi["spec"]
    assert by_cdi["metadata"]["annotations"]["cdi.k8s.io/kaishare"] == "management.nvidia.com/gpu=all"
    assert "runtimeClassName" not in agent_pod(VARIANTS["no runtime class"])["spec"]


def test_an_affinity_of_the_user_replaces_the_rule_about_drivers() -> None:
    (term,) = agent_pod()["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    assert (expression["key"], expression["operator"]) == ("nvidia.com/gpu-driver-upgrade-state", "NotIn")
    assert expression["values"] == ["pod-deletion-required", "drain-required", "pod-restart-required"]
    own = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert agent_pod({"agent": {"affinity": own}})["spec"]["affinity"] == own


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
    assert "--gpus=simulated" in only["args"]
    assert "--gpus=simulated" not in container(agent_pod())["args"]
    assert {variable["name"] for variable in only["env"]} == {"NODE_NAME", "POD_NAME"}
    for field in ("runtimeClassName", "hostPID", "nodeSelector"):
        assert field not in spec
    assert not any(key.startswith("cdi.") for key in made["metadata"]["annotations"])
    assert "add" not in only["securityContext"]["capabilities"]
    volume, state = spec["volumes"]
    assert volume.keys() == state.keys() == {"name", "emptyDir"}
    assert only["volumeMounts"][0] == {"name": volume["name"], "mountPath": "/tmp"}
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


def test_the_agents_page_gets_the_addresses_of_runbooks_and_other_nodes() -> None:
    runbooks, fleet = (
        "https://git.example.com/kaishare/blob/main/",
        "https://g.example.com/d/x?var-node={node}#a:",
    )
    values = {"alerts": {"runbooks": runbooks}, "agent": {"fleetUrl": fleet}}
    arguments = agent_parser().parse_args(container(agent_pod(values))["args"])
    assert (arguments.runbooks, arguments.fleet_url) == (runbooks, fleet)
    plain = container(agent_pod({}))["args"]
    assert not [argument for argument in plain if argument.startswith(("--runbooks", "--fleet-url"))]


@pytest.mark.parametrize(
    ("agent", "scope"),
    [
        ({}, ("kaishare-agent", "system-node-critical")),
        ({"namespace": "kaishare"}, ("kaishare", "system-node-critical")),
        ({"priorityClassName": "system-cluster-critical"}, ("kaishare-agent", "system-cluster-critical")),
        ({"priorityClassName": "mine"}, None),
        ({"priorityClassName": ""}, None),
        ({"namespace": "kube-system"}, None),
        ({"enabled": False}, None),
    ],
)
def test_a_critical_agent_has_the_quota_of_its_class_outside_kube_system(
    agent: dict[str, Any], scope: tuple[str, str] | None
) -> None:
    quotas = [item for item in rendered({"agent": agent}) if item["kind"] == "ResourceQuota"]
    scopes = [
        (quota["metadata"]["namespace"], value)
        for quota in quotas
        for expression in quota["spec"]["scopeSelector"]["matchExpressions"]
        for value in expression["values"]
    ]
    assert scopes == ([scope] if scope else [])
