"""What single values of the chart change in its objects."""

import json
import re
from typing import Any

import pytest

from console.cli import parser as console_parser
from console.cluster.agents import AGENT_ACCOUNT, AGENT_NAMESPACE
from console.cluster.prometheus import ADDRESS_ANNOTATION
from gpuagent.cli import _parser as agent_parser
from kube.tokens import right_url
from service.http.authentication import HEALTH_PATHS
from service.page import static_pages
from tests.support.chart_variants import AGENT, CERT_MANAGER, GIVEN, ON_THE_NODE, VARIANTS, WEBHOOK
from tests.support.helm_chart import (
    CHART,
    EVERYTHING,
    NAMESPACE,
    ROOT,
    Object,
    agent_pod,
    container,
    find_object,
    helm,
    kinds,
    options,
    rendered,
    rendered_text,
    webhook_pod,
)
from webhook.cli import _parser as webhook_parser
from webhook.policy.labels import DEFAULT_MODES
from webhook.settings.decision_options import NAMESPACE as DEFAULT_NAMESPACE
from webhook.settings.published_settings import NAME as SETTINGS

Values = dict[str, Any]
PODS = {"webhook": webhook_pod, "agent": agent_pod}
PARSERS = {"webhook": webhook_parser, "agent": agent_parser, "doctor": console_parser}
SHORT = {
    "webhook": "Deployment/kaishare-webhook spec.template.",
    "agent": "DaemonSet/kaishare-agent spec.template.",
    "doctor": "Pod/kaishare-webhook-doctor ",
}
READER, ACCOUNT, TOKENS = "kaishare-metrics-reader", "kaishare-reader", "kaishare-reader-tokens"
PUBLISHES = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [SETTINGS], "verbs": ["patch"]}
"""The right of the webhook to publish its settings."""
SECRETS = {
    **PUBLISHES,
    "resources": ["secrets"],
    "resourceNames": ["kaishare-webhook-ca"],
    "verbs": ["get", "patch"],
}
GPU_ENV = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
DEVICES = "/var/run/nvidia-container-devices"
ENFORCE = "metadata.labels.pod-security\\.kubernetes\\.io/enforce"
ROLLING = "Deployment/kaishare-webhook spec.strategy.rollingUpdate"
BUDGET = "PodDisruptionBudget/kaishare-webhook spec."
QUOTA = "ResourceQuota/kaishare-agent "
QUOTA_CLASS = f"{QUOTA}spec.scopeSelector.matchExpressions.0.values"
AGENT_SOURCES = "NetworkPolicy/kaishare-agent spec.ingress.0.from"
EVERYONE = {"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}
PEOPLE = [
    {"kind": "Group", "name": "oidc:platform team"},
    {"kind": "User", "name": "0123"},
    {"kind": "ServiceAccount", "name": "ci", "namespace": "builds"},
]
SUBJECTS = [{**person, "apiGroup": EVERYONE["apiGroup"]} for person in PEOPLE[:2]] + PEOPLE[2:]
ON: Values = {"authentication": {"enabled": True}}
TLS: Values = {"webhook": {"opsTlsSecret": "webhook-tls"}, "agent": {"tlsSecret": "agent-tls"}}
MONITORS: Values = {"enabled": True, "tokenSecret": {"name": "prometheus", "key": "bearer"}}
TRUSTED = {"ca": {"secret": {"name": "ca", "key": "ca.crt"}}}
URLS = {"runbooks": "https://git.example.com/main/", "fleet": "https://g.example.com/d/x?var-node={node}#a:"}
STATE, STATE_PATH = {"name": "state", "emptyDir": {"sizeLimit": "2Mi"}}, "/var/lib/kaishare"
NOT_UPGRADING = {
    "key": "nvidia.com/gpu-driver-upgrade-state",
    "operator": "NotIn",
    "values": ["pod-deletion-required", "drain-required", "pod-restart-required"],
}
TERMS = "agent spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
SPREAD: Object = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
CGROUP = {"name": "cgroup", "hostPath": {"path": "/sys/fs/cgroup"}}
VOLUME, MOUNT = {"name": "scratch", "emptyDir": {}}, {"name": "scratch", "mountPath": "/scratch"}
SCRATCH: Values = {"extraVolumes": [VOLUME], "extraVolumeMounts": [MOUNT]}


def monitoring(namespace: str) -> list[Object]:
    return [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]


def endpoint(part: str, field: str) -> str:
    return f"PodMonitor/kaishare-{part} spec.podMetricsEndpoints.0.{field}"


MATRIX: list[tuple[Values, dict[str, Any]]] = [
    *((values, {}) for values in VARIANTS.values()),  # the programs take the options
    # Certificates.
    ({}, {"Secret/kaishare-webhook-ca data": None, "Secret/kaishare-webhook-ca stringData": None, "Role/kaishare-webhook rules": [PUBLISHES, SECRETS]}),
    *(
        (values, {
            "Secret/kaishare-webhook-ca": None, "webhook args.--certs": "/etc/kaishare/certs",
            "webhook spec.volumes.0.secret.secretName": "kaishare-webhook-tls", "webhook mounts": {"/etc/kaishare/certs": True},
        })
        for values in (CERT_MANAGER, GIVEN)
    ),
    (CERT_MANAGER, {
        "Certificate/kaishare-webhook spec.dnsNames": ["kaishare-webhook.kaishare.svc", "kaishare-webhook.kaishare"],
        "Certificate/kaishare-webhook spec.issuerRef": {"kind": "Issuer", "name": "kaishare-webhook"},
        "Issuer/kaishare-webhook spec.ca.secretName": "kaishare-webhook-cert-manager-ca",
        "Certificate/kaishare-webhook-ca spec.secretName": "kaishare-webhook-cert-manager-ca",
        "MutatingWebhookConfiguration/kai-00-kaishare metadata.annotations": {"cert-manager.io/inject-ca-from": "kaishare/kaishare-webhook"},
        "ValidatingWebhookConfiguration/kai-00-kaishare metadata.annotations": {"cert-manager.io/inject-ca-from": "kaishare/kaishare-webhook"},
    }),
    (VARIANTS["certificates of an issuer"], {"Issuer/kaishare-webhook": None, "Certificate/kaishare-webhook spec.issuerRef.name": "in-house"}),
    # The webhook's pods. In a vCluster's copy a key would stand in matchLabelKeys and in labelSelector, which is invalid.
    (WEBHOOK, {f"webhook spec.topologySpreadConstraints.{index}.matchLabelKeys": None for index in (0, 1)}),
    *(({"webhook": {"replicas": count}}, {f"{BUDGET}minAvailable": count - 1, f"{BUDGET}maxUnavailable": None}) for count in (1, 2, 5)),
    ({}, {"webhook spec.hostNetwork": None, "webhook spec.dnsPolicy": None, ROLLING: {"maxUnavailable": 0, "maxSurge": 1}}),
    # Pods with the same ports of the host cannot share a node: with a surge, an update on as many nodes as replicas would never end.
    # The budget and the update agree: one replica less at a time. With the node's own DNS the pod would find no Service.
    (ON_THE_NODE, {
        "webhook spec.hostNetwork": True, "webhook spec.dnsPolicy": "ClusterFirstWithHostNet", "webhook ports": {"admission": 9443, "ops": 9080},
        "webhook args.--listen": ":9443", "webhook args.--ops-listen": ":9080",
        ROLLING: {"maxUnavailable": 1, "maxSurge": 0}, f"{BUDGET}minAvailable": 1, f"Namespace/{NAMESPACE} {ENFORCE}": "privileged",
    }),
    ({"webhook": {"hostNetwork": True, "replicas": 1}}, {ROLLING: {"maxUnavailable": 0, "maxSurge": 1}}),
    *(
        ({"webhook": {"defaultMode": mode.value}}, {"webhook args.--default-mode": mode.value, "doctor args.--default-mode": mode.value})
        for mode in DEFAULT_MODES
    ),
    # The doctor of `helm test` may not read the published settings, so it is told.
    ({}, {"webhook args.--default-mode": None, "doctor args.--default-mode": "default"}),
    # The agent and the driver.
    ({}, {"agent env": GPU_ENV, "agent spec.runtimeClassName": "nvidia", "agent spec.volumes": [CGROUP, STATE], "agent mounts": {"/host/cgroup": True, STATE_PATH: None}, "agent args.--cgroup-root": "/host/cgroup", "agent args.--state": STATE_PATH, "agent args.--gpus": None, "agent args.--host-name": None}),
    ({}, {"agent spec.containers.0.env.1.name": "POD_NAME", "agent spec.containers.0.env.1.valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
    (VARIANTS["GPUs by a mount"], {"agent env.NVIDIA_VISIBLE_DEVICES": DEVICES, "agent mounts": {f"{DEVICES}/all": True, "/host/cgroup": True, STATE_PATH: None}, "agent spec.volumes.0.hostPath.path": "/dev/null"}),
    ({"agent": {"cgroupRoot": ""}}, {"agent spec.volumes": [STATE], "agent args.--cgroup-root": None}),
    (VARIANTS["GPUs by CDI"], {"agent env": {}, "agent spec.runtimeClassName": None, "agent metadata.annotations.cdi\\.k8s\\.io/kaishare": "management.nvidia.com/gpu=all"}),
    (VARIANTS["no runtime class"], {"agent spec.runtimeClassName": None}),
    ({"agent": {"hostNames": ["Agent.example.com"]}}, {"agent args.--host-name": "Agent.example.com"}),
    # The API server refuses "CAP_SYS_ADMIN" beside allowPrivilegeEscalation: false, and takes this name.
    (VARIANTS["the MIG monitor capability"], {
        "agent env": {**GPU_ENV, "NVIDIA_MIG_MONITOR_DEVICES": "all"},
        "agent spec.containers.0.securityContext.capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
    }),
    ({"agent": {"migMonitor": True, "gpuAccess": "volume-mounts"}}, {"agent env.NVIDIA_MIG_MONITOR_DEVICES": "all"}),
    *(
        ({"agent": {"simulated": True, "gpuAccess": access, "migMonitor": access != "cdi"}}, {
            "agent args.--gpus": "simulated", "agent env": {}, "agent spec.runtimeClassName": None, "agent spec.hostPID": None, "agent spec.nodeSelector": None,
            "agent metadata.annotations.cdi\\.k8s\\.io/kaishare": None, "agent spec.containers.0.securityContext.capabilities.add": None,
            "agent spec.volumes": [STATE], "agent mounts": {STATE_PATH: None},
        })
        for access in ("env", "volume-mounts", "cdi")
    ),
    ({"agent": {"simulated": True, "nodeSelector": {"pool": "laptop"}, "tolerations": []}}, {"agent spec.nodeSelector": {"pool": "laptop"}, "agent spec.tolerations": None}),
    ({"alerts": {"runbooks": URLS["runbooks"]}, "agent": {"fleetUrl": URLS["fleet"]}}, {"agent args.--runbooks": URLS["runbooks"], "agent args.--fleet-url": URLS["fleet"]}),
    ({}, {"agent args.--runbooks": None, "agent args.--fleet-url": None}),
    # The agent leaves a node while its driver is replaced; an affinity of the user replaces that rule.
    ({}, {TERMS: [{"matchExpressions": [NOT_UPGRADING]}], "DaemonSet/kaishare-agent spec.updateStrategy.rollingUpdate.maxUnavailable": "100%"}),
    ({"agent": {"affinity": SPREAD}}, {"agent spec.affinity": SPREAD}),
    # Namespaces have the profile that hostPID needs; a critical class has a quota outside kube-system.
    ({}, {f"Namespace/kaishare-agent {ENFORCE}": "privileged", f"{QUOTA}metadata.namespace": "kaishare-agent", QUOTA_CLASS: ["system-node-critical"]}),
    (VARIANTS["one namespace"], {"Namespace/kaishare-agent": None, f"Namespace/{NAMESPACE}": None}),
    (VARIANTS["namespace of its own"], {f"Namespace/{NAMESPACE} {ENFORCE}": "restricted"}),
    *(
        ({"webhook": {"createNamespace": True}, "agent": {"namespace": NAMESPACE, **agent}}, {f"Namespace/{NAMESPACE} {ENFORCE}": profile})
        for agent, profile in (({}, "privileged"), ({"simulated": True}, "restricted"), ({"enabled": False}, "restricted"))
    ),
    ({"agent": {"namespace": "kaishare"}}, {f"{QUOTA}metadata.namespace": "kaishare"}),
    ({"agent": {"priorityClassName": "system-cluster-critical"}}, {QUOTA_CLASS: ["system-cluster-critical"]}),
    *(({"agent": agent}, {"ResourceQuota/kaishare-agent": None}) for agent in ({"priorityClassName": "mine"}, {"priorityClassName": ""}, {"namespace": "kube-system"}, {"enabled": False})),
    # Networks, registries, labels.
    ({"networkPolicies": {"apiServerCIDRs": ["10.0.0.10/32", "fd00::/64"]}}, {
        AGENT_SOURCES: [*monitoring("monitoring"), {"ipBlock": {"cidr": "10.0.0.10/32"}}, {"ipBlock": {"cidr": "fd00::/64"}}],
    }),
    ({"imagePullSecrets": ["registry", {"name": "mirror"}]}, {f"{part} spec.imagePullSecrets": [{"name": "registry"}, {"name": "mirror"}] for part in PODS}),
    *(
        ({part: {**own, **SCRATCH}}, {f"{part} spec.volumes.{index}": VOLUME, f"{part} spec.containers.0.volumeMounts.{index}": MOUNT})
        for part, own, index in (("webhook", CERT_MANAGER["webhook"], 1), ("agent", {"gpuAccess": "volume-mounts"}, 3))
    ),
    *(
        ({part: {**SCRATCH, "serviceAccountAnnotations": {"a": "b"}, "podLabels": {"team": "x"}}}, {
            f"{part} spec.volumes": [*own, VOLUME], f"{part} spec.containers.0.volumeMounts.{len(own)}": MOUNT,
            f"{part} metadata.labels.team": "x", f"{part} metadata.labels.app\\.kubernetes\\.io/component": part,
            f"{SHORT[part].removesuffix('template.')}selector.matchLabels.team": None, f"ServiceAccount/kaishare-{part} metadata.annotations": {"a": "b"},
        })
        for part, own in (("webhook", []), ("agent", [CGROUP, STATE]))
    ),
    *(({part: {"logLevel": level}}, {f"{part} args.--log-level": level}) for part in PODS for level in ("debug", "warning", "error")),
    ({"dashboard": {"enabled": True, "labels": {"board": "yes"}, "annotations": {"folder": "GPU"}}}, {
        "ConfigMap/kaishare-dashboard-fleet metadata.labels.board": "yes", "ConfigMap/kaishare-dashboard-fleet metadata.annotations.folder": "GPU",
    }),
    # Tokens, TLS, and Prometheus as a reader.
    ({}, {"webhook args.--log-level": None, "agent args.--log-level": None, f"ClusterRole/{READER}": None, "webhook args.--authentication": None, "agent args.--authentication": None}),
    (ON, {f"{part} args.--authentication": "tokens" for part in PODS}),
    ({"authentication": {"enabled": True, "readerLabels": {"aggregate": "true"}}}, {f"ClusterRole/{READER} metadata.labels.aggregate": "true"}),
    ({"monitors": {"enabled": True, "labels": {"release": "x"}}}, {
        key: value
        for part in PODS
        for key, value in {
            f"PodMonitor/kaishare-{part} metadata.labels.release": "x",
            endpoint(part, "honorLabels"): True,
            endpoint(part, "scheme"): None,
            endpoint(part, "tlsConfig"): None,
            endpoint(part, "authorization"): None,
        }.items()
    }),
    *(
        row
        for part, namespace in (("webhook", "kaishare"), ("agent", "kaishare-agent"))
        for row in (
            ({**ON, "monitors": MONITORS}, {
                endpoint(part, "authorization"): {"type": "Bearer", "credentials": {"name": "prometheus", "key": "bearer"}},
                endpoint(part, "scheme"): None,
            }),
            ({**ON, **TLS, "monitors": MONITORS}, {endpoint(part, "scheme"): "https", endpoint(part, "tlsConfig"): {"insecureSkipVerify": True}}),
            ({**TLS, "monitors": {**MONITORS, "tlsConfig": TRUSTED}}, {
                endpoint(part, "tlsConfig"): {**TRUSTED, "serverName": f"kaishare-{part}.{namespace}.svc"},
                endpoint(part, "authorization"): None,
            }),
            ({**TLS, "monitors": {**MONITORS, "tlsConfig": {**TRUSTED, "serverName": "x"}}}, {endpoint(part, "tlsConfig.serverName"): "x"}),
        )
    ),
    # The ConfigMap with the webhook's settings, which every authenticated user may get. It has no data for upgrades to restore.
    ({}, {
        f"ConfigMap/{SETTINGS} data": None, f"ConfigMap/{SETTINGS} metadata.annotations": None, f"Role/{SETTINGS} rules": [{**PUBLISHES, "verbs": ["get"]}],
        f"Role/{SETTINGS} metadata.namespace": NAMESPACE, f"RoleBinding/{SETTINGS} metadata.namespace": NAMESPACE,
        f"RoleBinding/{SETTINGS} roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": SETTINGS},
        f"RoleBinding/{SETTINGS} subjects": [EVERYONE], "webhook args.--settings-namespace": NAMESPACE,
    }),
    ({"settings": {"prometheus": "monitoring/prometheus:9090"}}, {f"ConfigMap/{SETTINGS} metadata.annotations": {ADDRESS_ANNOTATION: "monitoring/prometheus:9090"}}),
    ({"settings": {"readers": PEOPLE}}, {f"RoleBinding/{SETTINGS} subjects": SUBJECTS}),
    *(({"settings": {"readers": none}}, {f"RoleBinding/{SETTINGS}": None, f"Role/{SETTINGS} kind": "Role"}) for none in ([], None)),
    (AGENT, {f"{kind}/{SETTINGS}": None for kind in ("ConfigMap", "Role", "RoleBinding")}),
    # The account of people's tokens. Not /metrics, which is a path of the API server, too.
    *((values, {f"{kind}/{ACCOUNT}": None for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")} | {f"Role/{TOKENS}": None}) for values in ({}, {**ON, **WEBHOOK})),
    ({**ON, **AGENT}, {
        f"ServiceAccount/{AGENT_ACCOUNT} metadata.namespace": AGENT_NAMESPACE, f"ServiceAccount/{ACCOUNT} automountServiceAccountToken": False,
        f"ClusterRole/{ACCOUNT} rules": [{"nonResourceURLs": [right_url("/api/v1/shares"), right_url("/api/v1/history")], "verbs": ["get"]}],
        f"RoleBinding/{TOKENS}": None,
    }),
    ({"authentication": {"enabled": True, "readers": PEOPLE}}, {
        f"RoleBinding/{TOKENS} subjects": SUBJECTS, f"RoleBinding/{TOKENS} roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": TOKENS},
        f"RoleBinding/{TOKENS} metadata.namespace": AGENT_NAMESPACE, f"Role/{TOKENS} metadata.namespace": AGENT_NAMESPACE,
        f"Role/{TOKENS} rules": [
            {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [ACCOUNT], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]},
        ],
    }),
]  # fmt: skip
"""Values of the chart, and what its objects have at places, beside options that the programs take. None: the object or the field is absent.

A place is KIND/NAME and a path; `webhook`, `agent` and `doctor` stand for the templates of their pods. In a pod `args.--NAME` is the value
of an option, `env` the variables with a value, `mounts` the paths of the mounted volumes with readOnly, and `ports` the numbers by name.
"""


def value_at(objects: list[Object], place: str) -> Any:
    """Return the value at a place; None if it is absent."""
    head, _, path = place.partition(" ")
    name, _, prefix = SHORT.get(head, head).partition(" ")
    matching = [item for item in objects if f"{item['kind']}/{item['metadata']['name']}" == name]
    here: Any = matching[0] if matching else None
    for key in [part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", prefix + path) if part]:
        if here is None:
            return None
        if isinstance(here, list):
            here = here[int(key)] if int(key) < len(here) else None
        elif key in ("args", "env", "mounts", "ports") and "containers" in here.get("spec", {}):
            here = in_container(container(here), key)
        else:
            here = here.get(key)
    return here


def in_container(program: Object, key: str) -> dict[str, Any]:
    if key == "args":
        return dict(argument.split("=", 1) for argument in program["args"] if "=" in argument)
    if key == "env":
        return {variable["name"]: variable["value"] for variable in program["env"] if "value" in variable}
    if key == "mounts":
        return {mount["mountPath"]: mount.get("readOnly") for mount in program["volumeMounts"]}
    return {port["name"]: port["containerPort"] for port in program["ports"]}


@pytest.mark.parametrize(
    ("values", "expected"), MATRIX, ids=[json.dumps(values)[:70] for values, _ in MATRIX]
)
def test_the_values_have_their_effect(values: Values, expected: dict[str, Any]) -> None:
    objects = rendered(values, tests=True)
    for short, parser in PARSERS.items():
        if (pod := value_at(objects, short)) is not None:
            parser().parse_args(container(pod)["args"])
    assert {place: value_at(objects, place) for place in expected} == expected


def test_each_service_can_be_left_out() -> None:
    every = kinds(rendered(EVERYTHING))
    webhook, agent = kinds(rendered({**EVERYTHING, **WEBHOOK})), kinds(rendered({**EVERYTHING, **AGENT}))
    assert webhook | agent == every
    assert {name for _, name in webhook & agent if not name.startswith("kaishare-guard-")} == {
        "kaishare",  # the rules for Prometheus
        *(f"kaishare-dashboard-{name}" for name in ("fleet", "namespace", "node", "webhook")),
        READER,
    }
    assert rendered({**WEBHOOK, **AGENT}) == []
    assert "system:authenticated" not in rendered_text(AGENT)


@pytest.mark.parametrize("values", [CERT_MANAGER, GIVEN], ids=["cert-manager", "secret"])
def test_other_certificates_need_no_right_to_secrets_or_to_patch_a_configuration(values: Values) -> None:
    objects = rendered(values)
    assert find_object(objects, "Role", "kaishare-webhook")["rules"] == [PUBLISHES]
    for rule in find_object(objects, "ClusterRole", "kaishare-webhook")["rules"]:
        assert "patch" not in rule["verbs"] or rule["resources"] == ["events"]


def test_only_the_admission_port_is_open_to_other_namespaces_than_monitoring() -> None:
    objects = rendered({"networkPolicies": {"monitoringNamespace": "observers"}})
    source = {"from": monitoring("observers")}
    ingress = [{"ports": [{"port": "admission"}]}, {"ports": [{"port": "ops"}], **source}]
    assert value_at(objects, "NetworkPolicy/kaishare-webhook spec.ingress") == ingress
    assert value_at(objects, "NetworkPolicy/kaishare-agent spec.ingress") == [
        {"ports": [{"port": "http"}], **source}
    ]


def test_the_chart_accepts_the_port_that_the_page_on_clouds_names() -> None:
    ports = re.findall(r"`webhook\.port=(\d+)`", (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8"))
    assert ports
    for port in ports:
        objects = rendered({"webhook": {"port": int(port)}})
        assert value_at(objects, "webhook ports.admission") == int(port)


@pytest.mark.parametrize("part", PODS)
def test_variables_stand_beside_the_charts_own(part: str) -> None:
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "token"}}}
    pod, usual = PODS[part]({part: {"extraEnv": [secret]}}), PODS[part]()
    assert container(pod)["env"] == [*container(usual).get("env", []), secret]


@pytest.mark.parametrize("part", PODS)
def test_labels_of_pods_never_replace_those_of_selectors_even_unchecked(part: str) -> None:
    labels = {"app.kubernetes.io/name": "x", "app.kubernetes.io/component": "x", "team": "platform"}
    done = helm(
        "template", "kaishare", str(CHART), "--kube-version", "1.30.0", "--skip-schema-validation",
        *options({part: {"podLabels": labels}}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not re.search(r"app\.kubernetes\.io/(name|component): x", done.stdout)
    assert "team: platform" in done.stdout


@pytest.mark.parametrize("part", PODS)
def test_a_service_that_asks_for_tokens_may_review_them(part: str) -> None:
    wanted = {("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews")}
    for values, expected in (({}, set[tuple[str, str]]()), (ON, wanted)):
        created = {
            (group, resource)
            for rule in find_object(rendered(values), "ClusterRole", f"kaishare-{part}")["rules"]
            if rule["verbs"] == ["create"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        assert created & wanted == expected


def test_the_readers_role_has_every_page_by_the_url_that_the_services_ask_for() -> None:
    def urls(values: Values) -> set[str]:
        (rule,) = find_object(rendered(values), "ClusterRole", READER)["rules"]
        assert rule["verbs"] == ["get"]
        return set(rule["nonResourceURLs"])

    pages = {*static_pages(), "/metrics", "/api/v1/shares", "/api/v1/history", "/policies"}
    assert urls(ON) == {right_url(path) for path in pages}
    assert urls({**ON, **WEBHOOK}) == {"/metrics", "/kaishare/policies"}
    assert urls({**ON, **AGENT}) == urls(ON) - {"/kaishare/policies"}
    # /api and /api/* belong to every authenticated user by Kubernetes' role system:discovery.
    assert not any(url.startswith("/api") for url in urls(ON))


@pytest.mark.parametrize(("part", "option"), [("webhook", "ops_certs"), ("agent", "certs")])
def test_tls_has_its_secret_and_the_kubelet_its_scheme(part: str, option: str) -> None:
    plain, pod = PODS[part](), PODS[part](TLS)
    mount, volume = container(pod)["volumeMounts"][0], pod["spec"]["volumes"][0]
    directory = getattr(PARSERS[part]().parse_args(container(pod)["args"]), option)
    assert (mount["mountPath"], mount["readOnly"]) == (str(directory), True)
    assert volume["secret"] == {"secretName": f"{part}-tls", "defaultMode": 0o440}
    assert pod["spec"]["securityContext"]["fsGroup"] == pod["spec"]["securityContext"]["runAsGroup"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = container(pod)[probe]["httpGet"]
        assert get["path"] in HEALTH_PATHS  # the kubelet has no token
        assert get["scheme"] == "HTTPS"
        assert "scheme" not in container(plain)[probe]["httpGet"]


def test_the_account_of_peoples_tokens_has_one_role_and_no_pod_runs_with_its_token() -> None:
    objects = rendered({**ON, "agent": {"namespace": "gpu-agents"}})
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "gpu-agents"}
    bindings = [item for item in objects if subject in item.get("subjects", ())]
    assert [(item["kind"], item["roleRef"]["name"]) for item in bindings] == [("ClusterRoleBinding", ACCOUNT)]
    for part in PODS:
        assert value_at(objects, f"{part} spec.serviceAccountName") == f"kaishare-{part}"


# The ConfigMap with the webhook's settings: its one writer.


def test_the_webhook_writes_the_config_map_that_the_chart_creates() -> None:
    account = {"kind": "ServiceAccount", "name": "kaishare-webhook", "namespace": NAMESPACE}
    for values in VARIANTS.values():
        objects = rendered(values)
        if value_at(objects, "webhook spec") is None:
            continue
        assert value_at(objects, f"ConfigMap/{SETTINGS} metadata.namespace") == NAMESPACE
        assert value_at(objects, "webhook args.--settings-namespace") == NAMESPACE
        assert value_at(objects, "webhook spec.serviceAccountName") == account["name"]
        assert value_at(objects, "Role/kaishare-webhook metadata.namespace") == NAMESPACE
        assert PUBLISHES in value_at(objects, "Role/kaishare-webhook rules")
        assert value_at(objects, "RoleBinding/kaishare-webhook roleRef.name") == "kaishare-webhook"
        assert value_at(objects, "RoleBinding/kaishare-webhook subjects") == [account]


def test_without_the_option_nothing_is_published_and_previews_expect_the_charts_usual_namespace() -> None:
    assert webhook_parser().parse_args(["serve"]).settings_namespace is None
    assert DEFAULT_NAMESPACE == NAMESPACE


def test_another_namespace_of_the_release_is_that_of_all_parts() -> None:
    done = helm(
        "template", "kaishare", str(CHART), "--namespace", "gpu-sharing", "--kube-version", "1.30.0",
        "--set", "dashboard.enabled=true,alerts.enabled=true",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(gpu-sharing/)?kaishare-webhook") > 1
    assert "(kaishare/)?kaishare-webhook" not in done.stdout
    assert "--settings-namespace=gpu-sharing\n" in done.stdout
    parts = [part for part in done.stdout.split("\n---\n") if f"\n  name: {SETTINGS}\n" in part]
    assert len(parts) == 3
    for part in parts:
        assert "\n  namespace: gpu-sharing\n" in part


# Grafana's dashboards, whose variables follow the values.

DASHBOARDS: dict[str, tuple[Values, dict[str, str]]] = {
    "as they are": ({}, {}),
    "runbooks": ({"alerts": {"runbooks": "https://in.house/"}}, {"runbooks": "https://in.house/"}),
    "TLS": ({"agent": {"tlsSecret": "agent-tls"}}, {"agent_scheme": "https"}),
    "namespaces": ({"agent": {"namespace": "gpu-agents"}}, {"agent_job": "(gpu-agents/)?kaishare-agent"}),
}


@pytest.mark.parametrize("title", DASHBOARDS)
@pytest.mark.parametrize("name", ["fleet", "namespace", "node", "webhook"])
def test_a_dashboard_is_one_config_map_for_grafanas_sidecar(name: str, title: str) -> None:
    """A tenant may have a PodMonitor of the same name in another namespace than the release's."""
    values, changed = DASHBOARDS[title]
    item = find_object(
        rendered({**values, "dashboard": {"enabled": True}}), "ConfigMap", f"kaishare-dashboard-{name}"
    )
    # `kubectl apply` keeps a copy of an object in an annotation, of at most 256 KiB.
    assert len(json.dumps(item).encode()) < 250 << 10
    expected = json.loads((CHART / "files" / "dashboards" / f"{name}.json").read_text())
    for variable in expected["templating"]["list"]:
        if (value := changed.get(variable["name"])) is not None:
            assert variable["current"]["value"] != value
            variable["current"] = {"selected": True, "text": value, "value": value}
            if variable["type"] == "textbox":
                variable["query"] = value
            for option in variable.get("options", ()):
                option["selected"] = option["value"] == value
    assert json.loads(item["data"][f"kaishare-{name}.json"]) == expected
    assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert item["metadata"]["annotations"] == {"grafana_folder": "kaishare"}


VIEW = {"subjects": [{"kind": "Group", "name": "developers"}], "namespaces": ["team-a", "team-b"]}


def test_the_view_of_a_namespace_is_off_by_default_and_gives_one_right_in_it() -> None:
    name = "kaishare-viewer"
    assert not [
        item for item in rendered({"authentication": {"enabled": True}}) if item["metadata"]["name"] == name
    ]
    objects = rendered({"authentication": {"enabled": True, "namespaceView": VIEW}})
    role = find_object(objects, "ClusterRole", name)
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    shares = {"apiGroups": ["kaishare.dev"], "resources": ["shares"], "verbs": ["get"]}
    tokens = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [name], "verbs": ["create"]}  # fmt: skip
    assert role["rules"] == [shares, tokens]
    own = {
        (item["metadata"]["namespace"], item["kind"]): item
        for item in objects
        if item["metadata"]["name"] == name and item["kind"] != "ClusterRole"
    }
    of_teams = {
        (team, kind) for team in ("team-a", "team-b") for kind in ("Role", "RoleBinding", "ServiceAccount")
    }
    assert own.keys() == of_teams | {(AGENT_NAMESPACE, "Role"), (AGENT_NAMESPACE, "RoleBinding")}
    assert own["team-a", "Role"]["rules"] == [shares]
    account = {"kind": "ServiceAccount", "name": name, "namespace": "team-a"}
    assert own["team-a", "RoleBinding"]["subjects"] == [account]
    way = own[AGENT_NAMESPACE, "Role"]["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in way] == [
        (["pods"], ["list"]),
        (["pods/proxy"], ["get"]),
    ]
