"""The settings that decide about pods: those of options, else those that the webhook has published."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from kai.own_labels import EXCLUDED_NAMESPACES
from kai.version import Version
from service.command import namespace_names, read_by
from service.names import is_dns_subdomain
from service.text import quoted
from webhook.policy.labels import Mode, read_default_mode
from webhook.policy.rules import Rules
from webhook.settings.document import PublishedSettings

OPTIONS: Final[Mapping[str, str]] = {
    "--kai-version": "kai_version",
    "--inject-shares": "inject_shares",
    "--default-mode": "default_mode",
    "--exclude-namespaces": "excluded_namespaces",
    "--default-priority-class": "default_priority_class",
}
"""The settings in `Rules` by their options."""


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{quoted(text)} is not allowed; allowed: true, false")
    return text == "true"


def _class_name(text: str) -> str:
    if not is_dns_subdomain(text):
        raise ValueError(f"{quoted(text)} is not allowed; allowed: the name of a PriorityClass")
    return text


READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "--kai-version": Version.parse,
    "--inject-shares": _boolean,
    "--default-mode": read_default_mode,
    "--exclude-namespaces": namespace_names,
    "--default-priority-class": _class_name,
}
"""Reads the value of each option; raises ValueError for a value that is not allowed."""


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


def add_rule_options(parser: argparse.ArgumentParser, *, default: str = "") -> None:
    """Add the options of the settings that decide about pods.

    Args:
        parser: the parser of a command.
        default: where the command finds a setting that is not given, for the help; empty for `serve`, which
            has its own defaults.
    """
    first = f"{default}; else " if default else ""
    parser.add_argument(
        "--kai-version",
        type=read_by(READERS["--kai-version"]),
        metavar="X.Y.Z",
        help=f"KAI's release (default: {first}unknown; only shares that every release supports are injected)",
    )
    parser.add_argument(
        "--inject-shares",
        type=read_by(READERS["--inject-shares"]),
        nargs="?",
        const=True,
        metavar="true|false",
        help=f"whether to inject default shares; false for a KAI with gpuSharing off (default: {first}true)",
    )
    parser.add_argument(
        "--default-mode",
        type=read_by(READERS["--default-mode"]),
        metavar="default|observe|off",
        help=f"mode of managed namespaces without the label kaishare.dev/mode (default: {first}default)",
    )
    parser.add_argument(
        "--exclude-namespaces",
        dest=OPTIONS["--exclude-namespaces"],
        type=read_by(READERS["--exclude-namespaces"]),
        metavar="A,B",
        help=f"namespaces whose pods are never changed; replaces the list (default: {first}"
        + ",".join(sorted(EXCLUDED_NAMESPACES))
        + ")",
    )
    parser.add_argument(
        "--default-priority-class",
        type=read_by(READERS["--default-priority-class"]),
        metavar="NAME",
        help="the cluster's default PriorityClass, the one with globalDefault (default:"
        f" {f'{first}none' if default else 'read from the cluster if the policies come from there'})",
    )


def parse_rule_options(arguments: argparse.Namespace) -> RuleOptions:
    """Return the given settings."""
    return RuleOptions(**{name: getattr(arguments, name) for name in OPTIONS.values()})
