"""Credential plugins of kubeconfigs, `users[].user.exec`, run as by client-go (plugin/pkg/client/auth)."""

import asyncio
import base64
import json
import os
import sys
from asyncio.subprocess import PIPE
from datetime import datetime
from typing import Any, Final, TextIO

import msgspec
from msgspec import Struct

from kube.kubeconfig import ClusterEntry, ExecEntry, KubeconfigEntry, UserEntry
from service.text import ELLIPSIS, LONGEST_LINE, MALFORMED, counted, one_line, quoted

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
