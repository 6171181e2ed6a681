"""Address and credentials of an API server, from a pod's service account or from a kubeconfig."""

import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from service.file_watch import FileWatch
from service.text import one_line

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOOK_EVERY_SECONDS: Final = 10.0


class AccessError(ValueError):
    """No access to an API server is configured; the message is one line that says what is missing."""


@dataclass(frozen=True, slots=True)
class Route:
    """Connection settings in addition to the server's address."""

    proxy: str | None = None
    """URL of the proxy."""
    server_hostname: str | None = None
    """The expected name on the server's certificate."""


class Access(Protocol):
    """An API server's address and the caller's credentials."""

    @property
    def server(self) -> str:
        """`https://host:port`, without a slash at the end."""

    @property
    def namespace(self) -> str:
        """The caller's own namespace."""

    @property
    def route(self) -> Route:
        """Proxy and certificate name."""

    def trust(self) -> ssl.SSLContext:
        """Return the TLS context for new connections, with CA and client certificate.

        Raises:
            AccessError: a certificate cannot be read.
        """

    async def headers(self, *, renewed: bool = False) -> Mapping[str, str]:
        """Return the headers that authenticate the caller.

        Args:
            renewed: whether to read the credentials again, because the server refused the last ones.

        Raises:
            AccessError: there are no credentials.
        """


class InCluster:
    """Access by a pod's service account. Token and CA are reloaded when their files change."""

    def __init__(
        self,
        *,
        folder: Path = SERVICE_ACCOUNT,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the service account.

        Raises:
            AccessError: the process does not run in a pod, or the pod has no service account.
        """
        host, port = (environment.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
        if not host or not port:
            raise AccessError("not in a cluster: KUBERNETES_SERVICE_HOST and _PORT are not set")
        self._server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._token_file, self._ca_file = folder / "token", folder / "ca.crt"
        self._namespace_file = folder / "namespace"
        self._clock = clock
        self._token = _read(self._token_file)
        self._read_at = clock()
        self._ca = FileWatch(self._ca_file)
        self._trust = _trust_of(str(self._ca_file))

    @property
    def server(self) -> str:
        """`https://host:port`."""
        return self._server

    @property
    def namespace(self) -> str:
        """The pod's namespace.

        Raises:
            AccessError: the namespace file is missing.
        """
        return _read(self._namespace_file)

    @property
    def route(self) -> Route:
        """A direct connection."""
        return Route()

    def trust(self) -> ssl.SSLContext:
        """Return a TLS context that trusts the CA in the current file.

        Raises:
            AccessError: the file has changed and contains no CA. Raised once; then the last valid CA is used.
        """
        if self._ca.changed():
            self._trust = _trust_of(str(self._ca_file))
        return self._trust

    async def headers(self, *, renewed: bool = False) -> Mapping[str, str]:
        """Return the token, which is read again every 10 s. The kubelet replaces it long before it expires.

        Raises:
            AccessError: the server refused the last token, and the file cannot be read.
        """
        if renewed or self._clock() - self._read_at >= _LOOK_EVERY_SECONDS:
            self._read_at = self._clock()
            try:
                self._token = _read(self._token_file)
            except AccessError:
                if renewed:  # otherwise the last token is used until the server refuses it
                    raise
        return {"Authorization": f"Bearer {self._token}"}


class KubeConfig:
    """Access by a kubeconfig, read by kubernetes-asyncio, which supports all login plugins."""

    def __init__(self, path: str, configuration: Any, *, context: str | None = None) -> None:
        self._path = path
        self._context = context
        self._configuration = configuration
        self._trust = _trust_of_configuration(path, configuration)

    @classmethod
    async def load(cls, path: str | None = None, context: str | None = None) -> "KubeConfig":
        """Read a kubeconfig.

        A login plugin has no time limit, as with kubectl, because it may wait for a person.

        Args:
            path: the file; None uses `$KUBECONFIG`, else `~/.kube/config`.
            context: name of the context; None uses the current one.

        Raises:
            AccessError: the kubeconfig cannot be read, or its login fails.
        """
        where = path or os.environ.get("KUBECONFIG") or "~/.kube/config"
        return cls(where, await _load_configuration(where, context), context=context)

    @property
    def server(self) -> str:
        """The cluster's address."""
        return str(self._configuration.host).rstrip("/")

    @property
    def namespace(self) -> str:
        """Always `default`, because users name the namespace explicitly."""
        return "default"

    @property
    def route(self) -> Route:
        """The cluster's `proxy-url` and `tls-server-name`."""
        configuration = self._configuration
        return Route(proxy=configuration.proxy or None, server_hostname=configuration.tls_server_name or None)

    def trust(self) -> ssl.SSLContext:
        """Return a TLS context with the kubeconfig's CA and client certificate."""
        return self._trust

    async def headers(self, *, renewed: bool = False) -> Mapping[str, str]:
        """Return the token; empty if a client certificate authenticates the caller.

        Raises:
            AccessError: the kubeconfig is missing, or its login fails.
        """
        if renewed:
            self._configuration = await _load_configuration(self._path, self._context)
            self._trust = _trust_of_configuration(self._path, self._configuration)
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        return {"Authorization": token.strip()} if token else {}


async def find_access(kubeconfig: str | None = None, context: str | None = None) -> Access:
    """Return the access to an API server: the given kubeconfig, the service account, or `$KUBECONFIG`.

    The service account is used only if neither a kubeconfig nor a context is given.

    Raises:
        AccessError: no access is configured.
    """
    if kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return InCluster()
    return await KubeConfig.load(kubeconfig, context)


def _exists(paths: str) -> bool:
    try:
        return any(path and Path(path).expanduser().exists() for path in paths.split(os.pathsep))
    except RuntimeError:  # the user has no home directory, as in a container image
        return False


async def _load_configuration(where: str, context: str | None) -> Any:
    if not _exists(where):
        raise AccessError(f"{where}: no such kubeconfig")
    # Imported here, because it costs 66 MiB and a third of a second, which a service in a cluster saves.
    from kubernetes_asyncio import client, config  # noqa: PLC0415

    logging.getLogger("kubernetes_asyncio.config").setLevel(logging.CRITICAL)  # its errors are raised, too
    configuration = client.Configuration()
    try:
        # Persisting would change the user's file (and fails with a TypeError in 36.1).
        loader = await config.load_kube_config(
            config_file=where,
            context=context or _current_context(where),
            client_configuration=configuration,
            persist_config=False,
        )
    except Exception as error:  # noqa: BLE001 - parser and plugins raise all kinds of errors
        is_structure = isinstance(error, TypeError | AttributeError | KeyError | IndexError)
        problem = "not a kubeconfig" if is_structure else one_line(str(error)) or "incomplete kubeconfig"
        raise AccessError(f"{where}: {problem}") from None
    if not hasattr(loader, "host"):
        raise AccessError(f"{where}: the cluster of the context has no server")
    return configuration


def _current_context(where: str) -> str | None:
    """Return the current context of several kubeconfigs: as for kubectl, that of the first file with one.

    kubernetes-asyncio 36.1 takes the last file's, perhaps that of another cluster. None for a single file.
    """
    import yaml  # noqa: PLC0415 - for a kubeconfig only, as kubernetes-asyncio

    files = [Path(path).expanduser() for path in where.split(os.pathsep) if path]
    if len(files) < 2:
        return None
    for file in files:
        document = yaml.safe_load(file.read_bytes()) if file.exists() else None
        if isinstance(document, dict) and document.get("current-context"):
            return str(document["current-context"])
    return None


def _trust_of_configuration(where: str, configuration: Any) -> ssl.SSLContext:
    context = _trust_of(configuration.ssl_ca_cert or None, where)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.cert_file:
        try:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        except OSError as error:
            raise AccessError(f"{where}: client certificate: {error.strerror or error}") from None
    return context


def _trust_of(ca_file: str | None, where: str = "") -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise AccessError(f"{where or ca_file}: CA certificate: {error.strerror or error}") from None
    # Python 3.13 is stricter than client-go, and not every cluster's CA passes the strict check.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _read(file: Path) -> str:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise AccessError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise AccessError(f"{file}: expected one line of ASCII text, got other bytes") from None
    if not text or not text.isprintable():
        raise AccessError(f"{file}: expected one line of text, got {'several' if text else 'none'}")
    return text
