"""What is left of a pod that came back, without the API server's own defaults."""

import copy
from typing import Any

import pytest

from console.explain.api_defaults import without_defaults

Json = dict[str, Any]
IMAGE = "example.invalid/image"
TOKEN = "kube-api-access-cffd5"


def sent_pod(*, container: Json | None = None, **spec: Any) -> Json:
    """Return a pod as its author writes it."""
    main = {"name": "main", "image": IMAGE, **(container or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"containers": [main], **spec},
    }


def completed(pod: Json) -> Json:
    """Return a pod as Kubernetes 1.36.3 completes it, with all plugins that are on by default."""
    stored = copy.deepcopy(pod)
    stored["metadata"] |= {
        "uid": "46d2dd17",
        "generation": 1,
        "creationTimestamp": "2026-11-23T14:51:39Z",
        "managedFields": [{}],
    }
    spec = stored["spec"]
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        mount = {
            "name": TOKEN,
            "readOnly": True,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        }
        container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
        container.setdefault("resources", {})
        container |= {
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        }
        container.setdefault("imagePullPolicy", "Always")
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    spec["volumes"] = [
        *spec.get("volumes", ()),
        {"name": TOKEN, "projected": {"sources": [token], "defaultMode": 420}},
    ]
    usual = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    spec["tolerations"] = [
        *spec.get("tolerations", ()),
        {"key": "node.kubernetes.io/not-ready", **usual},
        {"key": "node.kubernetes.io/unreachable", **usual},
    ]
    defaults = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    stored["spec"] = defaults | spec
    stored["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
    return stored


def with_container(pod: Json, **fields: Any) -> Json:
    """Return a pod with further fields in its first container."""
    changed = copy.deepcopy(pod)
    changed["spec"]["containers"][0] |= fields
    return changed


PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        pytest.param(sent_pod(), completed(sent_pod()), id="nothing but defaults"),
        pytest.param(sent_pod(nodeSelector={}, affinity=None, hostNetwork=False), completed(sent_pod()), id="empty and zero"),
        pytest.param(
            sent_pod(container={"resources": {"limits": {"cpu": "1000m", "memory": "0.5Gi"}, "requests": {"cpu": 0.5}}}),
            completed(sent_pod(container={"resources": {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "500m", "memory": "512Mi"}}})),
            id="amounts, and requests that equal limits",
        ),
        pytest.param(
            sent_pod(container={"livenessProbe": {"httpGet": {"port": 80}}, "startupProbe": {"grpc": {"port": 5}}}),
            completed(sent_pod(container={"livenessProbe": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, **PROBE}, "startupProbe": {"grpc": {"port": 5, "service": ""}, **PROBE}})),
            id="probes",
        ),
        pytest.param(
            sent_pod(container={"ports": [{"containerPort": 80}, {"containerPort": 81}]}, hostNetwork=True),
            completed(sent_pod(container={"ports": [{"hostPort": 80, "containerPort": 80, "protocol": "TCP"}, {"hostPort": 81, "containerPort": 81, "protocol": "TCP"}]}, hostNetwork=True)),
            id="ports of the host",
        ),
        pytest.param(
            sent_pod(container={"env": [{"name": "A", "value": ""}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}),
            completed(sent_pod(container={"env": [{"name": "A"}, {"name": "B", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "x"}}}]})),
            id="variables",
        ),
        pytest.param(
            sent_pod(volumes=[{"name": "a", "configMap": {"name": "c"}}, {"name": "b"}, {"name": "c", "hostPath": {"path": "/"}}]),
            completed(sent_pod(volumes=[{"name": "a", "configMap": {"name": "c", "defaultMode": 420}}, {"name": "b", "emptyDir": {}}, {"name": "c", "hostPath": {"path": "/", "type": ""}}])),
            id="volumes",
        ),
        pytest.param(
            sent_pod(container={"image": "host:5000/a@sha256:ab"}), completed(sent_pod(container={"image": "host:5000/a@sha256:ab", "imagePullPolicy": "IfNotPresent"})), id="a digest"
        ),
        pytest.param(sent_pod(container={"image": "a:1"}), completed(sent_pod(container={"image": "a:1", "imagePullPolicy": "IfNotPresent"})), id="a tag"),
        pytest.param(sent_pod(), with_container(completed(sent_pod()), resizePolicy=[{"resourceName": "cpu", "restartPolicy": "NotRequired"}]), id="resizing"),
        pytest.param(sent_pod(serviceAccountName="a"), completed(sent_pod(serviceAccountName="a")) | {}, id="account"),
    ],
)  # fmt: skip
def test_defaults_are_no_changes(sent: Json, stored: Json) -> None:
    before, after = without_defaults(sent, stored)
    assert before == after
    assert list(before["spec"]) == list(after["spec"])


SIDECAR = {"name": "sidecar", "image": "a:1", "resources": {}, "imagePullPolicy": "IfNotPresent"}


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ({"runtimeClassName": "nvidia"}, ("runtimeClassName",), "nvidia"),
        ({"nodeSelector": {"a": "b"}}, ("nodeSelector",), {"a": "b"}),
        ({"schedulingGates": [{"name": "g"}]}, ("schedulingGates",), [{"name": "g"}]),
        ({"priorityClassName": "train", "priority": 7}, ("priorityClassName",), "train"),
        ({"imagePullSecrets": [{"name": "s"}]}, ("imagePullSecrets",), [{"name": "s"}]),
        ({"schedulerName": "kai-scheduler"}, ("schedulerName",), "kai-scheduler"),
        ({"serviceAccountName": "other", "serviceAccount": "other"}, ("serviceAccountName",), "other"),
        ({"enableServiceLinks": False}, ("enableServiceLinks",), False),
        ({"automountServiceAccountToken": False}, ("automountServiceAccountToken",), False),
        ({"terminationGracePeriodSeconds": 31}, ("terminationGracePeriodSeconds",), 31),
        ({"dnsPolicy": "Default"}, ("dnsPolicy",), "Default"),
        ({"overhead": {"cpu": "250m"}}, ("overhead",), {"cpu": "250m"}),
        ({"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}, ("tolerations",), [{"key": "nvidia.com/gpu", "operator": "Exists"}]),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, ("volumes",), [{"name": "v", "emptyDir": {}}]),
        ({"initContainers": [SIDECAR]}, ("initContainers",), [{"name": "sidecar", "image": "a:1"}]),
        ({"container": {"image": "mirror.invalid/image"}}, ("containers", 0, "image"), "mirror.invalid/image"),
        ({"container": {"imagePullPolicy": "Never"}}, ("containers", 0, "imagePullPolicy"), "Never"),
        ({"container": {"env": [{"name": "A", "value": "1"}]}}, ("containers", 0, "env"), [{"name": "A", "value": "1"}]),
        ({"container": {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}}, ("containers", 0, "resources"), {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}),
        ({"container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}}, ("containers", 0, "volumeMounts"), [{"name": "v", "mountPath": "/v"}]),
        ({"container": {"securityContext": {"runAsUser": 0}}}, ("containers", 0, "securityContext"), {"runAsUser": 0}),
    ],
)  # fmt: skip
def test_changes_stay_visible(change: Json, path: tuple[str | int, ...], value: Any) -> None:
    before, after = without_defaults(sent_pod(), completed(sent_pod(**change)))
    assert before != after
    node: Any = after["spec"]
    for key in path:
        node = node[key]
    assert node == value
    assert before == without_defaults(sent_pod(), completed(sent_pod()))[0]


@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_labels_and_annotations_stay_visible(part: str) -> None:
    stored = completed(sent_pod())
    stored["metadata"][part] = {"a": "b"}
    before, after = without_defaults(sent_pod(), stored)
    assert after["metadata"] == before["metadata"] | {part: {"a": "b"}}


def test_a_removed_field_stays_visible() -> None:
    sent = sent_pod(container={"resources": {"limits": {"nvidia.com/gpu": 1}}})
    before, after = without_defaults(sent, completed(sent_pod()))
    assert before["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert after["spec"]["containers"][0]["resources"] == {}


def test_containers_are_compared_by_name() -> None:
    sent = sent_pod()
    stored = completed(sent_pod())
    stored["spec"]["containers"].insert(0, SIDECAR)
    before, after = without_defaults(sent, stored)
    assert after["spec"]["containers"] == [{"name": "sidecar", "image": "a:1"}, *before["spec"]["containers"]]


def test_a_volume_that_only_has_the_name_of_a_token_stays_visible() -> None:
    stored = completed(sent_pod())
    stored["spec"]["volumes"].append({"name": "kube-api-access-other", "hostPath": {"path": "/"}})
    assert without_defaults(sent_pod(), stored)[1]["spec"]["volumes"] == [
        {"name": "kube-api-access-other", "hostPath": {"path": "/"}}
    ]


def test_a_generated_name_is_no_change() -> None:
    sent = sent_pod()
    sent["metadata"] = {"generateName": "web-", "namespace": "team"}
    stored = completed(sent)
    stored["metadata"]["name"] = "web-x7d2k"
    before, after = without_defaults(sent, stored)
    assert before == after
    assert after["metadata"] == {"generateName": "web-"}
