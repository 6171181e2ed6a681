"""The settings of a preview: those of the command line, completed with those of the webhook. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from kai.version import Version
from webhook.policy.labels import Mode
from webhook.policy.rules import Rules
from webhook.settings.document import PublishedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOptions:
    """The settings that a command line gives; None for those that it does not give."""

    kai_version: Version | None = None
    inject_shares: bool | None = None
    excluded_namespaces: frozenset[str] | None = None
    default_mode: Mode | None = None
    default_priority_class: str | None = None

    def rules(self, published: PublishedSettings | None = None) -> Rules:
        """Return the settings for decisions: the given ones, else the published ones, else the defaults."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        return replace(published.rules if published else Rules(), **given)

    def unknown(self, published: PublishedSettings | None) -> Iterator[str]:
        """Yield a sentence for each setting of the webhook that is neither given nor published.

        Each sentence says what the answer assumes, and which option gives the setting.
        """
        if self.kai_version is None and published is None:
            yield "KAI's release is not known: the answer holds for every release; give --kai-version"
        if self.inject_shares is None and published is None:
            yield "whether the webhook injects shares is not known: assumed true; give --inject-shares"
        if self.excluded_namespaces is None and published is None:
            yield "the excluded namespaces are not known: assumed the default; give --exclude-namespaces"
        if self.default_mode is None and published is None:
            yield "the default mode is not known: assumed default; give --default-mode"
        if self.default_priority_class is None and not (published and published.knows_default_class):
            yield "the default PriorityClass is not known: assumed none; give --default-priority-class"
