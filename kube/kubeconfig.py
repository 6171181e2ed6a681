"""Kubeconfigs, merged and used as by kubectl (client-go, tools/clientcmd).

Each error is one line with the file, the entry and the key; it quotes no value that can be a secret.
"""

import asyncio
import base64
import contextlib
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
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment

import msgspec

from kube.access import Access, Headers, Route
from kube.answers import AccessError
from service.http.tls_files import client_context, load_pem
from service.names import is_dns_label
from service.text import listed, one_line, quoted

_EXEC: Final = "client.authentication.k8s.io"
_REFUSED: Final = ("as", "as-uid", "as-groups", "as-user-extra", "username", "password")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A part of a kubeconfig; its messages begin with the place."""

    place: str
    folder: Path  # where relative paths begin
    values: dict[str, Any] = field(repr=False)

    def error(self, problem: str) -> AccessError:
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
        return self.get(key, str, "")

    def data(self, key: str) -> bytes:
        """Return the content of the file that `key` names, or the base64 of `key-data`; empty for none."""
        path, encoded = self.text(key), self.text(f"{key}-data")
        with self.checking(f"{key}: {one_line(path)}" if path else f"{key}-data: not base64"):
            file = self.folder / path
            return file.read_bytes() if path else base64.b64decode("".join(encoded.split()), validate=True)


class KubeConfig(Access):
    """Access by a kubeconfig, which is read and used as by kubectl; AccessError if that is not possible."""

    def __init__(self, where: str, context: str | None) -> None:
        """Set the files in the form of `$KUBECONFIG` and the context; `load` logs in, too."""
        self._where, self._chosen = where, context
        self._renewal = asyncio.Lock()
        self._headers: Headers = ()

    @classmethod
    async def load(cls, path: str | None = None, context: str | None = None) -> "KubeConfig":
        """Read a kubeconfig, by default `$KUBECONFIG`, else `~/.kube/config`, and its current context."""
        access = cls(path or os.environ.get("KUBECONFIG") or "~/.kube/config", context)
        await access._log_in()
        return access

    @property
    def namespace(self) -> str:
        """The context's namespace, else `default`; raises AccessError if it is no name of a namespace."""
        name = self._entry.text("namespace") or "default"
        if not is_dns_label(name):
            raise self._entry.error(f"namespace: {quoted(name)} is not the name of a namespace")
        return name

    async def headers(self, *, refused: Headers | None = None) -> Headers:
        """Return the token; none if a client certificate authenticates the caller.

        Requests that are refused at the same time share one login, which may start a plugin.
        """
        if refused is not None and refused == self._headers:
            entry = self._entry
            async with self._renewal:
                if entry is self._entry:  # otherwise another request has logged in meanwhile
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
        if refused := [key for key in _REFUSED if user.values.get(key)]:
            known = "token, tokenFile, exec and client certificates"
            raise user.error(f"{refused[0]}: not supported; kaishare uses {known}")
        ca = cluster.data("certificate-authority")
        with cluster.checking("certificate-authority: no certificate in PEM"):
            trust = client_context(cadata=ca.decode("ascii", errors="replace") or None)
        if cluster.get("insecure-skip-tls-verify", bool, False) and not ca:
            trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        hostname = cluster.text("tls-server-name") or None
        with cluster.checking("tls-server-name: not a host name"):  # each connection would fail otherwise
            trust.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=hostname or "localhost")
        token = withheld = ""
        if url.scheme == "https":
            token, certificate, key = await _credentials(user, cluster, ca)
            with user.checking("client-certificate: no certificate with its unencrypted key in PEM"):
                if certificate:
                    load_pem(trust, certificate, key)
        elif user.values:  # as kubectl, which sends no credentials without TLS
            withheld = "your credentials were not sent, because the address is http://"
        proxy = _proxy(cluster, url)
        self._entry, self._context = chosen, trust
        self._headers = (("Authorization", f"Bearer {token}"),) if token else ()
        self.server = f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"
        self.route = Route(proxy, hostname, withheld, "log in again" if user.values else "")


def _select(where: str, context: str | None) -> tuple[_Entry, _Entry, _Entry]:
    """Merge the files; return the context, its cluster and its user."""
    current = ""
    entries: dict[str, dict[str, _Entry]] = {"context": {}, "cluster": {}, "user": {}}
    paths = [os.path.expanduser(path) for path in where.split(os.pathsep) if path]  # noqa: PTH111 - never fails
    for path in [path for path in paths if os.path.exists(path)] or paths:  # noqa: PTH110 - as above
        document = _Entry(one_line(path), Path(path).parent.absolute(), _read(Path(path)))
        current = current or document.text("current-context")  # as of entries, the first file's counts
        for kind, known in entries.items():
            for item in document.get(f"{kind}s", list[dict[str, Any]], []):
                entry = _Entry(f"{document.place}: {kind} {quoted(item.get('name'))}", document.folder, item)
                values = entry.get(kind, dict[str, Any], {})
                known.setdefault(entry.text("name"), _Entry(entry.place, entry.folder, values))
    context = context or current
    chosen = entries["context"].get(context)
    if chosen is None:
        problem = f"no context {quoted(context)}" if context else "no current-context"
        raise AccessError(f"{one_line(where)}: {problem}; contexts: {listed(entries['context']) or 'none'}")
    cluster, user = (entries[kind].get(chosen.text(kind)) for kind in ("cluster", "user"))
    if user is None and not chosen.text("user"):
        user = _Entry(chosen.place, chosen.folder, {})
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


def _proxy(cluster: _Entry, server: SplitResult) -> str | None:
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


async def _credentials(user: _Entry, cluster: _Entry, ca: bytes) -> tuple[str, bytes, bytes]:
    """Return the token, and a client certificate with its key; each may be empty."""
    certificate, key = user.data("client-certificate"), user.data("client-key")
    token = user.data("tokenFile").decode(errors="replace").strip() or user.text("token")  # as client-go
    if not token and user.values.get("auth-provider"):
        with user.checking("auth-provider: only oidc with a valid id-token, which kubectl renews"):
            provider = user.values["auth-provider"]
            token = provider["config"]["id-token"] if provider["name"] == "oidc" else ""
            claims = msgspec.json.decode(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
            if claims.get("exp", float("inf")) < time.time():
                raise ValueError
    if not token and user.values.get("exec"):
        plugin = _Entry(f"{user.place}: exec", user.folder, user.get("exec", dict[str, Any], {}))
        status = await _run_plugin(plugin, cluster, ca)
        certificate = status.get("clientCertificateData", "").encode(errors="replace") or certificate
        token, key = status.get("token", ""), status.get("clientKeyData", "").encode(errors="replace") or key
    if not token.isascii() or not token.isprintable():
        raise user.error("the token is not one line of ASCII text")
    return token, certificate, key


async def _run_plugin(plugin: _Entry, cluster: _Entry, ca: bytes) -> dict[str, str]:
    """Run a credential plugin; return the status that it printed. It may ask a person on standard error."""
    version, command = plugin.text("apiVersion"), plugin.text("command")
    mode = plugin.text("interactiveMode") or ("IfAvailable" if version == f"{_EXEC}/v1beta1" else "")
    if version not in (f"{_EXEC}/v1", f"{_EXEC}/v1beta1") or mode not in ("Never", "IfAvailable", "Always"):
        raise plugin.error(f"apiVersion {quoted(version)}, interactiveMode {quoted(mode)}: not supported")
    has_input = sys.stdin is not None and sys.stdin.isatty()
    if mode == "Always" and not has_input:
        raise plugin.error("interactiveMode: Always needs a terminal as standard input")
    spec: dict[str, Any] = {"interactive": mode != "Never" and has_input}
    if plugin.get("provideClusterInfo", bool, False):
        same = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
        spec["cluster"] = {key: value for key, value in cluster.values.items() if key in same and value}
        spec["cluster"] |= {"certificate-authority-data": base64.b64encode(ca).decode()} if ca else {}
    place = _Entry(f"{plugin.place}: {one_line(command) or 'no command'}", plugin.folder, {})
    with place.checking(one_line(plugin.text("installHint")) or "cannot be started"):
        info = msgspec.json.encode({"apiVersion": version, "kind": "ExecCredential", "spec": spec}).decode()
        entries = plugin.get("env", list[dict[str, str]], [])
        variables = {entry["name"]: entry.get("value", "") for entry in entries}
        process = await asyncio.create_subprocess_exec(
            str(plugin.folder / command) if os.sep in command else command,
            *plugin.get("args", list[str], []),
            env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": info},
            stdin=None if spec["interactive"] else DEVNULL,
            stdout=PIPE,
        )
    output, _ = await process.communicate()
    if process.returncode:
        raise place.error(f"exit status {process.returncode}")
    with place.checking(f"its output is no ExecCredential of {version} with a token or a certificate"):
        credential = msgspec.json.decode(output)
        status = {key: value for key, value in credential["status"].items() if value}
        is_right = (credential["apiVersion"], credential["kind"]) == (version, "ExecCredential")
        if not is_right or not {"token", "clientCertificateData"} & status.keys():
            raise ValueError
        return msgspec.convert(status, dict[str, str])
