"""Excerpts of the container commands of a pod, kept undecoded until an Event needs advice.

Only pods that request a share have excerpts, and only of containers that mention a framework. They need no
further right and no request to the API server, and their size is limited. They may contain secrets, so they
are never printed or logged.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw, Struct

from kai.frameworks import MARKS, VARIABLES, Setting, settings_of
from kai.pod import Container
from service.text import MALFORMED

MOST_BYTES: Final = 4096
"""Maximum of all excerpts of one pod. The commands of published vLLM and TGI manifests have about 400
bytes."""
_MOST_LAUNCHES: Final = 8
_NOTHING: Final = Raw(b"")


class _Container(Struct):
    image: str | None = None
    command: Raw = _NOTHING
    args: Raw = _NOTHING
    env: Raw = _NOTHING


class _Spec(Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    ephemeral_containers: list[_Container] | None = None


class _Pod(Struct):
    spec: _Spec


_decode = msgspec.json.Decoder(_Pod).decode


class Launch:
    """Start of one container: image, command, arguments, and relevant environment variables."""

    __slots__ = ("_container",)

    def __init__(self, container: Container) -> None:
        """Take a container whose JSON is not a slice of a larger buffer."""
        self._container = container

    def setting(self) -> Setting | None:
        """Return the first framework that the container runs, and its memory setting."""
        container = self._container
        settings = settings_of(
            container.command_line,
            has_command=container.has_command,
            image=container.image,
            variables=container.variables,
        )
        return next(settings, None)


def launches_of(pod: bytes) -> tuple[Launch, ...]:
    """Return the excerpts of a pod's containers that mention a framework, within the size limit.

    A container whose excerpt exceeds the rest of the limit is skipped, and gets no advice.

    Args:
        pod: JSON of a well-formed pod.
    """
    if not _mentions_framework(pod):
        return ()
    try:
        spec = _decode(pod).spec
    except MALFORMED:
        return ()
    launches: list[Launch] = []
    left = MOST_BYTES
    for container in _containers(spec):
        parts = _parts(container)
        size = sum(map(len, parts))
        if size <= left and any(map(_mentions_framework, parts)):
            image, command, args, env = parts
            left -= size
            launches.append(
                Launch(Container(image=image.decode(), command=Raw(command), args=Raw(args), env=Raw(env)))
            )
            if len(launches) == _MOST_LAUNCHES:
                break
    return tuple(launches)


def _containers(spec: _Spec) -> Iterator[_Container]:
    for containers in (spec.containers, spec.init_containers, spec.ephemeral_containers):
        yield from containers or ()


def _parts(container: _Container) -> tuple[bytes, bytes, bytes, bytes]:
    """Return image, command, arguments and environment.

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
    return any(name in text for name in MARKS)
