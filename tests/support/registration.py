"""kaishare's webhook configurations with an address, as an installation registers them."""

import base64
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from kai.kaishare_keys import EXCLUDED_NAMESPACES
from kube.metadata import NAME_LABEL
from webhook.registration import configurations
from webhook.registration.configurations import CONFIGURATION_NAME, PATHS


@dataclass(frozen=True, kw_only=True)
class ServiceTarget:
    """The webhook's Service in the cluster."""

    namespace: str
    name: str
    port: int = 443

    def client_config(self, path: str) -> dict[str, Any]:
        return {"service": {"namespace": self.namespace, "name": self.name, "path": path, "port": self.port}}


@dataclass(frozen=True)
class UrlTarget:
    """The webhook's URL without a path."""

    url: str

    def client_config(self, path: str) -> dict[str, Any]:
        return {"url": self.url.rstrip("/") + path}


Target = ServiceTarget | UrlTarget


def mutating_configuration(target: Target, **options: Any) -> dict[str, Any]:
    return _registered(configurations.mutating_configuration(), target, **options)


def validating_configuration(target: Target, **options: Any) -> dict[str, Any]:
    return _registered(configurations.validating_configuration(), target, **options)


def _registered(
    configuration: dict[str, Any],
    target: Target,
    *,
    ca_bundle: bytes = b"",
    excluded: Collection[str] = EXCLUDED_NAMESPACES,
    name: str = CONFIGURATION_NAME,
) -> dict[str, Any]:
    configuration["metadata"]["name"] = name
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"] = target.client_config(PATHS[webhook["name"]])
        if ca_bundle:
            webhook["clientConfig"]["caBundle"] = base64.b64encode(ca_bundle).decode()
        for line in webhook["namespaceSelector"].get("matchExpressions", ()):
            if line["key"] == NAME_LABEL:
                line["values"] = sorted(excluded)
    return configuration
