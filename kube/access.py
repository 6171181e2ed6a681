"""How to reach an API server, and as whom: from inside a cluster, or by a kubeconfig."""

import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from service.watching import Watched

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOOK_EVERY_SECONDS: Final = 10.0


class AccessError(ValueError):
    """There is no way to an API server; the message is one line that says what is missing."""


class Access(Protocol):
    """An API server's address, and the credentials for it."""

    @property
    def server(self) -> str:
        """`https://host:port`, without a slash at the end."""

    @property
    def namespace(self) -> str:
        """The caller's own namespace."""

    def trust(self) -> ssl.SSLContext:
        """Return the context for connections that are made now: CA and client certificate."""

    async def headers(self, *, renewed: bool = False) -> Mapping[str, str]:
        """Return the headers that say who asks.

        Args:
            renewed: the server refused the last ones: read or fetch them anew.
        """


class InCluster:
    """The service account of a pod. Token and CA are read again when their files change."""

    def __init__(
        self,
        *,
        folder: Path = SERVICE_ACCOUNT,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the service account.

        Raises:
            AccessError: this is no pod, or it has no service account.
        """
        host, port = (environment.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
        if not host or not port:
            raise AccessError("not in a cluster: KUBERNETES_SERVICE_HOST and _PORT are not set")
        self._server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._token_file, self._ca_file = folder / "token", folder / "ca.crt"
        self._namespace_file = folder / "namespace"
        self._clock = clock
        self._token = self._read(self._token_file)
        self._read_at = clock()
        self._ca = Watched(self._ca_file)
        self._trust = self._load_trust()

    @property
    def server(self) -> str:
        """`https://host:port`."""
        return self._server

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self._read(self._namespace_file)

    def trust(self) -> ssl.SSLContext:
        """Return a context that trusts the cluster's CA as its file is now."""
        if self._ca.changed():
            self._trust = self._load_trust()
        return self._trust

    async def headers(self, *, renewed: bool = False) -> Mapping[str, str]:
        """Return the token, read again every 10 s: the kubelet replaces it long before it ends.

        Raises:
            AccessError: the file is gone.
        """
        if renewed or self._clock() - self._read_at >= _LOOK_EVERY_SECONDS:
            self._token = self._read(self._token_file)
            self._read_at = self._clock()
        return {"Authorization": f"Bearer {self._token}"}

    def _load_trust(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise AccessError(f"{self._ca_file}: {error.strerror or error}") from None

    @staticmethod
    def _read(file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise AccessError(f"{file}: {error.strerror}") from None


class KubeConfig:
    """A kubeconfig's current context, read by kubernetes-asyncio: it knows every log-in plugin."""

    def __init__(self, configuration: Any) -> None:
        self._configuration = configuration
        self._trust = self._load_trust()

    @classmethod
    async def load(cls, path: str | None = None) -> "KubeConfig":
        """Read a kubeconfig; without a path `$KUBECONFIG`, else `~/.kube/config`.

        Raises:
            AccessError: it cannot be read, or its log-in fails.
        """
        # Imported here: 66 MiB and a third of a second, which a service in a cluster never pays.
        from kubernetes_asyncio import client, config  # noqa: PLC0415

        configuration = client.Configuration()
        where = path or os.environ.get("KUBECONFIG") or "~/.kube/config"
        try:
            await config.load_kube_config(config_file=path, client_configuration=configuration)
            return cls(configuration)
        except (config.ConfigException, OSError, ValueError, TypeError, KeyError) as error:
            raise AccessError(f"{where}: {' '.join(str(error).split())}") from None

    @property
    def server(self) -> str:
        """The cluster's address."""
        return str(self._configuration.host).rstrip("/")

    @property
    def namespace(self) -> str:
        """Always `default`: a person names the namespace he means."""
        return "default"

    def trust(self) -> ssl.SSLContext:
        """Return a context with the kubeconfig's CA and client certificate."""
        return self._trust

    async def headers(self, *, renewed: bool = False) -> Mapping[str, str]:  # noqa: ARG002 - plugins know
        """Return the token, renewed by its plugin where it must be; none for a client certificate."""
        hook = self._configuration.refresh_api_key_hook
        if hook is not None:
            await hook(self._configuration)
        token = self._configuration.get_api_key_with_prefix("BearerToken")
        return {"Authorization": token} if token else {}

    def _load_trust(self) -> ssl.SSLContext:
        found = self._configuration
        context = ssl.create_default_context(cafile=found.ssl_ca_cert or None)
        if not found.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if found.cert_file:
            context.load_cert_chain(found.cert_file, found.key_file)
        return context


async def find_access(kubeconfig: str | None = None) -> Access:
    """Find the way to an API server: a kubeconfig that is named, the service account, else `$KUBECONFIG`.

    Raises:
        AccessError: there is none.
    """
    if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return InCluster()
    return await KubeConfig.load(kubeconfig)
