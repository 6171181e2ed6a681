"""The objects that the chart renders from its values, and their agreement with the programs and with `kaishare render`."""

import json
import re
from typing import Any

import pytest

from console.render.policy_manifests import MUTATING, VALIDATING, objects_of
from gpuagent.cli import _parser as agent_parser
from gpuagent.own_pod import EVENT_RIGHTS, EVICTION_RIGHTS, POD_RIGHTS
from kai.kaishare_keys import AGENT_EXCLUDED_NAMESPACES, EXCLUDED_NAMESPACES
from kai.releases import Version
from service.http.limits import Address
from tests.support.chart_variants import CERT_MANAGER, GIVEN, PEM, VARIANTS
from tests.support.helm_chart import (
    CHART,
    EVERYTHING,
    NAMESPACE,
    Object,
    agent_pod,
    container,
    find_object,
    helm,
    kinds,
    rendered,
    webhook_pod,
)
from tests.support.registration import ServiceTarget, mutating_configuration, validating_configuration
from webhook.cli import _parser as webhook_parser
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode
from webhook.registration.configurations import CONFIGURATION_NAME
from webhook.settings.decision_options import DEFAULT_CLASS, parse_decision_options
from webhook.settings.published_settings import KEY, NAME, decode_settings, encode_settings


@pytest.fixture(params=VARIANTS, scope="module")
def variant(request: pytest.FixtureRequest) -> dict[str, Any]:
    return VARIANTS[request.param]


def test_helm_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


# What must hold whatever the values are.


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
            if "configmaps" in rule["resources"]:
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
    for pod, parser, options in (
        (webhook_pod(), webhook_parser(), {"admission": "listen", "ops": "ops_listen"}),
        (agent_pod(), agent_parser(), {"http": "listen"}),
    ):
        configured, usual = parser.parse_args(container(pod)["args"]), parser.parse_args(["serve"])
        ports = {port["name"]: port["containerPort"] for port in container(pod)["ports"]}
        assert ports.keys() == options.keys()
        for name, option in options.items():
            assert Address.parse(getattr(configured, option)) == Address("", ports[name])
            assert Address.parse(getattr(usual, option)).port == ports[name]


def test_names_in_the_cluster_are_the_programs_own_defaults() -> None:
    objects = rendered()
    usual = webhook_parser().parse_args(["serve"])
    configured = webhook_parser().parse_args(container(webhook_pod())["args"])
    for option in ("certs_secret", "service", "webhook_configuration", "drain", "max_in_flight"):
        assert getattr(configured, option) == getattr(usual, option), option
    assert parse_decision_options(configured).rules == parse_decision_options(usual).rules
    assert find_object(objects, "Secret", usual.certs_secret)
    assert (
        find_object(objects, "Service", usual.service)["spec"]["ports"][0]["port"]
        == ServiceTarget(namespace="", name="").port
    )


@pytest.mark.parametrize(
    ("values", "of_webhook", "of_agent"),
    [
        ({}, EXCLUDED_NAMESPACES, AGENT_EXCLUDED_NAMESPACES),
        ({"agent": {"namespace": "watchers"}, "excludedNamespaces": ["kube-system"]}, {"kaishare", "kube-system", "watchers"}, {"kaishare", "kube-system", "nvidia-device-plugin", "watchers"}),
        *(({"agent": {"excludedNamespaces": further}}, EXCLUDED_NAMESPACES, {*EXCLUDED_NAMESPACES, *(further or ())}) for further in ([], None, ["mps"])),
    ],
)  # fmt: skip
def test_excluded_namespaces_are_the_programs_own_and_the_releases(
    values: dict[str, Any], of_webhook: set[str], of_agent: set[str]
) -> None:
    for pod, names in ((webhook_pod(values), of_webhook), (agent_pod(values), of_agent)):
        assert "--exclude-namespaces=" + ",".join(sorted(names)) in container(pod)["args"]
    webhook = find_object(rendered(values), "MutatingWebhookConfiguration", CONFIGURATION_NAME)["webhooks"][0]
    assert webhook["namespaceSelector"]["matchExpressions"][-1]["values"] == sorted(of_webhook)


def test_the_agent_has_the_rights_that_it_reviews() -> None:
    def rights(objects: list[Object], kind: str) -> set[str]:
        return {
            f"{verb} {resource}"
            for role in objects
            if (role["kind"], role["metadata"]["name"]) == (kind, "kaishare-agent")
            for rule in role["rules"]
            for resource in rule.get("resources", ())
            for verb in rule["verbs"]
        }

    usual, most = rendered(), rendered(EVERYTHING)
    assert {*POD_RIGHTS, *EVENT_RIGHTS, "get nodes", "get namespaces"} <= rights(usual, "ClusterRole")
    of_claims = {"get resourceclaims", "list resourceslices", "watch resourceslices"}
    assert not {*EVICTION_RIGHTS, *of_claims} & rights(usual, "ClusterRole")
    assert {*EVICTION_RIGHTS, *of_claims} <= rights(most, "ClusterRole")
    assert "--resource-claims=true" in container(agent_pod({"agent": {"resourceClaims": True}}))["args"]
    assert rights(most, "Role") == {"create events", "list events"}
    assert not rights(usual, "Role")


def test_only_the_charts_own_accounts_are_bound() -> None:
    places = {
        "kaishare-webhook": NAMESPACE,
        "kaishare-agent": "kaishare-agent",
        "kaishare-reader": "kaishare-agent",
    }
    for item in rendered(EVERYTHING):
        if item["kind"].endswith("RoleBinding"):
            name = item["metadata"]["name"]
            if name == "kaishare-settings":  # tests/deploy/test_chart_values.py
                continue
            subject = {"kind": "ServiceAccount", "name": name, "namespace": places[name]}
            assert item["subjects"] == [subject]
            assert item["roleRef"]["name"] == name


POLICY: dict[str, Any] = {"agent": {"enabled": False}, "webhook": {"kind": "policy"}}


def policies(values: dict[str, Any]) -> list[Object]:
    items = [item for item in rendered(values) if "AdmissionPolicy" in item["kind"]]
    for item in items:
        assert item["metadata"].pop("labels")["app.kubernetes.io/component"] == "policy"
    return in_order(items)


def in_order(items: list[Object]) -> list[Object]:
    return sorted(items, key=lambda item: (item["kind"], item["metadata"]["name"]))


def printed(rules: DecisionSettings) -> list[Object]:
    return in_order([*objects_of(MUTATING, rules), *objects_of(VALIDATING, rules)])


RELEASES = ("0.9.12-rc1", "v0.9.13", "0.10.0-rc1", "0.16.4", "0.16.5-rc2", "0.16.5", "1.0.0-rc1")
OPTIONS = {
    "injectShares": False, "defaultMode": "observe", "defaultPriorityClass": "usual",
    "gpuRuntimeClasses": ["gvisor", "b.c"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "rules"),
    [
        ({}, DecisionSettings()),
        *(({"kaiVersion": release}, DecisionSettings(kai_version=Version.parse(release))) for release in RELEASES),
        (
            {"webhook": {**POLICY["webhook"], **OPTIONS}, "excludedNamespaces": ["kube-system", "a"]},
            DecisionSettings(
                inject_shares=False, default_mode=Mode.OBSERVE, default_priority_class="usual",
                gpu_runtime_classes=frozenset({"gvisor", "b.c"}),
                excluded_namespaces=frozenset({"kube-system", "a", "kaishare", "kaishare-agent"}),
            ),
        ),
    ],
    ids=["usual", *RELEASES, "options"],
)  # fmt: skip
def test_the_charts_policies_are_those_of_the_command_render(
    values: dict[str, Any], rules: DecisionSettings
) -> None:
    assert policies({**POLICY, **values}) == printed(rules)


def test_no_webhook_runs_beside_the_policies_alone() -> None:
    alone = {kind for kind, _ in kinds(rendered(POLICY))}
    policy_kinds = {
        f"{kind}AdmissionPolicy{end}" for kind in ("Mutating", "Validating") for end in ("", "Binding")
    }
    assert alone == {*policy_kinds, "ConfigMap", "Role", "RoleBinding"}
    both = {kind for kind, _ in kinds(rendered({**POLICY, "webhook": {"kind": "both"}}))}
    webhook = {kind for kind, _ in kinds(rendered({**POLICY, "webhook": {"kind": "webhook"}}))}
    assert both == webhook | alone
    assert {"Deployment", "MutatingWebhookConfiguration"} <= webhook
    assert "MutatingAdmissionPolicy" not in webhook


@pytest.mark.parametrize("release", ["", "v0.17.0"])
def test_the_settings_of_the_policies_are_published(release: str) -> None:
    config_map = find_object(rendered({**POLICY, "kaiVersion": release}), "ConfigMap", NAME)
    published = decode_settings(config_map["data"][KEY])
    assert DEFAULT_CLASS in published.known
    expected = DecisionSettings(
        kai_version=Version.parse(release) if release else None, by_admission_policies=True
    )
    assert published.rules == expected
    again = encode_settings(published)
    assert decode_settings(again) == published


def test_while_both_stand_an_absent_webhook_refuses_no_pod() -> None:
    for kind, policy in (("both", "Ignore"), ("webhook", "Fail")):
        items = rendered({**POLICY, "webhook": {"kind": kind}})
        (configuration,) = [item for item in items if item["kind"] == "ValidatingWebhookConfiguration"]
        hooks = {hook["name"]: hook["failurePolicy"] for hook in configuration["webhooks"]}
        assert hooks["pods.validate.kaishare.dev"] == policy
