"""The login of a kubeconfig: headers and TLS from its user entry, a plugin, and the environment's proxy.

`proxy_bypass` of `urllib.request` knows no networks such as `10.0.0.0/8` in `NO_PROXY`, and it lets a proxy
connect to loopback addresses.
"""

import asyncio
import base64
import contextlib
import json
import logging
import os
import ssl
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Final, TextIO
from urllib.parse import SplitResult, quote, urlsplit

import msgspec
from msgspec import Struct

from kube.access import Headers, client_context
from kube.answers import AccessError
from kube.kubeconfig import (
    PROXY_FORMS,
    ClusterEntry,
    ContextEntry,
    ExecEntry,
    KubeconfigEntry,
    SelectedContext,
    UserEntry,
    proxy_problem,
    proxy_url,
    read_kubeconfig,
    server_url,
)
from service.http.tls_files import load_pem
from service.text import ELLIPSIS, LONGEST_LINE, MALFORMED, counted, one_line, quoted

_PORTS: Final = {"http": 80, "https": 443}


def environment_proxy(server: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the URL of `HTTPS_PROXY`, or of `HTTP_PROXY` for a server without TLS; None to connect directly.

    Args:
        server: URL of the server.
        environment: variables; those in upper case precede those in lower case.

    Raises:
        AccessError: the proxy is no URL of an HTTP proxy. The message does not quote it, because the URL can
            contain a password.
    """
    parts = urlsplit(server)
    name = f"{parts.scheme.upper()}_PROXY"
    url = _value(environment, name)
    if not url or _is_exempt(parts, _value(environment, "NO_PROXY")):
        return None
    url = url if "://" in url else f"http://{url}"
    problem = proxy_problem(url)
    if problem:
        raise AccessError(f"{name}: {problem}; {PROXY_FORMS}")
    return url


def _value(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.lower()) or ""


def _is_exempt(server: SplitResult, no_proxy: str) -> bool:
    """Whether a server is on this machine, or an entry of `NO_PROXY` covers it."""
    host, port = server.hostname or "", server.port or _PORTS[server.scheme]
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_covers(entry.strip().lower(), host, address, port) for entry in no_proxy.split(","))


def _covers(entry: str, host: str, address: IPv4Address | IPv6Address | None, port: int) -> bool:
    """Whether an entry of `NO_PROXY` covers a host.

    It is `*`, a network, or an address or a domain with an optional port. `example.com` covers its
    subdomains, too; `.example.com` and `*.example.com` cover only these.
    """
    if entry == "*":
        return True
    if address is not None:
        with contextlib.suppress(ValueError):  # no network
            return address in ip_network(entry, strict=False)
    try:
        parts = urlsplit(f"//{entry}")
        name, only_port = parts.hostname or "", parts.port or port
    except ValueError:
        return False
    if not name or only_port != port:
        return False
    if address is not None:
        return _address(name) == address
    domain = name.removeprefix("*") if name.startswith("*.") else name
    return host.endswith(domain) if domain.startswith(".") else f".{host}".endswith(f".{domain}")


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


_API_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_EXTENSION: Final = "client.authentication.k8s.io/exec"
_MODES: Final = ("Never", "IfAvailable", "Always")
_CHUNK_BYTES: Final = 1 << 16
_MOST_ERRORS: Final = LONGEST_LINE - len(ELLIPSIS)
"""Bytes that are kept of a plugin's standard error: the last ones, which say why it failed."""


class ExecStatus(Struct, frozen=True, rename="camel"):
    """The credentials that a plugin printed."""

    token: str | None = None
    client_certificate_data: str | None = None
    """PEM."""
    client_key_data: str | None = None
    """PEM."""
    expiration_timestamp: datetime | None = None


class _ExecCredential(Struct, frozen=True, rename="camel"):
    api_version: str | None = None
    kind: str | None = None
    status: ExecStatus | None = None


_credential = msgspec.json.Decoder(_ExecCredential)


async def run_plugin(
    user: KubeconfigEntry[UserEntry], plugin: ExecEntry, cluster: KubeconfigEntry[ClusterEntry], *, ca: bytes
) -> ExecStatus:
    """Run a plugin and return its credentials. It has no time limit, because it may wait for a person.

    The plugin asks the person on standard error. It inherits a terminal there; other errors are captured.

    Args:
        user: the user of the plugin.
        plugin: the plugin.
        cluster: the cluster, which `provideClusterInfo` passes to the plugin.
        ca: the cluster's certificate authority in PEM; empty for none.

    Raises:
        AccessError: the plugin is incomplete, cannot be started, fails, or prints no credentials. The
            message contains nothing of its standard output.
    """
    command, mode = _check(user, plugin)
    environment = {
        **os.environ,
        **{variable.name or "": variable.value or "" for variable in plugin.env or ()},
        "KUBERNETES_EXEC_INFO": json.dumps(_exec_info(plugin, cluster, ca, is_interactive=mode), default=str),
    }
    is_path = os.sep in command
    try:
        process = await asyncio.create_subprocess_exec(
            str(user.path(command)) if is_path else command,
            *(argument or "" for argument in plugin.args or ()),
            env=environment,
            stdin=None if mode else asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=None if _is_terminal(sys.stderr) else PIPE,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        reason = error.strerror if isinstance(error, OSError) else "a NUL character"
        hint = f" ({one_line(plugin.install_hint)})" if plugin.install_hint else ""
        raise user.error(f"exec: {one_line(command)}: {reason}{hint}") from None
    output, errors = await asyncio.gather(_read(process.stdout), _read(process.stderr, _MOST_ERRORS))
    status = await process.wait()
    where = f"exec: {one_line(command)}"
    if status:
        cut = ELLIPSIS if len(errors) == _MOST_ERRORS else ""
        message = one_line(cut + errors.decode(errors="replace"))
        raise user.error(f"{where}: exit status {status}{': ' if message else ''}{message}")
    return _status(user, where, plugin, output)


def _check(user: KubeconfigEntry[UserEntry], plugin: ExecEntry) -> tuple[str, bool]:
    """Return the command, and whether the plugin may read standard input.

    Raises:
        AccessError: a key is missing or has another value than the allowed ones.
    """
    if not plugin.command:
        raise user.error("exec: command: not set")
    if plugin.api_version not in _API_VERSIONS:
        value = quoted(plugin.api_version) if plugin.api_version else "not set"
        raise user.error(f"exec: apiVersion: {value}; allowed: {' and '.join(_API_VERSIONS)}")
    mode = plugin.interactive_mode or ("IfAvailable" if plugin.api_version == _API_VERSIONS[1] else "")
    if mode not in _MODES:
        value = quoted(mode) if mode else "not set"
        raise user.error(f"exec: interactiveMode: {value}; allowed: {', '.join(_MODES)}")
    if any(not variable.name for variable in plugin.env or ()):
        raise user.error("exec: env: a variable has no name")
    has_terminal = _is_terminal(sys.stdin)
    if mode == "Always" and not has_terminal:
        raise user.error("exec: interactiveMode: Always needs a terminal as standard input")
    return plugin.command, mode != "Never" and has_terminal


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


async def _read(stream: asyncio.StreamReader | None, most: int = sys.maxsize) -> bytes:
    """Read a pipe to its end; return its last bytes. A stream that the plugin inherited has none."""
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
        kept += chunk
        del kept[:-most]
    return bytes(kept)


def _exec_info(
    plugin: ExecEntry, cluster: KubeconfigEntry[ClusterEntry], ca: bytes, *, is_interactive: bool
) -> dict[str, Any]:
    spec: dict[str, Any] = {"interactive": is_interactive}
    if plugin.provide_cluster_info:
        values = cluster.value
        configured = [item for item in values.extensions or () if item.get("name") == _EXTENSION]
        info = {
            "server": values.server,
            "tls-server-name": values.tls_server_name,
            "insecure-skip-tls-verify": values.insecure_skip_tls_verify,
            "certificate-authority-data": base64.b64encode(ca).decode(),
            "proxy-url": values.proxy_url,
            "config": configured[0].get("extension") if configured else None,
        }
        spec["cluster"] = {key: value for key, value in info.items() if value}
    return {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}


def _status(user: KubeconfigEntry[UserEntry], where: str, plugin: ExecEntry, output: bytes) -> ExecStatus:
    """Return the credentials of a plugin's output.

    Raises:
        AccessError: they are missing or incomplete.
    """
    try:
        credential = _credential.decode(output)
    except MALFORMED:  # the error's text may quote the output
        size = counted(len(output), "byte")
        raise user.error(f"{where}: its output of {size} is not an ExecCredential in JSON") from None
    if credential.kind != "ExecCredential":
        raise user.error(f"{where}: the kind of its output is not ExecCredential")
    if credential.api_version != plugin.api_version:
        raise user.error(f"{where}: the apiVersion of its output is not {plugin.api_version}")
    status = credential.status
    if status is None:
        raise user.error(f"{where}: its output has no status")
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise user.error(f"{where}: its output has a certificate or a key, but not both")
    if not status.token and not status.client_certificate_data:
        raise user.error(f"{where}: its output has neither a token nor a certificate")
    return status


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
