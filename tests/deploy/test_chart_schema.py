"""Values that the chart refuses, the schema of its values, and its generated files."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from deploy import render
from gpuagent.actions.eviction_rules import Budget
from gpuagent.ledger.slack import Slack
from gpuagent.serve_options import _duration as agent_duration
from kai.releases import Version
from service.units import parse_duration
from tests.support import yaml_text
from tests.support.chart_variants import PEM
from tests.support.helm_chart import CHART, EVERYTHING, Object, helm, options, rendered
from tests.support.markers import sampled

SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())
ALLOWED_GRACE = "the label kaishare.dev/over-share-grace allows 30s to 24h"


WRONG_READERS: list[Any] = [
    {"kind": "ServiceAccount", "name": "ci"}, {"kind": "Group", "name": "platform", "namespace": "builds"},
    {"kind": "Robot", "name": "platform"}, {"kind": "Group", "name": ""}, {"kind": "Group"}, "system:authenticated",
]  # fmt: skip
"""Subjects that RBAC would refuse or misread."""
BY_THE_SCHEMA: list[tuple[dict[str, Any], str]] = [
    ({"webhok": {}}, "'webhok' not allowed"),
    ({"webhook": {"replica": 3}}, "'replica' not allowed"),
    ({"webhook": {"replicas": 0}}, "/webhook/replicas"),
    ({"webhook": {"replicas": None}}, "at '/webhook': missing property 'replicas'"),
    ({"webhook": {"certificates": {"mode": None}}}, "at '/webhook/certificates': missing property 'mode'"),
    ({"agent": {"image": {"repository": None}}}, "at '/agent/image': missing property 'repository'"),
    ({"guard": {"kaiNamespaces": None}}, "at '/guard': missing property 'kaiNamespaces'"),
    ({"excludedNamespaces": None}, "missing property 'excludedNamespaces'"),
    ({"webhook": {"certificates": {"mode": "none"}}}, "/webhook/certificates/mode"),
    ({"webhook": {"certificates": {"caBundle": "MIIB"}}}, "/webhook/certificates/caBundle"),
    ({"webhook": {"port": 80}}, "/webhook/port"),
    ({"agent": {"gpuAccess": "privileged"}}, "/agent/gpuAccess"),
    ({"agent": {"migMonitor": "all"}}, "/agent/migMonitor"),
    ({"agent": {"migMonitor": True, "gpuAccess": "cdi"}}, "/agent/migMonitor"),
    ({"agent": {"simulated": "cluster"}}, "/agent/simulated"),
    ({"agent": {"interval": "5"}}, "/agent/interval"),
    ({"agent": {"interval": "0s"}}, "/agent/interval"),
    ({"agent": {"grace": "99ms"}}, "/agent/grace"),
    ({"agent": {"graceMin": "0m"}}, "/agent/graceMin"),
    ({"agent": {"runtimeClassName": "a b"}}, "/agent/runtimeClassName"),
    ({"webhook": {"resources": {"limit": {"memory": "1Gi"}}}}, "'limit' not allowed"),
    ({"agent": {"resources": {"limits": {"memory": "512MB"}}}}, "/agent/resources/limits/memory"),
    ({"agent": {"resources": {"requests": {"cpu": {"min": 1}}}}}, "/agent/resources/requests/cpu"),
    ({"webhook": {"extraEnv": [{"name": "PORT", "value": 3128}]}}, "/webhook/extraEnv/0/value"),
    ({"agent": {"extraEnv": [{"name": "DEBUG", "value": True}]}}, "/agent/extraEnv/0/value"),
    ({"agent": {"cdiDevice": "nvidia.com/gpu=all: x"}}, "/agent/cdiDevice"),
    ({"webhook": {"image": {"tag": "1.0 # newest"}}}, "/webhook/image/tag"),
    ({"webhook": {"image": {"repository": "*registry"}}}, "/webhook/image/repository"),
    ({"webhook": {"certificates": {"certManager": {"issuerRef": {"kind": "ClusterIssuer"}}}}}, "/webhook/certificates/certManager/issuerRef': properties 'name' required"),
    ({"agent": {"eviction": {"mode": True}}}, "/agent/eviction/mode"),
    ({"agent": {"eviction": {"mode": "on"}, "gpuSharingMode": ""}}, "/agent/gpuSharingMode"),
    ({"agent": {"cgroupRoot": "sys/fs/cgroup"}}, "/agent/cgroupRoot"),
    ({"agent": {"slack": "5%"}}, "/agent/slack"),
    ({"agent": {"namespace": "Not A Name"}}, "/agent/namespace"),
    ({"agent": {"hostNames": ["agent:9445"]}}, "/agent/hostNames/0"),
    ({"agent": {"hostNames": ["*.example.com"]}}, "/agent/hostNames/0"),
    ({"webhook": {"logLevel": "trace"}}, "/webhook/logLevel"),
    ({"agent": {"logLevel": None}}, "at '/agent': missing property 'logLevel'"),
    ({"webhook": {"podLabels": {"app.kubernetes.io/component": "agent"}}}, "invalid propertyName 'app.kubernetes.io/component'"),
    ({"agent": {"podLabels": {"team": "a b"}}}, "/agent/podLabels/team"),
    ({"agent": {"podAnnotations": {"cdi.k8s.io/kaishare": "nvidia.com/gpu=all"}}}, "invalid propertyName 'cdi.k8s.io/kaishare'"),
    ({"agent": {"extraEnv": [{"name": "NODE_NAME", "value": "another"}]}}, "/agent/extraEnv/0/name"),
    ({"agent": {"extraEnv": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}}, "/agent/extraEnv/0/name"),
    ({"webhook": {"extraVolumes": [{"name": "certs", "emptyDir": {}}]}}, "/webhook/extraVolumes/0/name"),
    ({"webhook": {"extraVolumeMounts": [{"name": "a", "mountPath": "/etc//kaishare/certs"}]}}, "/webhook/extraVolumeMounts/0/mountPath"),
    ({"agent": {"extraVolumeMounts": [{"name": "a", "mountPath": "/proc"}]}}, "/agent/extraVolumeMounts/0/mountPath"),
    ({"networkPolicies": {"apiServerCIDRs": ["10.0.0.10"]}}, "/networkPolicies/apiServerCIDRs/0"),
    ({"imagePullSecrets": [{"nam": "registry"}]}, "/imagePullSecrets/0"),
    ({"agent": {"tlsSecret": "Not A Name"}}, "/agent/tlsSecret"),
    ({"agent": {"fleetUrl": "javascript:alert(1)"}}, "/agent/fleetUrl"),
    ({"agent": {"fleetUrl": "https:///d/nodes"}}, "/agent/fleetUrl"),
    ({"alerts": {"runbooks": "https:///"}}, "/alerts/runbooks"),
    ({"excludedNamespaces": "kube-system"}, "/excludedNamespaces"),
    ({"agent": {"excludedNamespaces": "mps"}}, "/agent/excludedNamespaces"),
    ({"kaiVersion": "latest"}, "/kaiVersion"),
    ({"settings": {"prometheus": "http://me:secret@host"}}, "/settings/prometheus"),
    *(({"webhook": {"defaultMode": mode}}, "'/webhook/defaultMode': value must be one of '', 'default', 'observe', 'off'") for mode in ("enforce", "Observe", False)),
    *(({part: {"readers": [reader]}}, f"/{part}/readers/0") for part in ("settings", "authentication") for reader in WRONG_READERS),
]  # fmt: skip
"""Values, and a part of the error of the schema. helm prints all errors of a run."""
BY_A_CHECK: list[tuple[dict[str, Any], str]] = [
    ({"webhook": {"certificates": {"mode": "secret"}}}, "mode secret needs the CA's PEM certificates"),
    ({"webhook": {"port": 8080}}, "webhook.port and webhook.opsPort are both 8080; they must differ"),
    ({"agent": {"simulated": True, "gpuSharingMode": "HamiCore", "eviction": {"mode": "on"}}}, "agent.simulated=true refuses agent.eviction.mode=on: synthetic figures must not evict pods"),
    ({"agent": {"graceMin": "61m", "graceMax": "1h"}}, "agent.graceMin=61m is longer than agent.graceMax=1h"),
    ({"agent": {"graceMin": "999999999h"}}, "agent.graceMin=999999999h is longer than agent.graceMax=24h"),
    ({"agent": {"graceMin": "29s"}}, f"agent.graceMin=29s has no effect: {ALLOWED_GRACE}"),
    ({"agent": {"graceMax": "25h"}}, f"agent.graceMax=25h has no effect: {ALLOWED_GRACE}"),
    ({"webhook": {"hostNetwork": True, "port": 10250}}, "port 10250 of a node is the kubelet's"),
    ({"authentication": {"enabled": True}, "monitors": {"enabled": True}}, "needs monitors.tokenSecret.name, a Secret with Prometheus' token"),
]  # fmt: skip
"""Combinations of values, and a part of the error. helm ends at the first one."""


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any] | None:
    """Return both values in one; None if both have a value at one place."""
    result = {**values, **more}
    for key in values.keys() & more.keys():
        if not (isinstance(values[key], dict) and isinstance(more[key], dict)):
            return None
        both = merged(values[key], more[key])
        if both is None:
            return None
        result[key] = both
    return result


def batches() -> list[tuple[dict[str, Any], list[str]]]:
    """Return the rows of `BY_THE_SCHEMA` in as few runs of helm as their places allow."""
    runs: list[tuple[dict[str, Any], list[str]]] = []
    for values, problem in BY_THE_SCHEMA:
        for index, (others, problems) in enumerate(runs):
            if (both := merged(others, values)) is not None:
                runs[index] = both, [*problems, problem]
                break
        else:
            runs.append((values, [problem]))
    return runs


@pytest.mark.parametrize(
    ("values", "problems"),
    [*batches(), *((values, [problem]) for values, problem in BY_A_CHECK)],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_invalid_value_is_refused_by_name(values: dict[str, Any], problems: list[str]) -> None:
    done = helm("template", "kaishare", str(CHART), "--kube-version", "1.30.0", *options(values))
    assert done.returncode != 0
    assert [problem for problem in problems if problem not in done.stderr] == [], done.stderr


def refusal(values: dict[str, Any], *served: str, kubernetes: str = "1.30.0") -> str:
    """Return helm's message for values that a cluster with these kinds refuses; empty if it accepts them."""
    kinds = [option for kind in served for option in ("--api-versions", kind)]
    done = helm("template", "kaishare", str(CHART), "--kube-version", kubernetes, *kinds, *options(values))
    assert bool(done.returncode) is bool(done.stderr)
    return done.stderr


def test_an_old_kubernetes_is_refused() -> None:
    assert ">=1.30.0" in refusal({}, kubernetes="1.29.9")


KNOWN = ["v1/Pod", "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration"]
POLICIES = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
MONITORING = "monitoring.coreos.com/v1"
ON = {"enabled": True}


@pytest.mark.parametrize(
    ("values", "served", "kind", "value"),
    [
        ({}, KNOWN, POLICIES, "webhook.certificates.mode=self"),
        ({"webhook": {"enabled": False}, "guard": ON}, KNOWN, POLICIES, "guard.enabled=true"),
        ({"monitors": ON}, [*KNOWN, POLICIES], f"{MONITORING}/PodMonitor", "monitors.enabled=true"),
        ({"alerts": ON}, [*KNOWN, POLICIES], f"{MONITORING}/PrometheusRule", "alerts.enabled=true"),
        ({"webhook": {"certificates": {"mode": "cert-manager"}}}, KNOWN, "cert-manager.io/v1/Certificate", "webhook.certificates.mode=cert-manager"),
    ],
)  # fmt: skip
def test_a_kind_that_the_cluster_does_not_serve_is_refused_in_one_sentence(
    values: dict[str, Any], served: list[str], kind: str, value: str
) -> None:
    problem = f"this cluster (Kubernetes v1.30.0) does not serve {kind}, which {value} needs"
    assert problem in refusal(values, *served)


def test_a_cluster_with_all_kinds_is_accepted_and_so_is_an_unknown_one() -> None:
    values = {"monitors": ON, "alerts": ON}
    assert refusal(values, *KNOWN, POLICIES, f"{MONITORING}/PodMonitor", f"{MONITORING}/PrometheusRule") == ""
    assert refusal(values) == ""


@pytest.mark.parametrize("word", sampled(["0x1f", "007", "null", "yes"], 4))
def test_a_name_that_yaml_reads_as_another_type_stays_a_text(word: str) -> None:
    """A namespace may be named 007, which YAML reads as the number 7."""

    def texts(name: str) -> Any:
        account = {"kind": "ServiceAccount", "name": name, "namespace": name}
        own = {"tlsSecret": name, "priorityClassName": name}
        given = {"mode": "secret", "tlsSecret": name, "caBundle": PEM}
        values: dict[str, Any] = {
            **EVERYTHING,
            "imagePullSecrets": [name, {"name": name}],
            "networkPolicies": {"monitoringNamespace": name},
            "webhook": {
                "opsTlsSecret": name,
                "certificates": given,
                "priorityClassName": name,
                "image": {"repository": name, "tag": name},
            },
            "agent": {**own, "namespace": name, "runtimeClassName": name},
            "authentication": {"enabled": True, "readers": [account]},
            "settings": {"readers": [account]},
            "monitors": {"enabled": True, "tokenSecret": {"name": name, "key": name}},
        }
        certificates = ({"mode": "self", "caSecret": name}, {"mode": "cert-manager", "tlsSecret": name})
        command = ("template", name, str(CHART), "--namespace", name, "--kube-version", "1.30.0")
        return [
            list(yaml_text.load_all(helm(*command, *options(chosen)).stdout))
            for chosen in (values, *({"webhook": {"certificates": mode}} for mode in certificates))
        ]  # fmt: skip

    expected = json.loads(json.dumps(texts("plain-name")).replace("plain-name", word))
    assert with_sorted_texts(texts(word)) == with_sorted_texts(expected)


def with_sorted_texts(value: Any) -> Any:
    """Sort lists of texts, and the namespaces of an option, which the chart sorts."""
    if isinstance(value, dict):
        return {key: with_sorted_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        inner = [with_sorted_texts(item) for item in value]
        return sorted(inner) if all(isinstance(item, str) for item in inner) else inner
    if isinstance(value, str) and value.startswith("--exclude-namespaces="):
        return sorted(re.split("[=,]", value))
    return value


WORDS = [
    "", "0", "5", "5s", "0s", "100ms", "2m", "1h", "1d", "5 s", "-5s", "1.5s", "9999999999s", "1/10m", "1/0m", "0/10m", "1000/10m",
    "01/10m", "1/10", "1 / 10m", "256Mi,5%", "0,0%", "1Gi,0.5%", "256Mi,100%", "256Mi,101%", "256MiB,5%", "5%", "256Mi,5", ",5%",
    "256Mi,5%,", "0.13.0", "v0.13.0", "0.13", "0.13.0-rc1", "0.13.0foo", "0.13.0-", "00.1.2", "0.17.0.1", "latest", "0.1234567.0",
]  # fmt: skip
AGENT = SCHEMA["properties"]["agent"]["properties"]
READ = {
    "kaiVersion": (SCHEMA["properties"]["kaiVersion"], Version.parse),
    "a duration": (SCHEMA["definitions"]["duration"], parse_duration),
    "a duration of the agent": (SCHEMA["definitions"]["agentDuration"], agent_duration),
    "agent.slack": (AGENT["slack"], Slack.parse),
    "agent.eviction.budget": (AGENT["eviction"]["properties"]["budget"], Budget.parse),
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


def resolved(schema: Object) -> Object:
    """Return the schema of a value, or the definition that it refers to."""
    return SCHEMA["definitions"][schema["$ref"].split("/")[-1]] if "$ref" in schema else schema


def every_key(schema: Object, values: Object, path: str = "") -> list[str]:
    """Return the keys that only one of both has."""
    known = schema["properties"]
    odd = [f"{path}.{key}" for key in set(known) ^ set(values) if key != "global"]
    for key in set(known) & set(values):
        inner = resolved(known[key])
        if "properties" in inner and isinstance(values[key], dict) and values[key]:
            odd += every_key(inner, values[key], f"{path}.{key}")
    return odd


def test_the_schema_has_exactly_the_values_of_the_chart() -> None:
    assert every_key(SCHEMA, yaml_text.load((CHART / "values.yaml").read_text())) == []


def optional_values(schema: Object, values: Object, replace: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the values with every value that may be null replaced."""
    optional: dict[str, Any] = {}
    for key, value in values.items():
        inner = resolved(schema["properties"][key])
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
    values = yaml_text.load((CHART / "values.yaml").read_text())
    null, empty = (optional_values(SCHEMA, values, replace) for replace in (lambda _: None, emptied))
    assert (null["agent"]["nodeSelector"], empty["agent"]["runtimeClassName"]) == (None, "")
    parts = {part: {"enabled": True} for part in ("monitors", "alerts", "dashboard", "guard")}
    forms = ({"kind": "policy"}, {"kind": "both"}, {"certificates": {"mode": "cert-manager"}})
    for further in ({}, parts, *({**parts, "webhook": form} for form in forms)):
        for chosen in (null, empty):
            chosen.update({key: {**chosen.get(key, {}), **value} for key, value in further.items()})
        assert without_empty(rendered(null)) == without_empty(rendered(empty))


# What Kubernetes itself explains, and switches named after what they switch.
PLAIN = {
    "apps", "batch",  # API groups
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


def test_the_generated_files_are_up_to_date() -> None:
    assert [str(path.relative_to(render.ROOT)) for path in render.stale()] == []


def leaves(values: Object, path: str = "") -> list[str]:
    """Return the paths of all values that hold no further keys."""
    paths: list[str] = []
    for key, value in values.items():
        whole = f"{path}{key}"
        paths += leaves(value, f"{whole}.") if isinstance(value, dict) and value else [whole]
    return paths


def test_the_charts_readme_has_every_value_with_its_default() -> None:
    values = yaml_text.load((render.CHART / "values.yaml").read_text())
    rows = dict(
        re.findall(r"^\| `([\w./-]+)` \| (`.*?`|) \|", (render.CHART / "README.md").read_text(), re.MULTILINE)
    )
    assert set(leaves(values)) <= set(rows)
    assert (rows["webhook.replicas"], rows["agent.interval"]) == ("`2`", '`"5s"`')
    # A block has a row only for its explanation.
    blocks = [path for path, default in rows.items() if not default]
    assert all(any(other.startswith(f"{path}.") for other in rows) for path in blocks)
