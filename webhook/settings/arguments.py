"""The command-line options of the settings that decide about pods."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any, Final

from kai.own_labels import EXCLUDED_NAMESPACES
from kai.version import Version
from service.command import namespace_names, read_by
from service.names import is_dns_subdomain
from service.text import quoted
from webhook.policy.labels import read_default_mode
from webhook.settings.options import RuleOptions


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
    return RuleOptions(
        kai_version=arguments.kai_version,
        inject_shares=arguments.inject_shares,
        excluded_namespaces=arguments.exclude_namespaces,
        default_mode=arguments.default_mode,
        default_priority_class=arguments.default_priority_class,
    )
