"""Reads the published settings of a cluster's webhook with the caller's rights."""

import msgspec
from msgspec import Struct

from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.text import MALFORMED, one_line
from webhook.settings.document import KEY, NAME, NAMESPACE, PublishedSettings, SettingsError, decode_settings


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
