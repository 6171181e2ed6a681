"""The form of the specs of admission policies and bindings, as far as doctor reads them."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from webhook.registration.objects import EVERYTHING, LabelSelector


class _Match(Struct, rename="camel"):
    namespace_selector: LabelSelector = EVERYTHING
    object_selector: LabelSelector = EVERYTHING
    resource_rules: list[dict[str, list[str] | str]] = []
    exclude_resource_rules: list[dict[str, list[str] | str]] = []


class _Variable(Struct):
    name: str
    expression: str


class _Spec(Struct, rename="camel"):
    variables: list[_Variable] = []
    match_constraints: _Match = msgspec.field(default_factory=_Match)
    match_resources: _Match = msgspec.field(default_factory=_Match)
    validation_actions: list[str] = []


def check_spec(spec: Mapping[str, Any]) -> None:
    """Check that the fields that doctor reads have the types of the API.

    Raises:
        msgspec.ValidationError: a field has another type; no API server returns such an object.
    """
    msgspec.convert(spec, _Spec)
