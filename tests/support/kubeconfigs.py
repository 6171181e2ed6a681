"""Kubeconfigs for tests: right, odd and wrong ones, each with the outcome of kubectl 1.32."""

import base64
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

SECRET: Final = "s3cret"
"""Part of each wrong credential. No message contains it."""

_V1: Final = "client.authentication.k8s.io/v1"
_LINE: Final = f"{SECRET}\nsecond-{SECRET}"


@dataclass(frozen=True, slots=True)
class Base:
    """The right values of the API server in use."""

    server: str
    ca_file: Path
    token: str
    folder: Path
    """Folder of the kubeconfig, for files that it names."""

    @property
    def ca_data(self) -> str:
        """The certificate authority in base64."""
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
    """Write the kubeconfig of a case; return its path."""
    document = {
        "clusters": [
            {
                "name": "c",
                "cluster": _changed(
                    {"server": base.server, "certificate-authority-data": base.ca_data}, case.cluster, base
                ),
            }
        ],
        "users": [{"name": "u", "user": _changed({"token": base.token}, case.user, base)}],
        "contexts": [{"name": "x", "context": _changed({"cluster": "c", "user": "u"}, case.context, base)}],
        "current-context": "x",
    }
    path = base.folder / "kubeconfig"
    path.write_text(json.dumps(_changed(document, case.document, base)) if case.text is None else case.text)
    return path


def _changed(values: Mapping[str, Any], keys: Keys, base: Base) -> dict[str, Any]:
    changes = keys(base) if callable(keys) else keys
    merged = {**values, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def plugin(program: str = "", **keys: Any) -> Callable[[Base], dict[str, Any]]:
    """Return a user whose credential plugin runs a Python program."""

    def user(base: Base) -> dict[str, Any]:
        base.file("plugin.py", program.replace("TOKEN", base.token))
        entry = {
            "apiVersion": _V1,
            "command": sys.executable,
            "args": [str(base.folder / "plugin.py")],
            "interactiveMode": "Never",
            **keys,
        }
        return {"token": None, "exec": {key: value for key, value in entry.items() if value is not None}}

    return user


def printing(status: object, **keys: Any) -> Callable[[Base], dict[str, Any]]:
    """Return a user whose credential plugin prints a status."""
    printed = {"apiVersion": _V1, "kind": "ExecCredential", "status": status}
    return plugin(f"print({json.dumps(json.dumps(printed))})", **keys)


def file_token(content: str | bytes) -> Callable[[Base], dict[str, Any]]:
    """Return a user with a `tokenFile`."""

    def user(base: Base) -> dict[str, Any]:
        text = content.replace("TOKEN", base.token) if isinstance(content, str) else content
        return {"token": None, "tokenFile": base.file("token", text)}

    return user


def identity_token(signature: str) -> str:
    """Return a token of OpenID Connect that never expires."""
    parts = ({"alg": "none"}, {"sub": "someone"})
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return ".".join([*encoded, signature])


def b64(text: str) -> str:
    """Return a text in base64."""
    return base64.b64encode(text.encode()).decode()


CASES: Final[Mapping[str, Case]] = {
    "token": Case(),
    "certificate authority as a file": Case(
        cluster=lambda base: {"certificate-authority-data": None, "certificate-authority": str(base.ca_file)}
    ),
    "certificate authority with line breaks in base64": Case(
        cluster=lambda base: {"certificate-authority-data": "\n".join([base.ca_data[:64], base.ca_data[64:]])}
    ),
    "server with a slash at the end": Case(cluster=lambda base: {"server": f"{base.server}/"}),
    "server without a scheme, which means HTTP": Case(
        cluster=lambda base: {"server": base.server.removeprefix("https://")}, line="400 Bad Request"
    ),
    "server with an upper-case scheme": Case(
        cluster=lambda base: {"server": base.server.replace("https", "HTTPS")}
    ),
    "server with a name and a password": Case(
        cluster=lambda base: {"server": base.server.replace("https://", f"https://me:{SECRET}@")},
        line='cluster "c": server: a user name is not allowed in it',
    ),
    "server with an unknown scheme": Case(
        cluster=lambda base: {"server": base.server.replace("https", "ftp")},
        line='cluster "c": server: unknown scheme "ftp"; allowed: https://HOST:PORT',
    ),
    "server with a port that is no number": Case(
        cluster={"server": "https://127.0.0.1:port"}, line='cluster "c": server: not a URL'
    ),
    "server with a blank": Case(cluster={"server": "https://127.0.0.1 :1"}, line="server: not a URL"),
    "server with a line break": Case(cluster={"server": "https://127.0.0.1:1\n"}, line="server: not a URL"),
    "server with an empty part of its name": Case(
        cluster={"server": "https://a..b:1"}, line="server: not a URL"
    ),
    "server without a host": Case(cluster={"server": "https://"}, line="server: not a URL"),
    "server as a number": Case(
        cluster={"server": 6443}, line="clusters[0].cluster.server: has the type int, expected str"
    ),
    "no server": Case(cluster={"server": None}, line='cluster "c": server: not set'),
    "nothing listens": Case(
        cluster={"server": "https://127.0.0.1:1"}, line="127.0.0.1:1: Connection refused"
    ),
    "HTTP to the port of HTTPS": Case(
        cluster=lambda base: {"server": base.server.replace("https", "http")}, line="400"
    ),
    "no certificate authority": Case(
        cluster={"certificate-authority-data": None}, line="its certificate is not trusted"
    ),
    "certificate authority that is not base64": Case(
        cluster={"certificate-authority-data": "%%%"},
        line='cluster "c": certificate-authority-data: not base64',
    ),
    "certificate authority that is not PEM": Case(
        cluster={"certificate-authority-data": b64("no PEM")},
        line='cluster "c": certificate-authority: CA certificate: no certificate in PEM',
    ),
    "certificate authority whose file is missing": Case(
        cluster={"certificate-authority-data": None, "certificate-authority": "gone.crt"},
        line='cluster "c": certificate-authority: gone.crt: No such file or directory',
    ),
    "certificate authority as a file and as data": Case(
        cluster=lambda base: {"certificate-authority": str(base.ca_file)},
        line="certificate-authority and certificate-authority-data are both set",
    ),
    "no verification": Case(cluster={"certificate-authority-data": None, "insecure-skip-tls-verify": True}),
    "no verification, but a certificate authority": Case(
        cluster={"insecure-skip-tls-verify": True},
        line="certificate-authority and insecure-skip-tls-verify are both set",
    ),
    "name of the server that its certificate has": Case(cluster={"tls-server-name": "localhost"}),
    "name of the server that its certificate lacks": Case(
        cluster={"tls-server-name": "other.example"}, line="Hostname mismatch"
    ),
    "name of the server with a dot first": Case(
        cluster={"tls-server-name": ".localhost"},
        line='cluster "c": tls-server-name: ".localhost" is not a host name',
    ),
    "name of the server with a line break": Case(
        cluster={"tls-server-name": "local\nhost"}, line="is not trusted: Hostname mismatch"
    ),
    "proxy without a scheme": Case(
        cluster={"proxy-url": "nonsense"},
        line='cluster "c": proxy-url: no scheme; allowed: http://HOST:PORT and https://HOST:PORT',
    ),
    "proxy with an unknown scheme": Case(
        cluster={"proxy-url": f"ftp://me:{SECRET}@127.0.0.1:1"},
        line='cluster "c": proxy-url: scheme "ftp" is not supported',
    ),
    "proxy of SOCKS": Case(
        cluster={"proxy-url": "socks5://127.0.0.1:1"}, line='proxy-url: scheme "socks5" is not supported'
    ),
    "proxy that is no URL": Case(
        cluster={"proxy-url": f"http://me:{SECRET}@[::1"}, line="proxy-url: not a URL"
    ),
    "proxy without a host": Case(cluster={"proxy-url": "http://"}, line="proxy-url: no host"),
    "proxy that does not listen": Case(
        cluster={"proxy-url": f"http://me:{SECRET}@127.0.0.1:1"}, line="Connection refused"
    ),
    "empty proxy": Case(cluster={"proxy-url": ""}),
    "no token": Case(user={"token": None}, line="you may not list namespaces as system:anonymous"),
    "wrong token": Case(user={"token": SECRET}, line="401 Unauthorized"),
    "empty token": Case(user={"token": ""}, line="you may not list namespaces as system:anonymous"),
    "token as a number": Case(user={"token": 12345}, line="users[0].user.token: has the type int"),
    "token of two lines": Case(user={"token": _LINE}, line='user "u": token: a token has one line, got 2'),
    "token with a line break at the end": Case(
        user=lambda base: {"token": f"{base.token}\n"}, line='user "u": token: a line break or another'
    ),
    "token with a control character": Case(
        user={"token": f"{SECRET}\x07"}, line='user "u": token: a line break or another character'
    ),
    "token with other characters than ASCII": Case(
        user={"token": f"{SECRET}日本"}, line='user "u": token: a line break or another character'
    ),
    "token with a lone surrogate": Case(
        user={"token": f"{SECRET}\ud800"}, line='user "u": token: a line break or another character'
    ),
    "token and password": Case(
        user={"username": "me", "password": SECRET}, line="token and username are both set"
    ),
    "password": Case(
        user={"token": None, "username": "me", "password": f"{SECRET}\n"},
        line="you may not list namespaces as system:anonymous",
    ),
    "file with a token and a line break": Case(user=file_token("TOKEN\n")),
    "file with a token and blanks": Case(user=file_token(" \tTOKEN \r\n\n")),
    "file with two lines": Case(
        user=file_token(_LINE), line='user "u": tokenFile: token: a token has one line, got 2 lines'
    ),
    "file with other bytes than text": Case(
        user=file_token(b"\xff" + SECRET.encode()), line="tokenFile: token: a line break or another character"
    ),
    "file without a token": Case(user=file_token("\n"), line='user "u": tokenFile: token: empty'),
    "file of the token missing": Case(
        user={"token": None, "tokenFile": "gone"}, line='user "u": tokenFile: gone: No such file or directory'
    ),
    "file of the token is a folder": Case(
        user={"token": None, "tokenFile": "."}, line='user "u": tokenFile: .: Is a directory'
    ),
    "file before token": Case(user=lambda base: {**file_token("TOKEN")(base), "token": SECRET}),
    "client certificate without a key": Case(
        user={"client-certificate-data": b64("no PEM")}, line='user "u": client-key: not set'
    ),
    "client certificate that is not base64": Case(
        user={"client-certificate-data": "%", "client-key-data": "%"},
        line='user "u": client-certificate-data: not base64',
    ),
    "client certificate that is not PEM": Case(
        user={"client-certificate-data": b64("no PEM"), "client-key-data": b64(SECRET)},
        line='user "u": client-certificate: client certificate: ',
    ),
    "client key missing": Case(
        user=lambda base: {"client-certificate": str(base.ca_file), "client-key": "gone.key"},
        line='user "u": client-key: gone.key: No such file or directory',
    ),
    "client key that is not PEM": Case(
        user=lambda base: {"client-certificate": str(base.ca_file), "client-key-data": b64(SECRET)},
        line='user "u": client-certificate: client certificate: ',
    ),
    "client key with a pass phrase": Case(
        user=lambda base: {
            "client-certificate": str(base.ca_file),
            "client-key-data": b64(
                "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n"
                "-----END ENCRYPTED PRIVATE KEY-----\n"
            ),
        },
        line='user "u": client-certificate: client certificate: ',
    ),
    "impersonated user without rights": Case(
        user={"as": "reader"}, line="you may not list namespaces as reader"
    ),
    "impersonated user with a group that has rights": Case(
        user={"as": "reader", "as-groups": ["team", "system:masters"]}
    ),
    "impersonated user with groups without rights": Case(
        user={"as": "reader", "as-groups": ["team", "other"]}, line="you may not list namespaces as reader"
    ),
    "impersonated user with everything": Case(
        user={
            "as": "jürgen",
            "as-uid": "1234",
            "as-groups": ["system:masters"],
            "as-user-extra": {"Example.com/Reason %": ["a", "b"]},
        }
    ),
    "empty impersonation": Case(user={"as": "", "as-groups": [], "as-user-extra": {}}),
    "impersonated groups without a user": Case(
        user={"as-groups": ["system:masters"]}, line='user "u": as-uid, as-groups and as-user-extra need as'
    ),
    "impersonated UID without a user": Case(
        user={"as-uid": "1"}, line='user "u": as-uid, as-groups and as-user-extra need as'
    ),
    "impersonated extra without a user": Case(
        user={"as-user-extra": {"a": ["b"]}}, line='user "u": as-uid, as-groups and as-user-extra need as'
    ),
    "impersonated user of two lines": Case(
        user={"as": "a\nb", "as-groups": ["system:masters"]}, line='user "u": as: a line break or another'
    ),
    "impersonated group of two lines": Case(
        user={"as": "a", "as-groups": ["system:masters", "b\r\nc: d"]},
        line='user "u": as-groups: a line break or another',
    ),
    "impersonated extra of two lines": Case(
        user={"as": "a", "as-groups": ["system:masters"], "as-user-extra": {"k": ["v\x00"]}},
        line='user "u": as-user-extra: a line break or another',
    ),
    "impersonated user with a blank at the end": Case(
        user={"as": "reader "}, line='user "u": as: a blank at the beginning or end of a value'
    ),
    "impersonated groups as a text": Case(
        user={"as": "a", "as-groups": "system:masters"},
        line="users[0].user.as-groups: has the type str, expected array",
    ),
    "plugin": Case(user=printing({"token": "TOKEN"})),
    "plugin by a relative path": Case(
        user=lambda base: plugin(command=_script(base), args=None)(base),
    ),
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
    "plugin with an expired token": Case(
        user=printing({"token": "TOKEN", "expirationTimestamp": "2001-01-01T00:00:00Z"})
    ),
    "plugin with an expiry that is no time": Case(
        user=printing({"token": SECRET, "expirationTimestamp": "tomorrow"}),
        line="is not an ExecCredential in JSON",
    ),
    "plugin with an empty token": Case(
        user=printing({"token": ""}), line="its output has neither a token nor a certificate"
    ),
    "plugin with a token of two lines": Case(
        user=printing({"token": _LINE}), line='user "u": exec: token: a token has one line, got 2 lines'
    ),
    "plugin with a certificate and no key": Case(
        user=printing({"clientCertificateData": "x"}), line="a certificate or a key, but not both"
    ),
    "plugin with a certificate that is not PEM": Case(
        user=printing({"clientCertificateData": "x", "clientKeyData": SECRET}),
        line='user "u": exec: clientCertificateData: client certificate: ',
    ),
    "plugin without a status": Case(user=printing(None), line="its output has no status"),
    "plugin with a text as status": Case(user=printing(SECRET), line="is not an ExecCredential in JSON"),
    "plugin that prints no JSON": Case(
        user=plugin(f"print('{SECRET}')"), line="its output of 7 bytes is not an ExecCredential in JSON"
    ),
    "plugin that prints nothing": Case(user=plugin(), line="its output of 0 bytes is not an ExecCredential"),
    "plugin that prints another kind": Case(
        user=plugin(f"""print('{{"apiVersion": "{_V1}", "kind": "Pod", "status": {{"token": "x"}}}}')"""),
        line="the kind of its output is not ExecCredential",
    ),
    "plugin that prints another version": Case(
        user=printing({"token": "TOKEN"}, apiVersion="client.authentication.k8s.io/v1beta1"),
        line="the apiVersion of its output is not client.authentication.k8s.io/v1beta1",
    ),
    "plugin that fails": Case(
        user=plugin("import sys; sys.exit('first\\nsecond')"), line="exit status 1: first second"
    ),
    "plugin that is killed": Case(user=plugin("import os; os.kill(os.getpid(), 9)"), line="exit status -9"),
    "plugin that does not exist": Case(
        user=plugin(command="kaishare-no-such-plugin", installHint="Install it.\nThen run it."),
        line="kaishare-no-such-plugin: No such file or directory (Install it. Then run it.)",
    ),
    "plugin without a command": Case(user=plugin(command=None), line='user "u": exec: command: not set'),
    "plugin of a removed version": Case(
        user=printing({"token": "TOKEN"}, apiVersion="client.authentication.k8s.io/v1alpha1"),
        line='exec: apiVersion: "client.authentication.k8s.io/v1alpha1"; allowed: ',
    ),
    "plugin without a version": Case(
        user=printing({"token": "TOKEN"}, apiVersion=None), line="exec: apiVersion: not set; allowed: "
    ),
    "plugin without an interactive mode": Case(
        user=printing({"token": "TOKEN"}, interactiveMode=None), line="exec: interactiveMode: not set"
    ),
    "plugin that needs a terminal": Case(
        user=printing({"token": "TOKEN"}, interactiveMode="Always"),
        line="interactiveMode: Always needs a terminal",
    ),
    "plugin and auth-provider": Case(
        user=lambda base: {**printing({"token": "TOKEN"})(base), "auth-provider": {"name": "oidc"}},
        line="exec and auth-provider are both set",
    ),
    "plugin is not run for a user with a token": Case(
        user=lambda base: {**plugin("import sys; sys.exit(1)")(base), "token": base.token}
    ),
    "auth-provider that is unknown": Case(
        user={"token": None, "auth-provider": {"name": "azure"}},
        line='user "u": auth-provider: "azure" is unknown; allowed: oidc and gcp',
    ),
    "auth-provider without a configuration": Case(
        user={"token": None, "auth-provider": {"name": "oidc"}}, line="auth-provider: oidc: incomplete"
    ),
    "auth-provider with a token of two lines": Case(
        user={
            "token": None,
            "auth-provider": {"name": "oidc", "config": {"id-token": identity_token(_LINE)}},
        },
        line="auth-provider: oidc: a token has one line, got 2 lines",
    ),
    "namespace": Case(context={"namespace": "team-a"}),
    "namespace that no name is, where none is needed": Case(context={"namespace": "Team/A"}),
    "context that does not exist": Case(
        document={"current-context": "y"}, line='kubeconfig: no context "y"; contexts: x'
    ),
    "context of the option that does not exist": Case(
        options=("--context", "z"), line='kubeconfig: no context "z"; contexts: x'
    ),
    "no current context": Case(document={"current-context": None}, line="kubeconfig: no current-context"),
    "user that does not exist": Case(context={"user": "v"}, line='context "x": user: no user "v"'),
    "no user": Case(context={"user": None}, line="you may not list namespaces as system:anonymous"),
    "cluster that does not exist": Case(
        context={"cluster": "d"}, line='context "x": cluster: no cluster "d"'
    ),
    "no cluster": Case(context={"cluster": None}, line='context "x": cluster: not set'),
    "user twice": Case(
        document={"users": [{"name": "u", "user": {}}] * 2}, line='users: the name "u" occurs twice'
    ),
    "users as a map": Case(document={"users": {"u": {}}}, line="users: has the type object, expected array"),
    "users null": Case(
        document={"users": None},
        context={"user": None},
        line="you may not list namespaces as system:anonymous",
    ),
    "unknown keys": Case(document={"preferences": {}, "other": 1}, cluster={"other": 1}, user={"other": [1]}),
    "empty file": Case(text="", line="kubeconfig: no current-context"),
    "list instead of a document": Case(text="[1, 2]", line="kubeconfig: not a kubeconfig"),
    "no YAML": Case(
        text=f"users:\n- user:\n    token: {SECRET}: {SECRET}\n", line="kubeconfig: not YAML: line 3, column"
    ),
    "unknown YAML tag": Case(text=f"users: !{SECRET} 1\n", line="kubeconfig: not YAML: line 1, column"),
    "NUL character": Case(text="\0", line="kubeconfig: not YAML"),
}


def _script(base: Base) -> str:
    """Write an executable plugin next to the kubeconfig; return its relative path."""
    printed = json.dumps({"apiVersion": _V1, "kind": "ExecCredential", "status": {"token": base.token}})
    base.file("get-token", f"#!/bin/sh\necho '{printed}'\n")
    (base.folder / "get-token").chmod(0o755)
    return "./get-token"
