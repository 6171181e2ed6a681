"""Credentials for an API server as files: a pod's service account, and a kubeconfig."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kube.access import InCluster

ADMIN_TOKEN: Final = "admin-of-this-test"


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


class Reachable:
    """An API server on loopback. Its folder has its CA, and receives the files of its clients."""

    folder: Path
    port: int
    accounts: dict[str, Path]

    @property
    def environment(self) -> dict[str, str]:
        return in_cluster_environment(self.port)

    def account(self, token: str) -> Path:
        """Return the service-account folder of a pod with this token; create it at the first call."""
        if token not in self.accounts:
            folder, ca = self.folder / f"account-{len(self.accounts)}", (self.folder / "ca.crt").read_bytes()
            self.accounts[token] = write_service_account(folder, token=token, ca=ca)
        return self.accounts[token]

    def access(self, token: str = ADMIN_TOKEN) -> InCluster:
        return InCluster(folder=self.account(token), environment=self.environment)

    def kubeconfig(self, token: str = ADMIN_TOKEN, *, server: str = "") -> Path:
        path = self.folder / f"kubeconfig-{len(list(self.folder.glob('kubeconfig-*')))}"
        server = server or f"https://127.0.0.1:{self.port}"
        return write_kubeconfig(path, server=server, ca_file=self.folder / "ca.crt", token=token)
