"""Reads the labels of Namespaces with the caller's rights."""

from typing import Final

from console.advise.policies import KnownNamespace
from kube.client import KubeClient
from kube.errors import ApiError
from webhook.namespaces.reading import fetch_namespaces

NOT_READ: Final = (
    "rows are by the share that pods had, and no command is given, because labels and caps are not known."
)
MAY_NOT_READ: Final = f"You may not read the Namespaces: {NOT_READ}"


async def read_namespaces(client: KubeClient, namespace: str | None) -> dict[str, KnownNamespace] | None:
    """Read the labels of all namespaces, or of one; return None if the caller may not.

    Args:
        client: for the API server, with the caller's rights.
        namespace: the only namespace to read; None for all.

    Raises:
        ApiError, Unreachable, kube.access.AccessError: the namespaces cannot be read for another reason.
    """
    try:
        namespaces = await fetch_namespaces(client, namespace)
    except ApiError as error:
        if error.is_forbidden:
            return None
        if error.is_not_found:
            return {}
        raise
    return {name: KnownNamespace(metadata, metadata.policy(name)) for name, metadata in namespaces.items()}
