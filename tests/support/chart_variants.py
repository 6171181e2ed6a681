"""Values of the chart: one service alone, each source of certificates, and a table of installations."""

from typing import Any

from tests.support.helm_chart import EVERYTHING, NAMESPACE

WEBHOOK: dict[str, Any] = {"agent": {"enabled": False}}
AGENT: dict[str, Any] = {"webhook": {"enabled": False}}
CERT_MANAGER: dict[str, Any] = {"webhook": {"certificates": {"mode": "cert-manager"}}}
PEM = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
GIVEN: dict[str, Any] = {"webhook": {"certificates": {"mode": "secret", "caBundle": PEM}}}
ON_THE_NODE: dict[str, Any] = {
    "webhook": {"hostNetwork": True, "port": 9443, "opsPort": 9080, "createNamespace": True}
}
"""The webhook in the network of its node."""
WITH_POLICIES = ("admission policies", "both forms")
"""The variants whose objects need Kubernetes 1.36."""
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
    "admission policies": {"webhook": {"kind": "policy"}},
    "both forms": {"webhook": {"kind": "both"}},
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
            "enabled": True, "action": "warn", "kaiNamespaces": ["kai", "kai-two"], "schedulerName": "kai",
            "preemptibleClasses": ["batch"], "optional": {"maxGraceSeconds": 3600},
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
            "priorityClassName": "system-node-critical", "affinity": {"nodeAffinity": {}},
            "seLinuxOptions": {"type": "spc_t"}, "podAnnotations": {"a": "b"}, "podLabels": {"team": "platform"},
            "serviceAccountAnnotations": {"example.com/role": "reader"}, "logLevel": "warning",
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        },
    },
}  # fmt: skip
