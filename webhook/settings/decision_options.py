"""The settings that decide about pods, their options, and which of them are known."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kai.installation import SharingMode
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from kai.releases import Version
from service.command import namespace_names, read_by
from service.names import is_dns_subdomain
from service.text import quoted
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import read_default_mode
from webhook.policy.plain_gpu import NVIDIA_RUNTIME_CLASSES

NAMESPACE: Final = "kaishare"
"""The namespace of the ConfigMap with the published settings, unless an option names another."""
OPTIONS: Final[Mapping[str, str]] = {
    "--kai-version": "kai_version",
    "--inject-shares": "inject_shares",
    "--default-mode": "default_mode",
    "--exclude-namespaces": "excluded_namespaces",
    "--default-priority-class": "default_priority_class",
    "--gpu-runtime-classes": "gpu_runtime_classes",
    "--gpu-sharing-mode": "gpu_sharing_mode",
}
"""The settings in `DecisionSettings` by their options."""
SETTINGS: Final = frozenset(OPTIONS.values())
DEFAULT_CLASS: Final = OPTIONS["--default-priority-class"]
_DEFAULTS: Final = DecisionSettings()
_UNKNOWN: Final[Mapping[str, str]] = {
    "--kai-version": "KAI's release is not known: the answer holds for every release",
    "--inject-shares": "whether the webhook injects shares is not known: assumed true",
    "--exclude-namespaces": "the excluded namespaces are not known: assumed the default",
    "--default-mode": "the default mode is not known: assumed default",
    "--default-priority-class": "the default PriorityClass is not known: assumed none",
    "--gpu-sharing-mode": "KAI's sharing mode is not known: no option of a framework is set",
}
"""What the answer of a command assumes about a setting that is not known.

Further RuntimeClasses are assumed to be none; the reason of a pod that depends on them says so.
"""


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{quoted(text)} is not allowed; allowed: true, false")
    return text == "true"


def _class_names(text: str) -> frozenset[str]:
    names = frozenset(filter(None, text.split(",")))
    for name in sorted(names):
        if not is_dns_subdomain(name):
            raise ValueError(f"{quoted(name)} is not allowed; allowed: names of RuntimeClasses, as in A,B")
    return names


def _class_name(text: str) -> str:
    if not is_dns_subdomain(text):
        raise ValueError(f"{quoted(text)} is not allowed; allowed: the name of a PriorityClass")
    return text


def _mode(text: str) -> SharingMode:
    if text not in tuple(SharingMode):
        raise ValueError(f"{quoted(text)} is not allowed; allowed: {', '.join(SharingMode)}")
    return SharingMode(text)


READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "--kai-version": Version.parse,
    "--inject-shares": _boolean,
    "--default-mode": read_default_mode,
    "--exclude-namespaces": namespace_names,
    "--default-priority-class": _class_name,
    "--gpu-runtime-classes": _class_names,
    "--gpu-sharing-mode": _mode,
}
"""Reads the value of each option; raises ValueError for a value that is not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSettings:
    """Rules of which not every setting is known; an unknown one has its default."""

    rules: DecisionSettings = _DEFAULTS
    known: frozenset[str] = frozenset()
    """The names of the settings in `rules` that are known."""

    def completed_by(self, other: "KnownSettings") -> "KnownSettings":
        """Return these settings, with those of `other` for the ones that are not known here."""
        known = {name: getattr(self.rules, name) for name in self.known}
        return KnownSettings(rules=replace(other.rules, **known), known=self.known | other.known)

    def unknown(self) -> Iterator[str]:
        """Yield a sentence for each setting that is not known.

        Each sentence says what the answer assumes, and which option gives the setting.
        """
        for option, assumption in _UNKNOWN.items():
            if OPTIONS[option] not in self.known:
                yield f"{assumption}; give {option}"


def add_decision_options(parser: argparse.ArgumentParser, *, default: str = "") -> None:
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
    parser.add_argument(
        "--gpu-runtime-classes",
        type=read_by(READERS["--gpu-runtime-classes"]),
        metavar="A,B",
        help="RuntimeClasses of NVIDIA's container runtime, in which a share reaches its GPU, beside "
        f"{', '.join(NVIDIA_RUNTIME_CLASSES)} (default: {first}none)",
    )
    parser.add_argument(
        "--gpu-sharing-mode",
        type=read_by(READERS["--gpu-sharing-mode"]),
        metavar="MODE",
        help=f"KAI's global.gpuSharingMode: {', '.join(SharingMode)}; memory options of frameworks are set in"
        " NonMemoryEnforced only (default:"
        f" {f'{first}unknown' if default else 'read from kai-config if the policies come from the cluster'})",
    )


def parse_decision_options(arguments: argparse.Namespace) -> KnownSettings:
    """Return the settings that the command line gives."""
    values = {name: getattr(arguments, name) for name in SETTINGS}
    given = {name: value for name, value in values.items() if value is not None}
    return KnownSettings(rules=DecisionSettings(**given), known=frozenset(given))
