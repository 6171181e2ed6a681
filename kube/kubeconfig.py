"""Kubeconfig files, read and merged as client-go does (tools/clientcmd), with one clear line for each error.

The entries are checked before any request. Messages name the file, the entry and its key; they contain no
value of a key that can hold a secret.
"""

import base64
import binascii
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec
from msgspec import Struct

from kube.answers import AccessError
from service.names import is_dns_label
from service.text import listed, one_line, quoted

_TYPE_ERROR: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`(?: - at `([^`]+)`)?")
_PROXY_SCHEMES: Final = ("http", "https")
PROXY_FORMS: Final = "allowed: http://HOST:PORT and https://HOST:PORT"


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


class _Named(Struct, frozen=True):
    name: str = ""


class _NamedCluster(_Named, frozen=True):
    cluster: ClusterEntry | None = None


class _NamedUser(_Named, frozen=True):
    user: UserEntry | None = None


class _NamedContext(_Named, frozen=True):
    context: ContextEntry | None = None


class _File(Struct, frozen=True, rename="kebab"):
    current_context: str | None = None
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

    def error(self, problem: str) -> AccessError:
        """Return the error with the place of the entry before the problem."""
        return AccessError(f"{self.file}: {self.kind} {quoted(self.name)}: {problem}")

    def path(self, text: str) -> Path:
        """Return a path of the entry; a relative one begins in the folder of the file."""
        return self.file.parent.absolute() / text

    def read(self, key: str, text: str) -> bytes:
        """Return the content of a file that a key of the entry names.

        Raises:
            AccessError: the file cannot be read.
        """
        try:
            return self.path(text).read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
            reason = error.strerror if isinstance(error, OSError) else "not a path"
            raise self.error(f"{key}: {one_line(text)}: {reason}") from None

    def data(self, key: str, path: str | None, encoded: str | None) -> bytes:
        """Return the content of a pair of keys: `key` with a path, or `key-data` with base64; empty for none.

        Raises:
            AccessError: both are set, the file cannot be read, or the text is not base64.
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
        AccessError: there is no file, a file cannot be read, or the context is incomplete.
    """
    files = [(path, _read_file(path)) for path in _existing_files(where)]
    if not files:
        raise AccessError(f"{one_line(where)}: no such kubeconfig")
    contexts = _entries(files, "context", ContextEntry)
    clusters = _entries(files, "cluster", ClusterEntry)
    users = _entries(files, "user", UserEntry)
    name = context or next((file.current_context for _, file in files if file.current_context), None)
    if not name:
        raise AccessError(f"{one_line(where)}: no current-context, and no context was given")
    if name not in contexts:
        known = f"; contexts: {listed(contexts)}" if contexts else ""
        raise AccessError(f"{one_line(where)}: no context {quoted(name)}{known}")
    chosen = contexts[name]
    cluster, user = chosen.value.cluster, chosen.value.user
    if not cluster:
        raise chosen.error("cluster: not set")
    if cluster not in clusters:
        raise chosen.error(f"cluster: no cluster {quoted(cluster)}")
    if user and user not in users:
        raise chosen.error(f"user: no user {quoted(user)}")
    no_user = KubeconfigEntry("user", "", chosen.file, UserEntry())
    return SelectedContext(chosen, clusters[cluster], users[user] if user else no_user)


def context_namespace(context: KubeconfigEntry[ContextEntry]) -> str:
    """Return the namespace of a context; `default` if it names none.

    Raises:
        AccessError: it is not the name of a namespace.
    """
    name = context.value.namespace or "default"
    if not is_dns_label(name):
        raise context.error(f"namespace: {quoted(name)} is not the name of a namespace")
    return name


def server_url(cluster: KubeconfigEntry[ClusterEntry]) -> str:
    """Return the address of the API server, `https://host:port` with an optional path.

    An address without a scheme means HTTP, as for kubectl.

    Raises:
        AccessError: the server is not set, or is no URL of HTTP or HTTPS.
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
    """Return the URL of the entry's proxy; None without one.

    Raises:
        AccessError: it is no URL of an HTTP proxy. The message quotes its scheme only, because the URL
            can contain a password.
    """
    url = cluster.value.proxy_url
    problem = proxy_problem(url) if url else ""
    if problem:
        raise cluster.error(f"proxy-url: {problem}; {PROXY_FORMS}")
    return url or None


def proxy_problem(url: str) -> str:
    """Return why a URL is not that of an HTTP proxy; empty if it is. Only its scheme is quoted."""
    parts = _split_url(url)
    if parts is None:
        return "not a URL"
    if not parts.scheme:
        return "no scheme"
    if parts.scheme not in _PROXY_SCHEMES:
        return f"scheme {quoted(parts.scheme)} is not supported"
    login = unquote(f"{parts.username}{parts.password}", errors="ignore")
    if max(login, default="") > "\xff":  # aiohttp sends Latin-1
        return "its user name or password has characters outside Latin-1"
    return "" if parts.netloc else "no host"


def _split_url(url: str) -> SplitResult | None:
    """Split a URL; None if its host or port is invalid, or a character is not allowed."""
    try:
        parts = urlsplit(url)
        _ = parts.port, (parts.hostname or "").encode("idna")  # as for the resolver
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
        AccessError: the file cannot be read, is not YAML, or has a value of a wrong type.
    """
    import yaml  # noqa: PLC0415 - for a kubeconfig only, since a service in a cluster has none

    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML raises most of them for a tag with an impossible value, such as `!!int ""`.
        raise AccessError(f"{path}: not YAML{_place(error)}") from None
    if document is None:
        return _File()
    if not isinstance(document, dict):
        raise AccessError(f"{path}: not a kubeconfig")
    try:
        return msgspec.convert(document, _File)
    except (msgspec.ValidationError, RecursionError) as error:
        raise AccessError(f"{path}: {_type_error(error)}") from None


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


def _entries(files: Sequence[tuple[Path, _File]], kind: str, type_: type[T]) -> dict[str, KubeconfigEntry[T]]:
    """Return the entries of a kind in all files by name; the first file with a name counts.

    Raises:
        AccessError: two entries of a file have the same name.
    """
    entries: dict[str, KubeconfigEntry[T]] = {}
    for path, file in files:
        names: set[str] = set()
        for entry in getattr(file, f"{kind}s") or ():
            if entry.name in names:
                raise AccessError(f"{path}: {kind}s: the name {quoted(entry.name)} occurs twice")
            names.add(entry.name)
            value = getattr(entry, kind) or type_()
            entries.setdefault(entry.name, KubeconfigEntry(kind, entry.name, path, value))
    return entries
