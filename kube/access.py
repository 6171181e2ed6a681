"""Address and credentials of an API server, from a pod's service account or from a kubeconfig."""

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from kube.answers import AccessError
from service.file_watch import FileWatch

if TYPE_CHECKING:
    from kube.kubeconfig_login import Login

__all__ = [
    "Access",
    "AccessError",
    "InCluster",
    "KubeConfig",
    "LimitedAccess",
    "RequestLimitReached",
    "Route",
    "find_access",
]

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOOK_EVERY_SECONDS: Final = 10.0

Headers: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values of request headers; a name can occur repeatedly."""


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

    async def headers(self, *, refused: Headers | None = None) -> Headers:
        """Return the headers that authenticate the caller.

        Args:
            refused: headers that the server refused, to read the credentials again; None for none.

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
        self.server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self.route = Route()
        self._token_file, self._ca_file = folder / "token", folder / "ca.crt"
        self._namespace_file = folder / "namespace"
        self._clock = clock
        self._token = _read(self._token_file)
        self._read_at = clock()
        self._ca = FileWatch(self._ca_file)
        self._is_ca_unread = False
        """Whether the current content of the CA's file could not be loaded."""
        self._trust = _trust_of(self._ca_file)

    @property
    def namespace(self) -> str:
        """The pod's namespace.

        Raises:
            AccessError: the namespace file is missing.
        """
        return _read(self._namespace_file)

    def trust(self) -> ssl.SSLContext:
        """Return a TLS context that trusts the CA in the current file.

        Raises:
            AccessError: the file has changed and cannot be read, or contains no CA. Raised once for a change;
                then the last valid CA is used, and each call tries to read the file again.
        """
        has_changed = self._ca.changed()
        if has_changed or self._is_ca_unread:
            try:
                self._trust = _trust_of(self._ca_file)
                self._is_ca_unread = False
            except AccessError:
                self._is_ca_unread = True
                if has_changed:
                    raise
        return self._trust

    async def headers(self, *, refused: Headers | None = None) -> Headers:
        """Return the token, which is read again every 10 s. The kubelet replaces it long before it expires.

        Raises:
            AccessError: the server refused the last token, and the file cannot be read.
        """
        if refused is not None or self._clock() - self._read_at >= _LOOK_EVERY_SECONDS:
            self._read_at = self._clock()
            try:
                self._token = _read(self._token_file)
            except AccessError:
                if refused is not None:  # otherwise the last token is used until the server refuses it
                    raise
        return (("Authorization", f"Bearer {self._token}"),)


class KubeConfig:
    """Access by a kubeconfig, which is read and used as by kubectl."""

    def __init__(self, where: str, login: "Login", *, context: str | None = None) -> None:
        self._where = where
        self._context = context
        self._login = login
        self._renewal = asyncio.Lock()

    @classmethod
    async def load(cls, path: str | None = None, context: str | None = None) -> "KubeConfig":
        """Read a kubeconfig.

        A credential plugin has no time limit, as with kubectl, because it may wait for a person.

        Args:
            path: the file; None uses `$KUBECONFIG`, else `~/.kube/config`.
            context: name of the context; None uses the current one.

        Raises:
            AccessError: the kubeconfig cannot be read, or its login fails.
        """
        from kube.kubeconfig_login import log_in  # noqa: PLC0415 - a service in a pod needs none of it

        where = path or os.environ.get("KUBECONFIG") or "~/.kube/config"
        return cls(where, await log_in(where, context), context=context)

    @property
    def server(self) -> str:
        """The cluster's address."""
        return self._login.server

    @property
    def namespace(self) -> str:
        """The context's namespace; `default` if it names none.

        Raises:
            AccessError: it is not the name of a namespace.
        """
        from kube.kubeconfig import context_namespace  # noqa: PLC0415

        return context_namespace(self._login.context)

    @property
    def route(self) -> Route:
        """The cluster's `proxy-url`, else the proxy of the environment, and `tls-server-name`."""
        return Route(proxy=self._login.proxy, server_hostname=self._login.server_hostname)

    def trust(self) -> ssl.SSLContext:
        """Return a TLS context with the kubeconfig's CA and client certificate."""
        return self._login.trust

    async def headers(self, *, refused: Headers | None = None) -> Headers:
        """Return the token and the impersonation; no token if a client certificate authenticates the caller.

        Requests that are refused at the same time share one login, which may start a plugin.

        Raises:
            AccessError: the kubeconfig is missing, or its login fails.
        """
        if refused is not None and refused == self._login.headers:
            from kube.kubeconfig_login import log_in  # noqa: PLC0415

            login = self._login
            async with self._renewal:
                if login is self._login:  # otherwise another request has replaced it meanwhile
                    self._login = await log_in(self._where, self._context)
        return self._login.headers


class RequestLimitReached(AccessError):
    """A request was not sent, because the limit of the number of requests is reached."""


class LimitedAccess:
    """Another access, for a limited number of HTTP requests.

    A client takes the headers of its caller once for each HTTP request, so that the pages of a list and the
    repetition after a 401 count, too.
    """

    def __init__(self, access: Access, most: int) -> None:
        self._access = access
        self._most = most
        self.sent = 0
        """Number of HTTP requests so far."""

    @property
    def remaining(self) -> int:
        """Number of requests that can still be sent."""
        return self._most - self.sent

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._access.server

    @property
    def namespace(self) -> str:
        """The caller's own namespace."""
        return self._access.namespace

    @property
    def route(self) -> Route:
        """Proxy and certificate name."""
        return self._access.route

    def trust(self) -> ssl.SSLContext:
        """Return the TLS context; raises as that of the access."""
        return self._access.trust()

    async def headers(self, *, refused: Headers | None = None) -> Headers:
        """Return the headers for one request.

        Raises:
            RequestLimitReached: the number of requests is reached.
            AccessError: there are no credentials.
        """
        if not self.remaining:
            raise RequestLimitReached(f"not requested: the limit of {self._most} requests is reached")
        self.sent += 1
        return await self._access.headers(refused=refused)


async def find_access(kubeconfig: str | None = None, context: str | None = None) -> Access:
    """Return the access to an API server: the given kubeconfig, the service account, or `$KUBECONFIG`.

    The service account is used only if neither a kubeconfig nor a context is given.

    Raises:
        AccessError: no access is configured.
    """
    if kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return InCluster()
    return await KubeConfig.load(kubeconfig, context)


def client_context(**trusted: Any) -> ssl.SSLContext:
    """Return a client's TLS context; arguments and errors as `ssl.create_default_context`."""
    context = ssl.create_default_context(**trusted)
    # Python 3.13 is stricter than client-go, and not every cluster's CA passes the strict check.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _trust_of(ca_file: Path) -> ssl.SSLContext:
    try:
        return client_context(cafile=ca_file)
    except OSError as error:
        raise AccessError(f"{ca_file}: CA certificate: {error.strerror or error}") from None


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
