"""The command `render`: the chart's files/policies, filled with the tables of the code and the settings."""

import argparse
import json
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Final

import yaml

from console.render.expressions import IS_SMALL_POD, VALUES
from kai.cel import cel_list, literal
from kai.releases import ACCEPTS_DOTTED_NAMES, READS_CONTAINER_NAME
from service.command import UsageError, read_by, write_document
from service.text import quoted
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode
from webhook.registration.configurations import (
    HAS_POLICY,
    NEVER_CHANGED,
    NEVER_REFUSED,
    NOT_OPTED_OUT,
    namespace_rule,
    namespaces_with,
    namespaces_without,
    pod_rule,
)
from webhook.settings.decision_options import add_decision_options, parse_decision_options

NAME: Final = "kaishare"  # of the MutatingAdmissionPolicy and of its binding
MUTATING: Final = "mutating.yaml"
VALIDATING: Final = "validating.yaml"
_OLDEST: Final = 36  # release 1.N of Kubernetes that serves and compiles the objects (run on 1.36.3)
_KINDS: Final = {"mutatingadmissionpolicy": MUTATING, "validatingadmissionpolicy": VALIDATING}
_KUBERNETES: Final = re.compile(r"v?1\.([0-9]{1,3})(?:\.[0-9]{1,4})?(?:[-+][0-9A-Za-z.+-]{1,60})?")
_IN_THE_WHEEL: Final = Path(__file__).parent / "policies"
_IN_THE_CHART: Final = Path(__file__).parents[2] / "deploy" / "helm" / "kaishare" / "files" / "policies"
POLICIES: Final = _IN_THE_WHEEL if (_IN_THE_WHEEL / MUTATING).exists() else _IN_THE_CHART
"""The wheel has a copy of the chart's folder."""
_INCLUDE: Final = re.compile(r"^( *)# include: ([a-z/.]+)$", re.MULTILINE)
_CONDITIONS: Final = (*NEVER_CHANGED, {"name": "is-small", "expression": IS_SMALL_POD})
RELEASES: Final[Mapping[str, tuple[str, Sequence[tuple[int, int, int]]]]] = {
    "readsContainerName": ("reads_container_name", READS_CONTAINER_NAME),
    "acceptsDottedNames": ("accepts_dotted_names", ACCEPTS_DOTTED_NAMES),
}
"""The settings that follow from KAI's release: the property of `kai.releases.Version`, and its releases."""


def text_of(file: str, rules: DecisionSettings) -> str:
    """Return a file of the policies as YAML with comments; the settings become variables of the policies."""
    text = Template(_INCLUDE.sub(_included, (POLICIES / file).read_text(encoding="utf-8")))
    return text.substitute(texts(rules.excluded_namespaces), **settings(rules))


def texts(excluded_namespaces: Collection[str]) -> dict[str, str]:
    """Return the texts of all placeholders without those of settings, by name."""
    changed = namespaces_without([Mode.OBSERVE, Mode.OFF], excluded_namespaces)
    verified = namespaces_with(Mode.ENFORCE, excluded_namespaces)
    return {
        **VALUES,
        "name": NAME,
        "neverChanged": _items(_CONDITIONS, indent=4),
        "notVerified": _items(NEVER_REFUSED, indent=4),
        "hasPolicyLabels": _items(HAS_POLICY, indent=4),
        "changedNamespaces": _items(changed["matchExpressions"], indent=8),
        "verifiedNamespaces": _items(verified["matchExpressions"], indent=8),
        "changedPods": _items(NOT_OPTED_OUT["matchExpressions"], indent=8),
        "podRules": _items([pod_rule()], indent=6),
        "namespaceRules": _items([namespace_rule()], indent=6),
    }


def tables(excluded_namespaces: str) -> dict[str, Any]:
    """Return what the chart needs beside the files: the texts of their placeholders, and the releases of KAI.

    `excluded_namespaces` stands for the list of excluded namespaces.
    """
    files = "".join(file.read_text(encoding="utf-8") for file in POLICIES.rglob("*.yaml"))
    since = {name: [".".join(map(str, each)) for each in first] for name, (_, first) in RELEASES.items()}
    every = sorted(texts([excluded_namespaces]).items())
    return {"releases": since, "texts": {name: text for name, text in every if f"${{{name}}}" in files}}


def _included(line: re.Match[str]) -> str:
    return textwrap.indent((POLICIES / line[2]).read_text(encoding="utf-8"), line[1]).rstrip("\n")


def settings(rules: DecisionSettings) -> Mapping[str, str]:
    """Return the expressions of the variables that hold settings, by name."""
    version = rules.kai_version
    return {
        "defaultMode": literal(rules.default_mode.value),
        "defaultPriorityClass": literal(rules.default_priority_class or ""),
        "injectShares": json.dumps(rules.inject_shares),
        "gpuRuntimeClasses": cel_list(sorted(rules.gpu_runtime_classes)),
        **{
            name: json.dumps(bool(version and getattr(version, each))) for name, (each, _) in RELEASES.items()
        },
    }


def objects_of(file: str, rules: DecisionSettings) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of the policies: arguments and errors as for `text_of`."""
    yield from yaml.safe_load_all(text_of(file, rules))


def _items(items: Collection[Mapping[str, Any]], *, indent: int) -> str:
    """Return a list as YAML; the first line has no indentation."""
    lines = []
    for item in items:
        for number, (key, value) in enumerate(item.items()):
            lines.append(f"{'- ' if number == 0 else '  '}{key}: {json.dumps(value)}")
    return f"\n{' ' * indent}".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `render`."""
    parser.description = "Prints kaishare's rules as admission policies, for kubectl apply; reads no cluster."
    parser.add_argument(
        "--as",
        dest="kind",
        required=True,
        choices=tuple(_KINDS),
        metavar="KIND",
        help=f"kind of the objects: {', '.join(_KINDS)}",
    )
    parser.add_argument(
        "--kube-version",
        type=read_by(_minor_version),
        metavar="1.N",
        help="the API server's release, to refuse one that lacks the kind (default: not checked)",
    )
    add_decision_options(parser)


def _minor_version(text: str) -> int:
    match = _KUBERNETES.fullmatch(text)
    if match is None:
        raise ValueError(f"{quoted(text)} is not a release of Kubernetes; allowed: such as 1.36")
    return int(match[1])


def run(arguments: argparse.Namespace) -> int:
    """Print the objects; raise UsageError if the API server does not serve the kind."""
    release = arguments.kube_version
    if release is not None and release < _OLDEST:
        raise UsageError(f"Kubernetes 1.{release} does not serve these policies; they need 1.{_OLDEST}")
    write_document(text_of(_KINDS[arguments.kind], parse_decision_options(arguments).rules))
    return 0
