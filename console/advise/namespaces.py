"""Reads the labels of Namespaces with the caller's rights."""

from typing import Final

from console.advise.policies import KnownNamespace
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from webhook.namespaces.decode import LIST, ONE, PATH, NamespaceError, decode_metadata

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
    known: dict[str, KnownNamespace] = {}
    try:
        if namespace is not None:
            _add(known, await client.get(f"{PATH}/{namespace}", accept=ONE))
            return known
        async with client.list_objects(PATH, accept=LIST) as items:
            async for item in items:
                _add(known, item)
    except ApiError as error:
        if error.is_forbidden:
            return None
        if error.is_not_found:
            return known
        raise
    return known


def _add(known: dict[str, KnownNamespace], item: bytes) -> None:
    try:
        name, metadata = decode_metadata(item)
    except NamespaceError as error:
        raise Unreachable(f"GET {PATH}: {error}") from None
    known[name] = KnownNamespace(metadata, metadata.policy(name))
