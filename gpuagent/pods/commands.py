"""Excerpts of the container commands of a pod, kept undecoded until an Event needs advice.

Only pods that request a share have excerpts, and only of containers that mention a framework. They need no
further right and no request to the API server, and their size is limited. They may contain secrets, so they
are never printed or logged.
"""

from typing import Final

from msgspec import Raw

from kai.frameworks import MARKS, VARIABLES
from kai.pod import Container, MalformedPod, decode_pod

MOST_BYTES: Final = 4096
"""Maximum of all excerpts of one pod. The commands of published vLLM and TGI manifests have about 400
bytes."""
_MOST_COMMANDS: Final = 8


class ContainerCommand(Container):
    """Image, command, arguments, and relevant environment variables of one container."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def commands_of(pod: bytes) -> tuple[ContainerCommand, ...]:
    """Return the excerpts of a pod's containers that mention a framework, within the size limit.

    A container whose excerpt exceeds the rest of the limit is skipped, and gets no advice.

    Args:
        pod: JSON of a well-formed pod.
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
    return any(name in text for name in MARKS)
