"""Kubeconfigs, merged and used as by kubectl (client-go, tools/clientcmd).

Each error is one line with the file, the entry and the key; it quotes no value that can be a secret.
"""

import asyncio
import base64
import contextlib
import json
import math
import os
import ssl
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies_environment

import msgspec

from kube.access import Headers, Route
from kube.answers import AccessError
from service.http.tls_files import client_context, load_pem
from service.names import is_dns_label
from service.text import LONGEST_LINE, listed, one_line, quoted

_EXEC: Final = "client.authentication.k8s.io"
_HEADER_NAME: Final = "!#$&'*+-.^_`|~"
"""Characters of a header's name beside letters and digits (RFC 9110, 5.6.2), without the percent sign."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """A part of a kubeconfig; its messages begin with the place."""

    place: str
    folder: Path
    """The folder of its file, where relative paths begin."""
    values: dict[str, Any] = field(repr=False)

    def error(self, problem: str) -> AccessError:
        """Return an error with the place before the problem."""
        return AccessError(f"{self.place}: {problem}")

    @contextlib.contextmanager
    def checking(self, problem: str) -> Iterator[None]:
        """Convert errors about an unusable value, with the reason if it is a file's."""
        try:
            yield
        except (ssl.SSLError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise self.error(problem) from None
        except OSError as error:
            raise self.error(f"{problem}: {error.strerror}") from None

    def get(self, key: str, form: type[T], default: T) -> T:
        """Return a value, or the default if it is absent; raise AccessError if it has another type."""
        value = self.values.get(key)
        try:
            return default if value is None else msgspec.convert(value, form)
        except (msgspec.ValidationError, RecursionError) as error:  # its message quotes types only
            raise self.error(f"{key}: {one_line(str(error))}") from None

    def text(self, key: str) -> str:
        """Return a text; empty if the key is absent."""
        return self.get(key, str, "")

    def data(self, key: str) -> bytes:
        """Return the content of the file that `key` names, or the base64 of `key-data`; empty for none."""
        path, encoded = self.text(key), self.text(f"{key}-data")
        with self.checking(f"{key}: {one_line(path)}" if path else f"{key}-data: not base64"):
            file = self.folder / path
            return file.read_bytes() if path else base64.b64decode("".join(encoded.split()), validate=True)


class KubeConfig:
    """Access by a kubeconfig, which is read and used as by kubectl; AccessError if that is not possible."""

    server: str
    """The cluster's address."""
    route: Route
    """The cluster's proxy or that of the environment, its `tls-server-name`, and what is not sent."""
    _context: Entry
    _trust: ssl.SSLContext
    _headers: Headers

    def __init__(self, where: str, context: str | None) -> None:
        """Set the files in the form of `$KUBECONFIG` and the context; `load` logs in, too."""
        self._where = where
        self._chosen = context
        self._renewal = asyncio.Lock()

    @classmethod
    async def load(cls, path: str | None = None, context: str | None = None) -> "KubeConfig":
        """Read a kubeconfig, by default `$KUBECONFIG`, else `~/.kube/config`, and its current context."""
        access = cls(path or os.environ.get("KUBECONFIG") or "~/.kube/config", context)
        await access._log_in()
        return access

    @property
    def namespace(self) -> str:
        """The context's namespace, else `default`; raises AccessError if it is no name of a namespace."""
        name = self._context.text("namespace") or "default"
        if not is_dns_label(name):
            raise self._context.error(f"namespace: {quoted(name)} is not the name of a namespace")
        return name

    def trust(self) -> ssl.SSLContext:
        """Return a TLS context with the kubeconfig's CA and client certificate."""
        return self._trust

    async def headers(self, *, refused: Headers | None = None) -> Headers:
        """Return the token and the impersonation; no token if a client certificate authenticates the caller.

        Requests that are refused at the same time share one login, which may start a plugin.
        """
        if refused is not None and refused == self._headers:
            context = self._context
            async with self._renewal:
                if context is self._context:  # otherwise another request has logged in meanwhile
                    await self._log_in()
        return self._headers

    async def _log_in(self) -> None:
        """Read the files; missing ones are skipped if one exists.

        A credential plugin has no time limit, because it may wait for a person.
        """
        chosen, cluster, user = _select(self._where, self._chosen)
        with cluster.checking("server: expected https://HOST:PORT"):
            server = cluster.text("server")
            url = _split_url(server if "://" in server else f"http://{server}")  # as kubectl
            if url.username is not None:
                raise ValueError
        ca, headers, withheld = cluster.data("certificate-authority"), _impersonation(user), ""
        with cluster.checking("certificate-authority: no certificate in PEM"):
            trust = client_context(cadata=ca.decode("ascii", errors="replace") or None)
        if cluster.get("insecure-skip-tls-verify", bool, False) and not ca:
            trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        hostname = cluster.text("tls-server-name") or None
        with cluster.checking("tls-server-name: not a host name"):  # each connection would fail otherwise
            trust.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=hostname or "localhost")
        if url.scheme == "https":
            authorization, certificate, key = await _credentials(user, cluster, ca)
            with user.checking("client-certificate: no certificate with its unencrypted key in PEM"):
                if certificate:
                    load_pem(trust, certificate, key)
            headers = [("Authorization", authorization), *headers] if authorization else headers
        elif user.values:  # as kubectl, which sends no credentials without TLS
            is_token = not user.values.keys().isdisjoint(("token", "tokenFile", "exec", "auth-provider"))
            what = "token" if is_token else "login"
            headers, withheld = [], f"your {what} was not sent, because the address is http://"
        proxy = _proxy(cluster, url)
        self._context, self._trust, self._headers = chosen, trust, tuple(headers)
        self.server = f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"
        self.route = Route(proxy, hostname, withheld, "log in again" if user.values else "")


def _select(where: str, context: str | None) -> tuple[Entry, Entry, Entry]:
    """Merge the files; return the context, its cluster and its user."""
    current = ""
    entries: dict[str, dict[str, Entry]] = {"context": {}, "cluster": {}, "user": {}}
    paths = [os.path.expanduser(path) for path in where.split(os.pathsep) if path]  # noqa: PTH111 - never fails
    for path in [path for path in paths if os.path.exists(path)] or paths:  # noqa: PTH110 - as above
        document = Entry(one_line(path), Path(path).parent.absolute(), _read(Path(path)))
        current = current or document.text("current-context")  # as of entries, the first file's counts
        for kind, known in entries.items():
            for item in document.get(f"{kind}s", list[dict[str, Any]], []):
                entry = Entry(f"{document.place}: {kind} {quoted(item.get('name'))}", document.folder, item)
                values = entry.get(kind, dict[str, Any], {})
                known.setdefault(entry.text("name"), Entry(entry.place, entry.folder, values))
    context = context or current
    chosen = entries["context"].get(context)
    if chosen is None:
        problem = f"no context {quoted(context)}" if context else "no current-context"
        raise AccessError(f"{one_line(where)}: {problem}; contexts: {listed(entries['context']) or 'none'}")
    cluster, user = (entries[kind].get(chosen.text(kind)) for kind in ("cluster", "user"))
    if user is None and not chosen.text("user"):
        user = Entry(chosen.place, chosen.folder, {})
    if cluster is None or user is None:
        kind = "user" if cluster else "cluster"
        raise chosen.error(f"no {kind} {quoted(chosen.text(kind))}")
    return chosen, cluster, user


def _read(path: Path) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - a service in a pod has no kubeconfig

    try:
        return msgspec.convert(yaml.safe_load(path.read_bytes()) or {}, dict[str, Any])
    except OSError as error:
        problem = "no such kubeconfig" if isinstance(error, FileNotFoundError) else error.strerror
        raise AccessError(f"{path}: {problem}") from None
    except Exception as error:  # noqa: BLE001 - PyYAML raises all kinds, such as for the tag `!!int ""`
        mark = getattr(error, "problem_mark", None)  # the error's text may quote a secret
        where = f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise AccessError(f"{path}: not a kubeconfig in YAML{where}") from None


def _split_url(url: str) -> SplitResult:
    """Split a URL of HTTP; raise ValueError if the host, the port or a character is not valid."""
    parts = urlsplit(url)
    _ = parts.port, (parts.hostname or "").encode("idna")  # as for the resolver
    unquote(f"{parts.username}{parts.password}", errors="ignore").encode("latin-1")  # as aiohttp sends them
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise ValueError
    return parts


def _proxy(cluster: Entry, server: SplitResult) -> str | None:
    """Return the URL of the cluster's proxy, else that of the environment; None to connect directly."""
    key, url = "proxy-url", cluster.text("proxy-url")
    if not url:
        variables = getproxies_environment()
        key, url = f"{server.scheme.upper()}_PROXY", variables.get(server.scheme, "")
        exempt = ["localhost", "127.0.0.0/8", "::1", *variables.get("no", "").replace(" ", "").split(",")]
        if not url or any(_covers(entry.lower(), server) for entry in exempt):
            return None
        url = url if "://" in url else f"http://{url}"
    with cluster.checking(f"{key}: expected http://HOST:PORT or https://HOST:PORT"):
        _split_url(url)
    return url


def _covers(entry: str, server: SplitResult) -> bool:
    """Whether an entry of NO_PROXY covers a server, as for golang.org/x/net/http/httpproxy."""
    host, port = server.hostname or "", server.port or {"http": 80, "https": 443}[server.scheme]
    with contextlib.suppress(ValueError):  # urllib knows no networks
        return ip_address(host) in ip_network(entry, strict=False)
    name, _, only_port = entry.partition(":")
    if name in ("", "*") or only_port not in ("", str(port)) or host.replace(".", "").isdigit():
        return entry in ("*", f"{host}:{port}")
    return host.endswith(name.lstrip("*")) if name[0] in "*." else f".{host}".endswith(f".{name}")


def _impersonation(user: Entry) -> list[tuple[str, str]]:
    """Return the headers of an impersonation, in the form of client-go (transport/round_trippers.go)."""
    headers = [("Impersonate-User", user.text("as")), ("Impersonate-Uid", user.text("as-uid"))]
    headers += [("Impersonate-Group", group) for group in user.get("as-groups", list[str], [])]
    for name, values in user.get("as-user-extra", dict[str, list[str]], {}).items():
        escaped = quote(name, safe=_HEADER_NAME, errors="replace").lower()
        headers += [(f"Impersonate-Extra-{escaped}", value) for value in values]
    headers = [(name, value) for name, value in headers if value]
    if headers and not user.text("as"):
        raise user.error("as-uid, as-groups and as-user-extra need as, the user to impersonate")
    for name, value in headers:  # HTTP/1.1 drops blanks, and the API server would see another user
        if not value.isprintable() or value != value.strip():
            raise user.error(f"{name}: a blank at an end, or a character that no header can carry")
    return headers


async def _credentials(user: Entry, cluster: Entry, ca: bytes) -> tuple[str, bytes, bytes]:
    """Return the header Authorization, and a client certificate with its key; each may be empty."""
    certificate, key = user.data("client-certificate"), user.data("client-key")
    name, password = user.text("username"), user.text("password")
    token = user.data("tokenFile").decode(errors="replace").strip() or user.text("token")  # as client-go
    if not token and (name or password):
        basic = base64.b64encode(f"{name}:{password}".encode(errors="replace")).decode()
        return f"Basic {basic}", certificate, key
    if not token and user.values.get("auth-provider"):
        with user.checking("auth-provider: only oidc with a valid id-token, which kubectl renews"):
            provider = user.values["auth-provider"]
            token = provider["config"]["id-token"] if provider["name"] == "oidc" else ""
            claims = msgspec.json.decode(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
            if claims.get("exp", math.inf) < time.time():
                raise ValueError
    if not token and user.values.get("exec"):
        plugin = Entry(f"{user.place}: exec", user.folder, user.get("exec", dict[str, Any], {}))
        status = await _run_plugin(plugin, cluster, ca)
        certificate = status.get("clientCertificateData", "").encode(errors="replace") or certificate
        token, key = status.get("token", ""), status.get("clientKeyData", "").encode(errors="replace") or key
    if not token.isascii() or not token.isprintable():
        raise user.error("the token is not one line of ASCII text")
    return f"Bearer {token}" if token else "", certificate, key


async def _run_plugin(plugin: Entry, cluster: Entry, ca: bytes) -> dict[str, str]:
    """Run a credential plugin; return the status that it printed.

    The plugin asks a person on standard error, and inherits a terminal there; other errors are captured.
    """
    version, command = plugin.text("apiVersion"), plugin.text("command")
    mode = plugin.text("interactiveMode") or ("IfAvailable" if version == f"{_EXEC}/v1beta1" else "")
    if version not in (f"{_EXEC}/v1", f"{_EXEC}/v1beta1") or mode not in ("Never", "IfAvailable", "Always"):
        raise plugin.error(f"apiVersion {quoted(version)}, interactiveMode {quoted(mode)}: not supported")
    has_input, has_errors = (stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))
    if mode == "Always" and not has_input:
        raise plugin.error("interactiveMode: Always needs a terminal as standard input")
    spec: dict[str, Any] = {"interactive": mode != "Never" and has_input}
    if plugin.get("provideClusterInfo", bool, False):
        same = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
        spec["cluster"] = {key: value for key, value in cluster.values.items() if key in same and value}
        spec["cluster"] |= {"certificate-authority-data": base64.b64encode(ca).decode()} if ca else {}
        for extension in cluster.get("extensions", list[dict[str, Any]], []):
            if extension.get("name") == f"{_EXEC}/exec":
                spec["cluster"]["config"] = extension.get("extension")
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    place = Entry(f"{plugin.place}: {one_line(command) or 'no command'}", plugin.folder, {})
    with place.checking(one_line(plugin.text("installHint")) or "cannot be started"):
        entries = plugin.get("env", list[dict[str, str]], [])
        variables = {entry["name"]: entry.get("value", "") for entry in entries}
        process = await asyncio.create_subprocess_exec(
            str(plugin.folder / command) if os.sep in command else command,
            *plugin.get("args", list[str], []),
            env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(info, default=str)},
            stdin=None if spec["interactive"] else DEVNULL,
            stdout=PIPE,
            stderr=None if has_errors else PIPE,
        )
    output, errors = await process.communicate()
    if process.returncode:
        message = one_line((errors or b"")[-LONGEST_LINE + 1 :].decode(errors="replace"))
        raise place.error(f"exit status {process.returncode}: {message}".removesuffix(": "))
    with place.checking(f"its output is no ExecCredential of {version} with a token or a certificate"):
        credential = msgspec.json.decode(output)
        status = {key: value for key, value in credential["status"].items() if value}
        is_right = (credential["apiVersion"], credential["kind"]) == (version, "ExecCredential")
        if not is_right or not {"token", "clientCertificateData"} & status.keys():
            raise ValueError
        return msgspec.convert(status, dict[str, str])
