"""The published settings as a JSON document. Pure."""

from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from kai.version import Version
from service.text import MALFORMED, one_line
from webhook.policy.labels import read_default_mode
from webhook.policy.rules import Rules
from webhook.settings.options import DEFAULT_CLASS, SETTINGS, KnownRules

NAME: Final = "kaishare-settings"
"""The name of the ConfigMap."""
KEY: Final = "settings.json"
"""The only key of its data."""
NAMESPACE: Final = "kaishare"
"""The namespace of the ConfigMap, unless an option names another."""
LONGEST: Final = 256 * 1024
"""Maximum length of the document, in characters. The API server stores at most 1 MiB in a ConfigMap."""


class SettingsError(ValueError):
    """The settings cannot be read; the message is one line."""


class _Document(Struct, rename="camel", kw_only=True, omit_defaults=False):
    version: str
    policies: Literal["cluster", "files"]
    kai_version: str | None
    inject_shares: bool
    excluded_namespaces: list[str]
    default_mode: str
    default_priority_class: str | UnsetType | None = UNSET
    form: Literal["policy"] | UnsetType = UNSET
    """Whether admission policies decide instead of a webhook; the chart then publishes the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSettings(KnownRules):
    """The settings of a running webhook. Kinds that are not namespaced are not published."""

    version: str
    """Release of kaishare."""
    policies: Literal["cluster", "files"]
    """Source of the policies: the labels of the cluster's namespaces, or files."""
    known: frozenset[str] = SETTINGS
    """Everything; without the default PriorityClass before the webhook has listed the classes."""


def encode_settings(settings: PublishedSettings) -> str:
    """Return the JSON document of settings, with sorted lists, so that equal settings give equal texts."""
    rules = settings.rules
    document = _Document(
        version=settings.version,
        policies=settings.policies,
        kai_version=str(rules.kai_version) if rules.kai_version else None,
        inject_shares=rules.inject_shares,
        excluded_namespaces=sorted(rules.excluded_namespaces),
        default_mode=rules.default_mode.value,
        default_priority_class=rules.default_priority_class if DEFAULT_CLASS in settings.known else UNSET,
        form="policy" if rules.by_admission_policies else UNSET,
    )
    return msgspec.json.encode(document).decode()


def decode_settings(text: str) -> PublishedSettings:
    """Read the JSON document of settings.

    Raises:
        SettingsError: the text is no such document; the message is one line.
    """
    if len(text) > LONGEST:
        raise SettingsError(f"more than {LONGEST} characters")
    try:
        document = msgspec.json.decode(text.encode(), type=_Document)
        default_class = document.default_priority_class
        return PublishedSettings(
            version=document.version,
            policies=document.policies,
            rules=Rules(
                kai_version=None if document.kai_version is None else Version.parse(document.kai_version),
                inject_shares=document.inject_shares,
                excluded_namespaces=frozenset(document.excluded_namespaces),
                default_mode=read_default_mode(document.default_mode),
                default_priority_class=None if default_class is UNSET else default_class,
                by_admission_policies=document.form == "policy",
            ),
            known=SETTINGS - {DEFAULT_CLASS} if default_class is UNSET else SETTINGS,
        )
    except (ValueError, *MALFORMED) as error:
        raise SettingsError(one_line(str(error))) from None
