"""Credentials for an API server as files: a pod's service account, and a kubeconfig."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_service_account(folder: Path, *, token: str, ca: bytes, namespace: str = "kaishare") -> Path:
    folder.mkdir()
    (folder / "token").write_text(token)
    (folder / "namespace").write_text(namespace)
    (folder / "ca.crt").write_bytes(ca)
    return folder


def kubeconfig_of(cluster: Mapping[str, Any], user: Mapping[str, Any], **context: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", **context}}], "current-context": "x",
    }  # fmt: skip


def write_kubeconfig(path: Path, *, server: str, ca_file: Path, token: str) -> Path:
    config = kubeconfig_of({"server": server, "certificate-authority": str(ca_file)}, {"token": token})
    path.write_text(json.dumps(config))
    return path


def in_cluster_environment(port: int) -> dict[str, str]:
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
