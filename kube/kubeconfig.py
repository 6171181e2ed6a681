"""Kubeconfig files, read and merged as client-go does (tools/clientcmd), with one clear line for each error.

The entries are checked before any request. Messages name the file, the entry and its key; they contain no
value of a key that can hold a secret.
"""

import base64
import binascii
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct

from service.names import is_dns_label
from service.text import listed, one_line, quoted

_TYPE_ERROR: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`(?: - at `([^`]+)`)?")
_PROXY_SCHEMES: Final = ("http", "https")


class InvalidKubeconfig(ValueError):
    """A kubeconfig that gives no access; the message is one line without secrets."""


class ClusterEntry(Struct, frozen=True, rename="kebab"):
    """An API server, `clusters[].cluster`; None stands for an absent key."""

    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None
    extensions: list[dict[str, Any]] | None = None


class ExecVariable(Struct, frozen=True):
    """An environment variable of a credential plugin."""

    name: str | None = None
    value: str | None = None


class ExecEntry(Struct, frozen=True, rename="camel"):
    """A credential plugin, `users[].user.exec`."""

    command: str | None = None
    args: list[str | None] | None = None
    env: list[ExecVariable] | None = None
    api_version: str | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None


class UserEntry(Struct, frozen=True, rename="kebab"):
    """Credentials, `users[].user`; None stands for an absent key."""

    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    username: str | None = None
    password: str | None = None
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    as_user: str | None = msgspec.field(name="as", default=None)
    as_uid: str | None = None
    as_groups: list[str | None] | None = None
    as_user_extra: dict[str, list[str | None] | None] | None = None
    exec: ExecEntry | None = None
    auth_provider: dict[str, Any] | None = None


class ContextEntry(Struct, frozen=True):
    """A cluster with a user and a namespace, `contexts[].context`."""

    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class _NamedCluster(Struct, frozen=True):
    name: str = ""
    cluster: ClusterEntry | None = None


class _NamedUser(Struct, frozen=True):
    name: str = ""
    user: UserEntry | None = None


class _NamedContext(Struct, frozen=True):
    name: str = ""
    context: ContextEntry | None = None


class _File(Struct, frozen=True):
    current_context: str | None = msgspec.field(name="current-context", default=None)
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KubeconfigEntry(Generic[T]):
    """An entry of a kubeconfig, with the place that messages name."""

    kind: str
    """`cluster`, `user` or `context`."""
    name: str
    file: Path
    """The file that holds the entry; its folder is the base of relative paths."""
    value: T

    def error(self, problem: str) -> InvalidKubeconfig:
        """Return the error with the place of the entry before the problem."""
        return InvalidKubeconfig(f"{self.file}: {self.kind} {quoted(self.name)}: {problem}")

    def path(self, text: str) -> Path:
        """Return a path of the entry; a relative one begins in the folder of the file."""
        return self.file.parent.absolute() / text

    def read(self, key: str, text: str) -> bytes:
        """Return the content of a file that a key of the entry names.

        Raises:
            InvalidKubeconfig: the file cannot be read.
        """
        try:
            return self.path(text).read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
            reason = error.strerror if isinstance(error, OSError) else "not a path"
            raise self.error(f"{key}: {one_line(text)}: {reason}") from None

    def data(self, key: str, path: str | None, encoded: str | None) -> bytes:
        """Return the content of a pair of keys: `key` with a path, or `key-data` with base64; empty for none.

        Raises:
            InvalidKubeconfig: both are set, the file cannot be read, or the text is not base64.
        """
        if path and encoded:
            raise self.error(f"{key} and {key}-data are both set; only one is allowed")
        if path:
            return self.read(key, path)
        try:
            return base64.b64decode("".join((encoded or "").splitlines()), validate=True)
        except (binascii.Error, ValueError):  # ValueError: other characters than ASCII
            raise self.error(f"{key}-data: not base64") from None


@dataclass(frozen=True, slots=True)
class SelectedContext:
    """The entries that one context of a kubeconfig selects."""

    context: KubeconfigEntry[ContextEntry]
    cluster: KubeconfigEntry[ClusterEntry]
    user: KubeconfigEntry[UserEntry]


def read_kubeconfig(where: str, context: str | None = None) -> SelectedContext:
    """Read the files of a kubeconfig and select a context.

    Of entries with the same name, and of current contexts, the first file's counts, as for kubectl.

    Args:
        where: paths, separated as in `$KUBECONFIG`; missing files are skipped if one exists.
        context: name of the context; None uses the current one.

    Raises:
        InvalidKubeconfig: there is no file, a file cannot be read, or the context is incomplete.
    """
    files = [(path, _read_file(path)) for path in _existing_files(where)]
    if not files:
        raise InvalidKubeconfig(f"{one_line(where)}: no such kubeconfig")
    contexts = _merge("context", [(path, _named(path, "contexts", file.contexts)) for path, file in files])
    clusters = _merge("cluster", [(path, _named(path, "clusters", file.clusters)) for path, file in files])
    users = _merge("user", [(path, _named(path, "users", file.users)) for path, file in files])
    name = context or next((file.current_context for _, file in files if file.current_context), None)
    if not name:
        raise InvalidKubeconfig(f"{one_line(where)}: no current-context, and no context was given")
    if name not in contexts:
        known = f"; contexts: {listed(contexts)}" if contexts else ""
        raise InvalidKubeconfig(f"{one_line(where)}: no context {quoted(name)}{known}")
    chosen = contexts[name]
    entry = chosen.value or ContextEntry()
    if not entry.cluster:
        raise chosen.error("cluster: not set")
    if entry.cluster not in clusters:
        raise chosen.error(f"cluster: no cluster {quoted(entry.cluster)}")
    if entry.user and entry.user not in users:
        raise chosen.error(f"user: no user {quoted(entry.user)}")
    cluster = clusters[entry.cluster]
    user = users.get(entry.user) if entry.user else None
    return SelectedContext(
        context=replace(chosen, value=entry),
        cluster=replace(cluster, value=cluster.value or ClusterEntry()),
        user=KubeconfigEntry("user", "", chosen.file, UserEntry())
        if user is None
        else replace(user, value=user.value or UserEntry()),
    )


def context_namespace(context: KubeconfigEntry[ContextEntry]) -> str:
    """Return the namespace of a context; `default` if it names none.

    Raises:
        InvalidKubeconfig: it is not the name of a namespace.
    """
    name = context.value.namespace or "default"
    if not is_dns_label(name):
        raise context.error(f"namespace: {quoted(name)} is not the name of a namespace")
    return name


def server_url(cluster: KubeconfigEntry[ClusterEntry]) -> str:
    """Return the address of the API server, `https://host:port` with an optional path.

    An address without a scheme means HTTP, as for kubectl.

    Raises:
        InvalidKubeconfig: the server is not set, or is no URL of HTTP or HTTPS.
    """
    server = cluster.value.server
    allowed = "allowed: https://HOST:PORT"
    if not server:
        raise cluster.error(f"server: not set; {allowed}")
    parts = _split_url(server)
    if parts is None or not parts.scheme or not parts.netloc:
        parts = _split_url(f"http://{server}")
        if parts is None or not parts.netloc or parts.path not in ("", "/"):
            raise cluster.error(f"server: not a URL; {allowed}")
    if parts.scheme not in ("http", "https"):
        raise cluster.error(f"server: unknown scheme {quoted(parts.scheme)}; {allowed}")
    if "@" in parts.netloc:
        raise cluster.error(f"server: a user name is not allowed in it; {allowed}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def proxy_url(cluster: KubeconfigEntry[ClusterEntry]) -> str | None:
    """Return the URL of the proxy; None for a direct connection.

    Raises:
        InvalidKubeconfig: it is no URL of an HTTP proxy. The message quotes its scheme only, because the URL
            can contain a password.
    """
    url = cluster.value.proxy_url
    if not url:
        return None
    parts = _split_url(url)
    if parts is None:
        problem = "not a URL"
    elif not parts.scheme:
        problem = "no scheme"
    elif parts.scheme not in _PROXY_SCHEMES:
        problem = f"scheme {quoted(parts.scheme)} is not supported"
    elif not parts.netloc:
        problem = "no host"
    else:
        return url
    raise cluster.error(f"proxy-url: {problem}; allowed: http://HOST:PORT and https://HOST:PORT")


def _split_url(url: str) -> SplitResult | None:
    """Split a URL; None if its host or port is invalid, or a character is not allowed."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    has_host = not parts.netloc or bool(parts.hostname)
    return parts if has_host and url.isprintable() and " " not in url else None


def _existing_files(where: str) -> list[Path]:
    files = []
    for text in where.split(os.pathsep):
        try:
            path = Path(text).expanduser()
            if text and path.exists():
                files.append(path)
        except (RuntimeError, OSError, ValueError):  # no home directory; a NUL character
            continue
    return files


def _read_file(path: Path) -> _File:
    """Read one file.

    Raises:
        InvalidKubeconfig: the file cannot be read, is not YAML, or has a value of a wrong type.
    """
    import yaml  # noqa: PLC0415 - for a kubeconfig only, since a service in a cluster has none

    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise InvalidKubeconfig(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date
        raise InvalidKubeconfig(f"{path}: not YAML{_place(error)}") from None
    if document is None:
        return _File()
    if not isinstance(document, dict):
        raise InvalidKubeconfig(f"{path}: not a kubeconfig")
    try:
        return msgspec.convert(document, _File)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidKubeconfig(f"{path}: {_type_error(error)}") from None


def _place(error: Exception) -> str:
    """Return the line of a syntax error; its text may quote a secret."""
    mark = getattr(error, "problem_mark", None)
    return f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _type_error(error: Exception) -> str:
    match = _TYPE_ERROR.fullmatch(str(error))
    if match is None:
        return "not a kubeconfig"
    expected, got, where = match[1].replace(" | null", ""), match[2], (match[3] or "").lstrip("$.")
    return f"{where or 'the document'}: has the type {got}, expected {expected}"


def _named(path: Path, key: str, entries: Sequence[Any] | None) -> dict[str, Any]:
    """Return the entries of a list by name.

    Raises:
        InvalidKubeconfig: two entries of the file have the same name.
    """
    kind = key.removesuffix("s")
    by_name: dict[str, Any] = {}
    for entry in entries or ():
        if entry.name in by_name:
            raise InvalidKubeconfig(f"{path}: {key}: the name {quoted(entry.name)} occurs twice")
        by_name[entry.name] = getattr(entry, kind)
    return by_name


def _merge(kind: str, files: Sequence[tuple[Path, dict[str, Any]]]) -> dict[str, KubeconfigEntry[Any]]:
    """Merge the entries of all files; the first file with a name counts."""
    merged: dict[str, KubeconfigEntry[Any]] = {}
    for path, entries in files:
        for name, value in entries.items():
            merged.setdefault(name, KubeconfigEntry(kind, name, path, value))
    return merged
