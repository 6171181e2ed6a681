"""Reads Namespaces and the webhook's published settings with the caller's rights."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from service.text import MALFORMED, one_line
from webhook.namespaces.policy_source import LIST, ONE, PATH, NamespaceError, decode_metadata
from webhook.policy.labels import PolicyMetadata
from webhook.settings.decision_options import NAMESPACE
from webhook.settings.published_settings import KEY, NAME, PublishedSettings, SettingsError, decode_settings

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


class _ConfigMap(Struct):
    data: dict[str, str] | None = None


_config_map = msgspec.json.Decoder(_ConfigMap)


async def read_settings(client: KubeClient, namespace: str = NAMESPACE) -> PublishedSettings:
    """Read the settings that a cluster's webhook decides with.

    Args:
        client: for the API server, with the caller's rights.
        namespace: the namespace of the ConfigMap, which is that of the webhook.

    Raises:
        SettingsError: they cannot be read; the message is one line that names the ConfigMap and the reason.
    """
    place = f"ConfigMap {NAME} in namespace {namespace}"
    try:
        item = await client.get(f"/api/v1/namespaces/{namespace}/configmaps/{NAME}")
        text = (_config_map.decode(item).data or {}).get(KEY)
        reason = "the webhook has not written it yet"
        if text is not None:
            return decode_settings(text)
    except ApiError as error:
        reason = "it does not exist" if error.is_not_found else one_line(str(error))
        if error.is_forbidden:
            reason = "you may not get it"
    except (Unreachable, AccessError, SettingsError, *MALFORMED) as error:
        reason = one_line(str(error))
    raise SettingsError(f"{place}: {reason}")
