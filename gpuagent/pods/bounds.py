"""Limits on what is kept of one object: its strings, and excerpts of its containers' commands. Pure.

The API server accepts any number of labels, 256 KiB of annotations and 1.5 MiB per request. Without limits a
tenant could exhaust the agent's memory with pods. A pods file has no limits at all.

Only pods that request a share have excerpts, and only of containers that mention a framework. They need no
further right and no request to the API server, and their size is limited. They may contain secrets, so they
are never printed or logged.
"""

import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from gpuagent.pods.objects import Metadata
from kai import keys
from kai.frameworks import MARKS, VARIABLES
from kai.pod import Container, MalformedPod, decode_pod
from service.names import LONGEST_LABEL, LONGEST_SUBDOMAIN

LONGEST_NAME: Final = LONGEST_SUBDOMAIN
"""Maximum of characters of an object's name."""
LONGEST_KIND: Final = LONGEST_LABEL
"""Maximum of characters of an object's kind."""
_LONGEST_KEY: Final = LONGEST_SUBDOMAIN + 1 + LONGEST_LABEL
"""Maximum of characters of a label or annotation key (a qualified name in Kubernetes)."""
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_ENTRY_BYTES: Final = 100
"""Memory of one dict entry, without its key and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StringBounds:
    """Limits on one map of strings."""

    total_bytes: int
    """Memory of all entries together."""
    longest_value: int
    """Maximum of characters; a longer value is dropped, since a truncated one would be a different value."""
    read: frozenset[str]
    """Keys that take precedence over all others."""

    def kept(self, strings: Mapping[str, str | None] | None) -> dict[str, str]:
        """Return the entries that fit: first the keys that the agent reads, then the shortest entries.

        Null becomes the empty string, as in Go.
        """
        fitting = {
            key: text or ""
            for key, text in (strings or {}).items()
            if len(key) <= _LONGEST_KEY and len(text or "") <= self.longest_value
        }
        costs = {
            key: sys.getsizeof(key) + sys.getsizeof(text) + _ENTRY_BYTES for key, text in fitting.items()
        }
        if sum(costs.values()) <= self.total_bytes:
            return fitting
        kept: dict[str, str] = {}
        left = self.total_bytes
        for key in sorted(costs, key=lambda key: (self._rank(key), costs[key], key)):
            if costs[key] <= left:
                left -= costs[key]
                kept[key] = fitting[key]
        return kept

    def too_long(self, strings: Mapping[str, str | None] | None, wanted: Collection[str]) -> list[str]:
        """Return the wanted keys whose values are too long."""
        present = strings or {}
        return [key for key in wanted if len(present.get(key) or "") > self.longest_value]

    def _rank(self, key: str) -> int:
        if key in self.read:
            return 0
        return 1 if key.startswith(keys.READ_PREFIXES) else 2


LABELS: Final = StringBounds(total_bytes=8 * 1024, longest_value=LONGEST_LABEL, read=keys.READ_LABELS)
ANNOTATIONS: Final = StringBounds(total_bytes=20 * 1024, longest_value=4096, read=keys.READ_ANNOTATIONS)


def creation_time(metadata: Metadata) -> str:
    """Return the creation time of an object, which sorts like text; empty if there is none."""
    text = metadata.creation_timestamp or ""
    return text if _TIME.fullmatch(text) else ""


def bounded(text: str | None, longest: int = LONGEST_NAME) -> str:
    """Return the text, or the empty string if it is too long to be a name."""
    return text if text is not None and len(text) <= longest else ""


_NAMES: Final = (*MARKS, *VARIABLES)
MOST_BYTES: Final = 4096
"""Maximum of all excerpts of one pod. The commands of published vLLM and TGI manifests have about 400
bytes."""
_MOST_COMMANDS: Final = 8


class ContainerCommand(Container):
    """Image, command, arguments, and relevant environment variables of one container."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def commands_of(pod: bytes) -> tuple[ContainerCommand, ...]:
    """Return the excerpts of a well-formed pod's containers that mention a framework, within the size limit.

    A container whose excerpt exceeds the rest of the limit is skipped, and gets no advice.
    """
    if not _mentions_framework(pod):
        return ()
    try:
        containers = decode_pod(pod).all_containers
    except MalformedPod:
        return ()
    commands: list[ContainerCommand] = []
    left = MOST_BYTES
    for container in containers:
        image, command, args, env = parts = _parts(container)
        size = sum(map(len, parts))
        if size <= left and any(map(_mentions_framework, parts)):
            left -= size
            commands.append(
                ContainerCommand(image=image.decode(), command=Raw(command), args=Raw(args), env=Raw(env))
            )
            if len(commands) == _MOST_COMMANDS:
                break
    return tuple(commands)


def _parts(container: Container) -> tuple[bytes, bytes, bytes, bytes]:
    """Return copies of image, command, arguments and environment.

    The environment is empty unless it configures a framework.
    """
    env = bytes(container.env)
    return (
        (container.image or "").encode(),
        bytes(container.command),
        bytes(container.args),
        env if any(variable in env for variable in VARIABLES) else b"",
    )


def _mentions_framework(text: bytes) -> bool:
    return any(name in text for name in _NAMES)
