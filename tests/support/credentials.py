"""Credentials for an API server as files: a pod's service account, and a kubeconfig."""

import json
from pathlib import Path


def write_service_account(folder: Path, *, token: str, ca: bytes, namespace: str = "kaishare") -> Path:
    folder.mkdir()
    (folder / "token").write_text(token)
    (folder / "namespace").write_text(namespace)
    (folder / "ca.crt").write_bytes(ca)
    return folder


def write_kubeconfig(path: Path, *, server: str, ca_file: Path, token: str) -> Path:
    """Write a kubeconfig with one context; `server` is a URL."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(ca_file)}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path.write_text(json.dumps(config))
    return path


def in_cluster_environment(port: int) -> dict[str, str]:
    """Return the environment variables with the address of an API server on loopback, as in a pod."""
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
