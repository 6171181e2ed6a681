"""What the containers of a pod run, kept unread until an Event gives advice on it.

Only the command lines that mention a framework are kept, and only of pods that ask for a share: an excerpt
needs no further right and no request to the API server, and its size is bounded. Secrets can stand in it, so
nothing prints or logs it.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw, Struct

from kai.frameworks import MARKS, VARIABLES, Setting, settings_of
from kai.pod import Container
from service.text import MALFORMED

MOST_BYTES: Final = 4096
"""Of all excerpts of one pod. Command lines of published vLLM and TGI manifests have some 400 bytes."""
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
    """How one container starts its program: image, command, arguments, and the environment if it matters."""

    __slots__ = ("_container",)

    def __init__(self, container: Container) -> None:
        """Take a container whose JSON is no part of a larger buffer."""
        self._container = container

    def setting(self) -> Setting | None:
        """Return the first framework that the container runs, and what it was told to take."""
        container = self._container
        found = settings_of(
            container.command_line,
            has_command=container.has_command,
            image=container.image,
            variables=container.variables,
        )
        return next(found, None)


def launches_of(pod: bytes) -> tuple[Launch, ...]:
    """Keep how the containers of a pod are started, as far as a framework is mentioned and the bound allows.

    A container whose excerpt is larger than what is left of the bound is left out, and gets no advice.

    Args:
        pod: the JSON of a pod that can be read.
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
    """Return image, command, arguments and environment; the last is empty unless it sets a framework up."""
    env = bytes(container.env)
    return (
        (container.image or "").encode(),
        bytes(container.command),
        bytes(container.args),
        env if any(variable in env for variable in VARIABLES) else b"",
    )


def _mentions_framework(text: bytes) -> bool:
    return any(mark in text for mark in MARKS)
