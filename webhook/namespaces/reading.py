"""Reads Namespaces with the caller's rights; sentences about those that the caller may not read."""

from collections.abc import Mapping
from typing import Final

from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.text import one_line
from webhook.namespaces.decode import LIST, ONE, PATH, NamespaceError, decode_metadata
from webhook.policy.labels import PolicyMetadata

VIEW_IS_ENOUGH: Final = "if it exists, the role view in that namespace is enough"
"""An API server answers 403 about a namespace that does not exist, too, unless the caller may get all."""


async def fetch_namespaces(
    client: KubeClient, name: str | None = None, params: Mapping[str, str] | None = None
) -> dict[str, PolicyMetadata]:
    """Return the policy's labels and annotations of one namespace, or of all that `params` selects, by name.

    Raises:
        ApiError, Unreachable, kube.access.AccessError: the namespaces cannot be read.
    """
    try:
        if name is not None:
            return {name: decode_metadata(await client.get(f"{PATH}/{name}", accept=ONE))[1]}
        async with client.list_objects(PATH, params=params, accept=LIST) as items:
            return dict([decode_metadata(item) async for item in items])
    except NamespaceError as error:
        raise Unreachable(f"GET {PATH}: {error}") from None


def may_not_get(namespace: str) -> str:
    """Say that the caller may not get a namespace."""
    return f"you may not get namespace {one_line(namespace)}"


def may_not_list(error: ApiError, instead: str) -> str:
    """Say that the caller may not list namespaces.

    Args:
        error: the refusal, which may name the user.
        instead: what needs fewer rights, as a clause.
    """
    user = f" as {one_line(error.user)}" if error.user else ""
    return f"you may not list namespaces{user}: {instead}"


def does_not_exist(namespace: str) -> str:
    """Say that a namespace does not exist."""
    return f"namespace {one_line(namespace)} does not exist in this cluster"
