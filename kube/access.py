"""How to reach an API server, and as whom: from inside a cluster, or by a kubeconfig."""

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
    """There is no way to an API server; the message is one line that says what is missing."""


@dataclass(frozen=True, slots=True)
class Route:
    """What to know to get to a server that its address does not say."""

    proxy: str | None = None
    """Its URL."""
    server_hostname: str | None = None
    """The name on the server's certificate."""


class Access(Protocol):
    """An API server's address, and the credentials for it."""

    @property
    def server(self) -> str:
        """`https://host:port`, without a slash at the end."""

    @property
    def namespace(self) -> str:
        """The caller's own namespace."""

    @property
    def route(self) -> Route:
        """How to get there."""

    def trust(self) -> ssl.SSLContext:
        """Return the context for connections that are made now: CA and client certificate.

        Raises:
            AccessError: there is none.
        """

    async def headers(self, *, renewed: bool = False) -> Mapping[str, str]:
        """Return the headers that say who asks.

        Args:
            renewed: the server refused the last ones: read or fetch them anew.

        Raises:
            AccessError: there are none.
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
            AccessError: the file that says so is gone.
        """
        return _read(self._namespace_file)

    @property
    def route(self) -> Route:
        """Straight."""
        return Route()

    def trust(self) -> ssl.SSLContext:
        """Return a context that trusts the cluster's CA as its file is now.

        Raises:
            AccessError: the file changed, and holds none; said once, then the last good one counts again.
        """
        if self._ca.changed():
            self._trust = _trust_of(str(self._ca_file))
        return self._trust

    async def headers(self, *, renewed: bool = False) -> Mapping[str, str]:
        """Return the token, read again every 10 s: the kubelet replaces it long before it ends.

        Raises:
            AccessError: the server refused the last one, and the file holds no other.
        """
        if renewed or self._clock() - self._read_at >= _LOOK_EVERY_SECONDS:
            self._read_at = self._clock()
            try:
                self._token = _read(self._token_file)
            except AccessError:
                if renewed:  # else the one at hand counts until the server says no
                    raise
        return {"Authorization": f"Bearer {self._token}"}


class KubeConfig:
    """A kubeconfig's current context, read by kubernetes-asyncio: it knows every log-in plugin."""

    def __init__(self, path: str, configuration: Any, *, context: str | None = None) -> None:
        self._path = path
        self._context = context
        self._configuration = configuration
        self._trust = _trust_of_configuration(path, configuration)

    @classmethod
    async def load(cls, path: str | None = None, context: str | None = None) -> "KubeConfig":
        """Read a kubeconfig; without a path those of `$KUBECONFIG`, else `~/.kube/config`.

        The context is the current one if none is named.

        A log-in plugin has all the time it wants, as with kubectl: it may be waiting for a person.

        Raises:
            AccessError: it cannot be read, or its log-in fails.
        """
        where = path or os.environ.get("KUBECONFIG") or "~/.kube/config"
        return cls(where, await _load_configuration(where, context), context=context)

    @property
    def server(self) -> str:
        """The cluster's address."""
        return str(self._configuration.host).rstrip("/")

    @property
    def namespace(self) -> str:
        """Always `default`: a person names the namespace that is meant."""
        return "default"

    @property
    def route(self) -> Route:
        """The cluster's `proxy-url` and `tls-server-name`."""
        found = self._configuration
        return Route(proxy=found.proxy or None, server_hostname=found.tls_server_name or None)

    def trust(self) -> ssl.SSLContext:
        """Return a context with the kubeconfig's CA and client certificate."""
        return self._trust

    async def headers(self, *, renewed: bool = False) -> Mapping[str, str]:
        """Return the token, fetched anew where the server refused it; none for a client certificate.

        Raises:
            AccessError: the kubeconfig is gone, or its log-in fails.
        """
        if renewed:
            self._configuration = await _load_configuration(self._path, self._context)
            self._trust = _trust_of_configuration(self._path, self._configuration)
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        return {"Authorization": token.strip()} if token else {}


async def find_access(kubeconfig: str | None = None, context: str | None = None) -> Access:
    """Find the way to an API server: a kubeconfig that is named, the service account, else `$KUBECONFIG`.

    Who names a context means a kubeconfig.

    Raises:
        AccessError: there is none.
    """
    if kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return InCluster()
    return await KubeConfig.load(kubeconfig, context)


def _exists(paths: str) -> bool:
    try:
        return any(path and Path(path).expanduser().exists() for path in paths.split(os.pathsep))
    except RuntimeError:  # nobody in particular, as in an image, has no home
        return False


async def _load_configuration(where: str, context: str | None) -> Any:
    if not _exists(where):
        raise AccessError(f"{where}: no such kubeconfig")
    # Imported here: 66 MiB and a third of a second, which a service in a cluster never pays.
    from kubernetes_asyncio import client, config  # noqa: PLC0415

    logging.getLogger("kubernetes_asyncio.config").setLevel(logging.CRITICAL)  # it also raises what it logs
    configuration = client.Configuration()
    try:
        # Persisting would write to a person's file (and 36.1 fails at it with a TypeError).
        loader = await config.load_kube_config(
            config_file=where, context=context, client_configuration=configuration, persist_config=False
        )
    except Exception as error:  # noqa: BLE001 - its parser and its plugins fail with whatever they meet
        is_ours = isinstance(error, TypeError | AttributeError | KeyError | IndexError)  # of another shape
        problem = "no kubeconfig" if is_ours else one_line(str(error)) or "something is missing in it"
        raise AccessError(f"{where}: {problem}") from None
    if not hasattr(loader, "host"):
        raise AccessError(f"{where}: the cluster of the context has no server")
    return configuration


def _trust_of_configuration(where: str, found: Any) -> ssl.SSLContext:
    context = _trust_of(found.ssl_ca_cert or None, where)
    if not found.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if found.cert_file:
        try:
            context.load_cert_chain(found.cert_file, found.key_file)
        except OSError as error:
            raise AccessError(f"{where}: client certificate: {error.strerror or error}") from None
    return context


def _trust_of(ca_file: str | None, where: str = "") -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise AccessError(f"{where or ca_file}: CA certificate: {error.strerror or error}") from None
    # Python 3.13 asks for more than client-go does, and not every cluster's CA has it.
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
