"""Kubeconfigs for tests: right, odd and wrong ones, each with the outcome of kubectl 1.32."""

import base64
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.credentials import kubeconfig_of

SECRET: Final = "s3cret"
"""Part of each wrong credential. No message contains it."""

_TOKEN: Final = {"token": "TOKEN"}
_V1: Final = "client.authentication.k8s.io/v1"
_LINE: Final = f"{SECRET}\nsecond-{SECRET}"
_ENCRYPTED: Final = (
    "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n-----END ENCRYPTED PRIVATE KEY-----\n"
)


@dataclass(frozen=True, slots=True)
class Base:
    """The right values of the API server in use."""

    server: str
    ca_file: Path
    token: str
    folder: Path

    @property
    def ca_data(self) -> str:
        return base64.b64encode(self.ca_file.read_bytes()).decode()

    def file(self, name: str, content: str | bytes) -> str:
        """Write a file next to the kubeconfig; return its name."""
        (self.folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return name


Keys = Mapping[str, Any] | Callable[[Base], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kubeconfig with one property, and its outcome."""

    line: str = ""
    """Part of the error line; empty: the kubeconfig works."""
    cluster: Keys = field(default_factory=dict)
    """Keys that are changed; a value of None removes the key."""
    user: Keys = field(default_factory=dict)
    context: Keys = field(default_factory=dict)
    document: Keys = field(default_factory=dict)
    text: str | None = None
    """Content of the file instead of a document."""
    options: tuple[str, ...] = ()


def write(case: Case, base: Base) -> Path:
    cluster = {"server": base.server, "certificate-authority-data": base.ca_data}
    document = kubeconfig_of(
        _changed(cluster, case.cluster, base), _changed({"token": base.token}, case.user, base)
    )
    (context,) = document["contexts"]
    context["context"] = _changed(context["context"], case.context, base)
    path = base.folder / "kubeconfig"
    path.write_text(json.dumps(_changed(document, case.document, base)) if case.text is None else case.text)
    return path


def _changed(values: Mapping[str, Any], keys: Keys, base: Base) -> dict[str, Any]:
    changes = keys(base) if callable(keys) else keys
    merged = {**values, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def plugin(program: str = "", **keys: Any) -> Callable[[Base], dict[str, Any]]:
    def user(base: Base) -> dict[str, Any]:
        base.file("plugin.py", program.replace("TOKEN", base.token))
        entry = {
            "apiVersion": _V1, "command": sys.executable, "args": [str(base.folder / "plugin.py")],
            "interactiveMode": "Never", **keys,
        }  # fmt: skip
        return {"token": None, "exec": {key: value for key, value in entry.items() if value is not None}}

    return user


def printing(status: object, **keys: Any) -> Callable[[Base], dict[str, Any]]:
    printed = {"apiVersion": _V1, "kind": "ExecCredential", "status": status}
    return plugin(f"print({json.dumps(json.dumps(printed))})", **keys)


def file_token(content: str | bytes) -> Callable[[Base], dict[str, Any]]:
    def user(base: Base) -> dict[str, Any]:
        text = content.replace("TOKEN", base.token) if isinstance(content, str) else content
        return {"token": None, "tokenFile": base.file("token", text)}

    return user


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


CASES: Final[Mapping[str, Case]] = {
    "token": Case(),
    "certificate authority as a file": Case(
        cluster=lambda base: {"certificate-authority-data": None, "certificate-authority": str(base.ca_file)},
    ),
    "certificate authority with line breaks in base64": Case(
        cluster=lambda base: {"certificate-authority-data": "\n".join([base.ca_data[:64], base.ca_data[64:]])},
    ),
    "server with a slash at the end": Case(cluster=lambda base: {"server": f"{base.server}/"}),
    "server without a scheme, which means HTTP": Case(
        cluster=lambda base: {"server": base.server.removeprefix("https://")}, line="400 Bad Request",
    ),
    "server with a name and a password": Case(
        cluster=lambda base: {"server": base.server.replace("https://", f"https://me:{SECRET}@")},
        line='cluster "c": server: expected https://HOST:PORT',
    ),
    **{
        f"server {server!r}": Case(cluster={"server": server}, line='cluster "c": server: expected https://')
        for server in ("ftp://127.0.0.1:1", "https://127.0.0.1:port", "https://127.0.0.1 :1", "https://127.0.0.1:1\n",
                       "https://a..b:1", "https://", "")
    },
    "server as a number": Case(cluster={"server": 6443}, line='"c": server: expected https://HOST:PORT'),
    "no certificate authority": Case(cluster={"certificate-authority-data": None}, line="its certificate is not trusted"),
    "certificate authority that is not base64": Case(
        cluster={"certificate-authority-data": "%%%"}, line='cluster "c": certificate-authority-data: not base64',
    ),
    "certificate authority that is not PEM": Case(
        cluster={"certificate-authority-data": b64("no PEM")},
        line='cluster "c": certificate-authority: no certificate in PEM',
    ),
    "no verification": Case(cluster={"certificate-authority-data": None, "insecure-skip-tls-verify": True}),
    "name of the server that its certificate has": Case(cluster={"tls-server-name": "localhost"}),
    "name of the server that its certificate lacks": Case(cluster={"tls-server-name": "other.example"}, line="Hostname mismatch"),
    "name of the server with a dot first": Case(
        cluster={"tls-server-name": ".localhost"}, line='cluster "c": tls-server-name: not a host name',
    ),
    **{
        f"proxy {url!r}": Case(cluster={"proxy-url": url}, line='"c": proxy-url: expected http://HOST:PORT')
        for url in ("nonsense", f"ftp://me:{SECRET}@127.0.0.1:1", "socks5://127.0.0.1:1", f"http://me:{SECRET}@[::1", "http://",
                    f"http://me:{SECRET}-€@127.0.0.1:1")
    },
    "proxy that does not listen": Case(cluster={"proxy-url": f"http://me:{SECRET}@127.0.0.1:1"}, line="Connection refused"),
    "no token": Case(user={"token": None}, line="you may not list namespaces as system:anonymous"),
    "token as a number": Case(user={"token": 12345}, line='user "u": token: Expected `str`, got `int`'),
    **{
        f"token {token!r}": Case(user={"token": token}, line='user "u": the token is not one line of ASCII')
        for token in (_LINE, f"{SECRET}\n", f"{SECRET}\x07", f"{SECRET}日本", f"{SECRET}\ud800")
    },
    "file with a token and blanks": Case(user=file_token(" \tTOKEN \r\n\n")),
    "file with two lines": Case(user=file_token(_LINE), line="the token is not one line of ASCII text"),
    "no file of the token": Case(user={"token": None, "tokenFile": "gone"}, line='user "u": tokenFile: gone: No such file or directory'),
    "file before token": Case(user=lambda base: {**file_token("TOKEN")(base), "token": SECRET}),
    **{
        f"client certificate {name}": Case(user=keys, line='"u": client-certificate: no certificate with its')
        for name, keys in {
            "without a key": {"client-certificate-data": b64("no PEM")},
            "that is not PEM": {"client-certificate-data": b64("no PEM"), "client-key-data": b64(SECRET)},
        }.items()
    },
    "client key with a pass phrase": Case(
        user=lambda base: {"client-certificate": str(base.ca_file), "client-key-data": b64(_ENCRYPTED)},
        line='user "u": client-certificate: no certificate with its unencrypted key',
    ),
    "plugin": Case(user=printing(_TOKEN)),
    "plugin by a relative path": Case(user=lambda base: plugin(command=_script(base), args=None)(base)),
    "plugin with the cluster's address": Case(
        user=lambda base: plugin(
            "import json, os\n"
            "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
            f"assert info['spec']['cluster']['server'] == {base.server!r}, info\n"
            f"print(json.dumps({{'apiVersion': {_V1!r}, 'kind': 'ExecCredential',"
            " 'status': {'token': 'TOKEN'}}))",
            provideClusterInfo=True,
        )(base)
    ),
    "plugin with an expired token": Case(user=printing({"token": "TOKEN", "expirationTimestamp": "2001-01-01T00:00:00Z"})),
    **{
        f"plugin that prints the status {status!r}": Case(user=printing(status), line="its output is no ExecCred")
        for status in (None, SECRET, {"token": ""}, {"token": None}, {"token": [SECRET]})
    },
    **{
        f"plugin that prints {text!r}": Case(user=plugin(f"print({text!r})"), line="its output is no ExecCred")
        for text in ("", SECRET, "[]", f'{{"apiVersion": "{_V1}", "kind": "Pod", "status": {{"token": "x"}}}}')
    },
    "plugin that prints another version": Case(
        user=printing(_TOKEN, apiVersion="client.authentication.k8s.io/v1beta1"),
        line="its output is no ExecCredential of client.authentication.k8s.io/v1beta1",
    ),
    "plugin that fails": Case(user=plugin("import sys; sys.exit(1)"), line="exit status 1"),
    "plugin that does not exist": Case(
        user=plugin(command="kaishare-no-such-plugin", installHint="Install it.\nThen run it."),
        line="kaishare-no-such-plugin: Install it. Then run it.: No such file or directory",
    ),
    "plugin without a command": Case(user=plugin(command=None), line='user "u": exec: no command'),
    "plugin of a removed version": Case(
        user=printing(_TOKEN, apiVersion="client.authentication.k8s.io/v1alpha1"),
        line='exec: apiVersion "client.authentication.k8s.io/v1alpha1", ',
    ),
    "plugin without a mode": Case(user=printing(_TOKEN, interactiveMode=None), line='interactiveMode "": not supported'),
    "plugin for a terminal": Case(user=printing(_TOKEN, interactiveMode="Always"), line="interactiveMode: Always needs a terminal"),
    "plugin is not run for a user with a token": Case(
        user=lambda base: {**plugin("import sys; sys.exit(1)")(base), "token": base.token},
    ),
    "namespace that no name is, where none is needed": Case(context={"namespace": "Team/A"}),
    "context that does not exist": Case(document={"current-context": "y"}, line='kubeconfig: no context "y"; contexts: x'),
    "context of the option that does not exist": Case(options=("--context", "z"), line='kubeconfig: no context "z"; contexts: x'),
    "no current context": Case(document={"current-context": None}, line="kubeconfig: no current-context"),
    "user that does not exist": Case(context={"user": "v"}, line='context "x": no user "v"'),
    "no user": Case(context={"user": None}, line="you may not list namespaces as system:anonymous"),
    "cluster that does not exist": Case(context={"cluster": "d"}, line='context "x": no cluster "d"'),
    "users as a map": Case(document={"users": {"u": {}}}, line="users: Expected `array`, got `object`"),
    "unknown keys": Case(document={"preferences": {}, "other": 1}, cluster={"other": 1}, user={"other": [1]}),
    "empty file": Case(text="", line="kubeconfig: no current-context"),
    "no YAML": Case(text=f"users:\n- user:\n    token: {SECRET}: {SECRET}\n", line="kubeconfig: not a kubeconfig in YAML: line 3, column"),
    **{
        f"YAML {text[:20]!r}": Case(text=text, line="kubeconfig: not a kubeconfig in YAML")
        for text in (f"users: !{SECRET} 1", "\0", "[" * 5000, 'a: !!int ""', "a: !!timestamp x", "a: !!bool x")
    },
}  # fmt: skip


def _script(base: Base) -> str:
    """Write an executable plugin next to the kubeconfig; return its relative path."""
    printed = json.dumps({"apiVersion": _V1, "kind": "ExecCredential", "status": {"token": base.token}})
    base.file("get-token", f"#!/bin/sh\necho '{printed}'\n")
    (base.folder / "get-token").chmod(0o755)
    return "./get-token"
