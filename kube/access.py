"""Address and credentials of an API server: what each access has, and that of a pod's service account."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from kube.answers import AccessError as AccessError  # noqa: PLC0414 - read from here, too
from service.file_watch import FileWatch
from service.http.tls_files import client_context

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Headers: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values of request headers; a name can occur repeatedly."""


@dataclass(frozen=True, slots=True)
class Route:
    """Connection settings in addition to the server's address."""

    proxy: str | None = None  # URL
    server_hostname: str | None = None  # the expected name on the server's certificate
    withheld: str = ""  # which credentials the caller has but does not send, and why, as a clause
    login: str = ""  # what a person does after a 401, as a clause


class Access:
    """A server's address and TLS context: without credentials and proxy, which subclasses have.

    Each method may raise AccessError.
    """

    route = Route()

    def __init__(self, server: str, context: ssl.SSLContext) -> None:
        """Set the address, without a slash at the end, and the context of all connections."""
        self.server, self._context = server, context

    @property
    def namespace(self) -> str:
        """The caller's own namespace."""
        return ""

    def trust(self) -> ssl.SSLContext:
        """Return the TLS context for new connections, with CA and client certificate."""
        return self._context

    async def headers(self, *, refused: Headers | None = None) -> Headers:  # noqa: ARG002
        """Return the headers that authenticate the caller; read them again if the server `refused` some."""
        return ()


class InCluster(Access):
    """Access by a pod's service account. Token and CA are reloaded when their files change."""

    def __init__(
        self,
        *,
        folder: Path = SERVICE_ACCOUNT,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Read the service account; AccessError if there is none, as outside a pod."""
        host, port = (environment.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
        if not host or not port:
            raise AccessError("not in a cluster: KUBERNETES_SERVICE_HOST and _PORT are not set")
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._folder = folder
        self._token = _read(folder / "token")
        self._ca = FileWatch(folder / "ca.crt")
        self._is_ca_unread = False  # whether the current content of the CA's file could not be loaded
        super().__init__(server, _trust_of(folder / "ca.crt"))

    @property
    def namespace(self) -> str:
        """The pod's namespace; raises AccessError if its file is missing."""
        return _read(self._folder / "namespace")

    def trust(self) -> ssl.SSLContext:
        """Return a TLS context that trusts the CA in the current file.

        AccessError once for a change to no readable CA; then the last one is used, and each call tries again.
        """
        has_changed = self._ca.changed()
        if has_changed or self._is_ca_unread:
            self._is_ca_unread = True
            try:
                self._context = _trust_of(self._folder / "ca.crt")
                self._is_ca_unread = False
            except AccessError:
                if has_changed:
                    raise
        return self._context

    async def headers(self, *, refused: Headers | None = None) -> Headers:
        """Return the token in the file, which the kubelet replaces long before a token expires.

        AccessError if the server refused the last token, and the file cannot be read.
        """
        try:
            self._token = _read(self._folder / "token")
        except AccessError:
            if refused is not None:  # otherwise the last token is used until the server refuses it
                raise
        return (("Authorization", f"Bearer {self._token}"),)


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
