"""Where the API server finds a webhook: at a URL, or behind a Service."""

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from service.check_results import CheckResult, problem
from service.text import one_line
from webhook.doctor.api_reader import ApiReader, Completeness, ListSpec
from webhook.registration.objects import ClientConfig, ServiceReference

CHECK: Final = "certificate"
_SERVICES: Final = ListSpec(
    resource="services", verb="get", path="", without="which certificate the webhook serves was not checked"
)
_SLICES: Final = ListSpec(
    resource="endpointslices",
    group="discovery.k8s.io",
    path="",
    without="which certificate the webhook serves was not checked",
)


class _Port(Struct):
    name: str = ""
    port: int | None = None


class _ServiceSpec(Struct, rename="camel"):
    type: str = "ClusterIP"
    external_name: str = ""
    ports: list[_Port] | None = None


class _Service(Struct):
    spec: _ServiceSpec


class _Conditions(Struct):
    ready: bool | None = None


class _Endpoint(Struct):
    addresses: list[str]
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)


class _Slice(Struct):
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


@dataclass(frozen=True, slots=True)
class ProbeAddress:
    """Where something answers for the webhook, and by what name the API server asks for it."""

    host: str
    port: int
    name: str

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def addresses_of(
    reader: ApiReader, client: ClientConfig, place: str
) -> tuple[list[ProbeAddress], CheckResult | None]:
    """Where the API server finds a webhook; or what is wrong with that."""
    if client.service is not None:
        return await _behind(reader, client.service, place)
    found = _of_url(client.url or "")
    if found:
        return found, None
    return [], problem(CHECK, f"{one_line(client.url or 'no address')} is no https address")


def _of_url(url: str) -> list[ProbeAddress]:
    try:
        parts = urlsplit(url)
        port = parts.port or 443
    except ValueError:
        return []
    if parts.scheme != "https" or not parts.hostname:
        return []
    return [ProbeAddress(parts.hostname, port, parts.hostname)]


async def _behind(
    reader: ApiReader, service: ServiceReference, name: str
) -> tuple[list[ProbeAddress], CheckResult | None]:
    """Where a Service leads; or why that is not known."""
    path = f"/api/v1/namespaces/{service.namespace}/services"
    found = await reader.get(
        replace(_SERVICES, path=path), service.name, msgspec.json.Decoder(_Service).decode
    )
    shown = f"Service {service.namespace}/{service.name}"
    if found is None:
        return [], problem(CHECK, f"there is no {shown}: nobody answers", "install the chart")
    if isinstance(found, Completeness):
        return [], None  # said among the rights
    if found.spec.type == "ExternalName":
        return [ProbeAddress(found.spec.external_name, service.port, name)], None
    path = f"/apis/discovery.k8s.io/v1/namespaces/{service.namespace}/endpointslices"
    params = {"labelSelector": f"kubernetes.io/service-name={service.name}"}
    slices = await reader.list(
        replace(_SLICES, path=path, params=params), msgspec.json.Decoder(_Slice).decode
    )
    if not slices.is_known:
        return [], None
    port_name = next((one.name for one in found.spec.ports or () if one.port == service.port), None)
    if port_name is None:
        return [], problem(CHECK, f"{shown} has no port {service.port}, which the webhook is called at")
    addresses = [
        ProbeAddress(endpoint.addresses[0], port.port, name)
        for one in slices.items
        for port in one.ports or ()
        if port.name == port_name and port.port
        for endpoint in one.endpoints or ()
        if endpoint.conditions.ready is not False and endpoint.addresses
    ]
    if not addresses:
        return [], problem(
            CHECK, f"{shown} has no ready endpoint: nobody answers", "look at the pods of the webhook"
        )
    return addresses, None
