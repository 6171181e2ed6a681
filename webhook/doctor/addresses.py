"""Finds the addresses at which the API server reaches a webhook: a URL, or the endpoints of a Service."""

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from service.check_results import CheckResult, problem
from service.text import one_line
from webhook.doctor.api_reader import ApiReader, ListOutcome, ListSpec
from webhook.registration.objects import ClientConfig, ServiceReference

CHECK: Final = "certificate"
_SERVICES: Final = ListSpec(
    resource="services", verb="get", without="the webhook's certificate was not checked"
)
_SLICES: Final = ListSpec(
    resource="endpointslices", group="discovery.k8s.io", without="the webhook's certificate was not checked"
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
    """An address of the webhook, and the server name that the API server expects there."""

    host: str
    port: int
    name: str

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def addresses_of(
    reader: ApiReader, client: ClientConfig, place: str
) -> tuple[list[ProbeAddress], CheckResult | None]:
    """Return the addresses of a webhook, or a finding that explains why there are none."""
    if client.service is not None:
        return await _service_addresses(reader, client.service, place)
    try:
        parts = urlsplit(client.url or "")
        port = parts.port or 443
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme == "https" and parts.hostname:
        return [ProbeAddress(parts.hostname, port, parts.hostname)], None
    return [], problem(CHECK, f"{one_line(client.url or 'no address')} is not an https address")


async def _service_addresses(
    reader: ApiReader, service: ServiceReference, name: str
) -> tuple[list[ProbeAddress], CheckResult | None]:
    """Return the addresses of a Service's endpoints, or a finding that explains why there are none."""
    services = replace(_SERVICES, namespace=service.namespace)
    answer = await reader.get(services, service.name, msgspec.json.Decoder(_Service).decode)
    title = f"Service {service.namespace}/{service.name}"
    if answer is None:
        return [], problem(CHECK, f"{title} does not exist", "install the chart")
    if isinstance(answer, ListOutcome):
        return [], None  # reported with the missing rights
    if answer.spec.type == "ExternalName":
        return [ProbeAddress(answer.spec.external_name, service.port, name)], None
    params = {"labelSelector": f"kubernetes.io/service-name={service.name}"}
    of_service = replace(_SLICES, namespace=service.namespace, params=params)
    slices = await reader.list(of_service, msgspec.json.Decoder(_Slice).decode)
    if not slices.is_known:
        return [], None
    port_name = next((port.name for port in answer.spec.ports or () if port.port == service.port), None)
    if port_name is None:
        return [], problem(CHECK, f"{title} has no port {service.port}, which the API server calls")
    addresses = [
        ProbeAddress(endpoint.addresses[0], port.port, name)
        for endpoint_slice in slices.items
        for port in endpoint_slice.ports or ()
        if port.name == port_name and port.port
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.conditions.ready is not False and endpoint.addresses
    ]
    if not addresses:
        return [], problem(CHECK, f"{title} has no ready endpoint", "look at the pods of the webhook")
    return addresses, None
