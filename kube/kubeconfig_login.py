"""The login of a kubeconfig: its credentials as request headers and as a TLS context."""

import base64
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from kube.environment_proxy import environment_proxy
from kube.exec_plugin import run_plugin
from kube.kubeconfig import (
    ClusterEntry,
    ContextEntry,
    KubeconfigEntry,
    SelectedContext,
    UserEntry,
    proxy_url,
    read_kubeconfig,
    server_url,
)
from service.text import one_line, quoted
from service.tls import load_pem

Headers: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values of request headers; a name can occur repeatedly."""

_NAME_CHARACTERS: Final = "!#$&'*+-.^_`|~"
"""Characters of a header's name beside letters and digits (RFC 9110, 5.6.2), without the percent sign."""
_AUTH_PROVIDERS: Final = ("oidc", "gcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Address and credentials of one context."""

    server: str
    context: KubeconfigEntry[ContextEntry]
    proxy: str | None
    server_hostname: str | None
    trust: ssl.SSLContext
    headers: Headers = field(repr=False)
    """Authorization, and the headers of an impersonation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Credentials:
    authorization: str = field(default="", repr=False)
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    key_of_certificate: str = "client-certificate"
    """The key of the kubeconfig from which the certificate came, for messages."""


def client_context(**trusted: Any) -> ssl.SSLContext:
    """Return a client's TLS context; arguments and errors as `ssl.create_default_context`."""
    context = ssl.create_default_context(**trusted)
    # Python 3.13 is stricter than client-go, and not every cluster's CA passes the strict check.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


async def log_in(where: str, context: str | None = None) -> Login:
    """Read a kubeconfig and log in.

    Args:
        where: see `read_kubeconfig`.
        context: see `read_kubeconfig`.

    Raises:
        AccessError: the kubeconfig is incomplete or wrong, or a credential plugin fails.
    """
    selected = read_kubeconfig(where, context)
    cluster, user = selected.cluster, selected.user
    values = cluster.value
    ca = cluster.data(
        "certificate-authority", values.certificate_authority, values.certificate_authority_data
    )
    is_insecure = bool(values.insecure_skip_tls_verify)
    server = server_url(cluster)
    proxy = proxy_url(cluster) or environment_proxy(server)
    impersonation = _impersonation_headers(user)
    trust = _trust(cluster, ca, is_insecure=is_insecure)
    _check_server_name(cluster, trust)
    headers: Headers = ()
    if server.startswith("https:"):  # as kubectl, which sends no credentials without TLS
        credentials = await _credentials(selected, ca)
        _add_certificate(user, trust, credentials)
        authorization = [("Authorization", credentials.authorization)] if credentials.authorization else []
        headers = (*authorization, *impersonation)
    return Login(
        server=server,
        context=selected.context,
        proxy=proxy,
        server_hostname=values.tls_server_name or None,
        trust=trust,
        headers=headers,
    )


async def _credentials(selected: SelectedContext, ca: bytes) -> _Credentials:
    """Return the user's credentials. A token or password takes precedence over plugins, as for client-go.

    Raises:
        AccessError: they are incomplete or contradictory, or a plugin fails.
    """
    user, values = selected.user, selected.user.value
    certificate = user.data("client-certificate", values.client_certificate, values.client_certificate_data)
    key = user.data("client-key", values.client_key, values.client_key_data) if certificate else b""
    if certificate and not key:
        raise user.error("client-key: not set, but client-certificate needs it")
    if values.token and (values.username or values.password):
        raise user.error("token and username are both set; only one is allowed")
    if values.exec and values.auth_provider:
        raise user.error("exec and auth-provider are both set; only one is allowed")
    authorization = _static_authorization(user)
    if not authorization and values.exec is not None:
        status = await run_plugin(user, values.exec, selected.cluster, ca=ca)
        authorization = _bearer(user, "exec: token", status.token or "") if status.token else ""
        if status.client_certificate_data and status.client_key_data:
            return _Credentials(
                authorization=authorization,
                certificate=status.client_certificate_data.encode(errors="replace"),
                key=status.client_key_data.encode(errors="replace"),
                key_of_certificate="exec: clientCertificateData",
            )
    elif not authorization and values.auth_provider is not None:
        authorization = await _provided_token(user, values.auth_provider)
    return _Credentials(authorization=authorization, certificate=certificate, key=key)


def _static_authorization(user: KubeconfigEntry[UserEntry]) -> str:
    """Return the header of a token or a password; empty if the user has none.

    Raises:
        AccessError: the file of the token cannot be read, or no header can carry the token.
    """
    values = user.value
    if values.token_file:
        content = user.read("tokenFile", values.token_file)
        token = content.decode(errors="surrogateescape").strip()
        if not token:
            raise user.error(f"tokenFile: {one_line(values.token_file)}: empty")
        return _bearer(user, f"tokenFile: {one_line(values.token_file)}", token)
    if values.token:
        return _bearer(user, "token", values.token)
    if values.username or values.password:
        pair = f"{values.username or ''}:{values.password or ''}"
        return f"Basic {base64.b64encode(pair.encode(errors='replace')).decode()}"
    return ""


def _bearer(user: KubeconfigEntry[UserEntry], where: str, token: str) -> str:
    """Return the header of a token.

    Raises:
        AccessError: no header can carry the token; the message does not contain it.
    """
    lines = len(token.splitlines())
    if lines > 1:
        raise user.error(f"{where}: a token has one line, got {lines} lines")
    if not token.isascii() or not _is_header_value(token):
        raise user.error(f"{where}: a line break or another character that is not allowed in a token")
    return f"Bearer {token}"


async def _provided_token(user: KubeconfigEntry[UserEntry], provider: Mapping[str, Any]) -> str:
    """Return the header of an `auth-provider`, whose token kubernetes-asyncio reads and renews.

    Raises:
        AccessError: the provider is unknown, incomplete, or issues no usable token; or kubernetes-asyncio is
            not installed, as in the images.
    """
    name = provider.get("name")
    if name not in _AUTH_PROVIDERS:
        raise user.error(f"auth-provider: {quoted(name or '')} is unknown; allowed: oidc and gcp")
    # Imported here, because it costs 66 MiB and a third of a second, which other users save.
    try:
        from kubernetes_asyncio import client, config  # noqa: PLC0415
    except ImportError:
        raise user.error(f"auth-provider: {name} needs the package kubernetes-asyncio") from None

    logging.getLogger("kubernetes_asyncio.config").setLevel(logging.CRITICAL)  # its errors are raised, too
    configuration = client.Configuration()
    document = {
        "clusters": [{"name": "only", "cluster": {"server": "http://localhost"}}],
        "users": [{"name": "only", "user": {"auth-provider": provider}}],
        "contexts": [{"name": "only", "context": {"cluster": "only", "user": "only"}}],
    }
    where = f"auth-provider: {name}"
    try:
        await config.load_kube_config_from_dict(document, context="only", client_configuration=configuration)
    except Exception as error:  # noqa: BLE001 - the providers raise all kinds of errors
        is_structure = isinstance(error, TypeError | AttributeError | KeyError | IndexError | ValueError)
        problem = "incomplete or invalid" if is_structure else one_line(str(error)) or "no login"
        raise user.error(f"{where}: {problem}") from None
    token = str(configuration.api_key.get("BearerToken", "")).removeprefix("Bearer ")
    if not token:
        raise user.error(f"{where}: no token")
    return _bearer(user, where, token)


def _trust(cluster: KubeconfigEntry[ClusterEntry], ca: bytes, *, is_insecure: bool) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificate authority; the system's ones if it is empty.

    Raises:
        AccessError: the certificate authority is not PEM, or is set although nothing is verified.
    """
    if ca and is_insecure:
        raise cluster.error(
            "certificate-authority and insecure-skip-tls-verify are both set; only one is allowed"
        )
    try:
        context = client_context(cadata=ca.decode("ascii", errors="replace") or None)
    except (OSError, ValueError):
        raise cluster.error("certificate-authority: CA certificate: no certificate in PEM") from None
    if is_insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _check_server_name(cluster: KubeconfigEntry[ClusterEntry], context: ssl.SSLContext) -> None:
    """Raise if Python's TLS cannot use `tls-server-name`, which would end each connection otherwise.

    Raises:
        AccessError: the name is no host name.
    """
    name = cluster.value.tls_server_name
    try:
        if name:
            context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=name)
    except (ValueError, TypeError, ssl.SSLError):
        raise cluster.error(f"tls-server-name: {quoted(name)} is not a host name") from None


def _add_certificate(
    user: KubeconfigEntry[UserEntry], context: ssl.SSLContext, credentials: _Credentials
) -> None:
    """Load the client certificate into the TLS context.

    Raises:
        AccessError: certificate and key are not PEM, do not match, or the key has a pass phrase.
    """
    if not credentials.certificate:
        return
    try:
        load_pem(context, credentials.certificate, credentials.key)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or "not PEM"
        problem = one_line(str(reason)).lower().replace("_", " ")
        raise user.error(f"{credentials.key_of_certificate}: client certificate: {problem}") from None


def _is_header_value(text: str) -> bool:
    """Whether a header can carry the text: no control characters but tabs, and no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return all(char == "\t" or (char >= " " and char != "\x7f") for char in text)


def _impersonation_headers(user: KubeconfigEntry[UserEntry]) -> list[tuple[str, str]]:
    """Return the headers of an impersonation, one for each group and each extra value; empty for none.

    The form is that of client-go (transport/round_trippers.go, NewImpersonatingRoundTripper).

    Raises:
        AccessError: `as` is missing, or no header can carry a value.
    """
    values = user.value
    if not values.as_user:
        if values.as_uid or values.as_groups or values.as_user_extra:
            raise user.error("as-uid, as-groups and as-user-extra need as, the user to impersonate")
        return []
    headers = [("as", "Impersonate-User", values.as_user)]
    if values.as_uid:
        headers.append(("as-uid", "Impersonate-Uid", values.as_uid))
    headers += [("as-groups", "Impersonate-Group", group or "") for group in values.as_groups or ()]
    headers += [
        ("as-user-extra", f"Impersonate-Extra-{_escaped(name)}", value or "")
        for name, extra in (values.as_user_extra or {}).items()
        for value in extra or ()
    ]
    for key, _, value in headers:
        if not _is_header_value(value):
            raise user.error(f"{key}: a line break or another character that no header can carry")
        if value != value.strip(" \t"):  # HTTP/1.1 drops them, and the API server would see another user
            raise user.error(f"{key}: a blank at the beginning or end of a value")
    return [(header, value) for _, header, value in headers]


def _escaped(name: str) -> str:
    """Return a key of `as-user-extra` as part of a header's name: percent-encoded and in lower case."""
    return quote(name, safe=_NAME_CHARACTERS, errors="replace").lower()
