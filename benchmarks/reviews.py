"""AdmissionReviews as an API server sends them: a defaulted pod with managed fields."""

import copy
from typing import Any

import orjson


def _container(name: str, *, gpu: bool) -> dict[str, Any]:
    resources: dict[str, Any] = {
        "limits": {"cpu": "4", "memory": "16Gi"},
        "requests": {"cpu": "2", "memory": "8Gi"},
    }
    if gpu:
        for kind in resources.values():
            kind["nvidia.com/gpu"] = "1"
    return {
        "name": name,
        "image": f"registry.example.invalid/team/{name}:2026.11.21-0123456789abcdef",
        "command": ["/bin/sh", "-c"],
        "args": [f"exec python -m {name}.main --config /etc/{name}/config.yaml --log-format json"],
        "env": [{"name": f"SETTING_{n}", "value": f"value-{n}-of-{name}"} for n in range(8)],
        "resources": resources,
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {
                "name": "kube-api-access-x7k2p",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            },
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
            "periodSeconds": 10,
        },
    }


def pod_review(
    namespace: str = "training", uid: str = "0b9f7e0c-6f0e-4c5a-8f43-2f5d1b1c7f10"
) -> dict[str, Any]:
    """Return a review of about 6 KB: three containers, the first with a whole GPU, owned by a ReplicaSet."""
    labels = {"app": "classify", "pod-template-hash": "7d9c5b8f4", "team": "vision", "tier": "backend"}
    fields = {
        "f:metadata": {
            "f:generateName": {},
            "f:labels": {".": {}, **{f"f:{key}": {} for key in labels}},
            "f:ownerReferences": {".": {}, 'k:{"uid":"8f2b2f52-3f0f-4b51-9a47-6f0c3d0c8f11"}': {}},
        },
        "f:spec": {
            "f:containers": {
                f'k:{{"name":"{name}"}}': {".": {}, "f:image": {}, "f:name": {}, "f:resources": {".": {}}}
                for name in ("server", "sidecar", "exporter")
            },
            "f:dnsPolicy": {},
            "f:restartPolicy": {},
        },
    }
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "generateName": "classify-7d9c5b8f4-",
            "namespace": namespace,
            "labels": labels,
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "classify-7d9c5b8f4",
                    "uid": "8f2b2f52-3f0f-4b51-9a47-6f0c3d0c8f11",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [
                {
                    "manager": "kube-controller-manager",
                    "operation": "Update",
                    "apiVersion": "v1",
                    "time": "2026-11-21T03:00:00Z",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": fields,
                }
            ],
        },
        "spec": {
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {
                    "name": "kube-api-access-x7k2p",
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                            {
                                "configMap": {
                                    "name": "kube-root-ca.crt",
                                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                                }
                            },
                        ],
                        "defaultMode": 420,
                    },
                },
            ],
            "containers": [
                _container(name, gpu=name == "server") for name in ("server", "sidecar", "exporter")
            ],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{state}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for state in ("not-ready", "unreachable")
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    }
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return copy.deepcopy(
        {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": uid,
                "kind": kind,
                "resource": resource,
                "requestKind": kind,
                "requestResource": resource,
                "namespace": namespace,
                "operation": "CREATE",
                "userInfo": {
                    "username": "system:serviceaccount:kube-system:replicaset-controller",
                    "uid": "a2d1a2a6-8c3e-4a0e-9a67-2a3b7b8f6c12",
                    "groups": ["system:serviceaccounts", "system:authenticated"],
                },
                "object": pod,
                "oldObject": None,
                "dryRun": False,
                "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            },
        }
    )


def pod_review_body(namespace: str = "training") -> bytes:
    """Return the review as JSON."""
    return orjson.dumps(pod_review(namespace))
