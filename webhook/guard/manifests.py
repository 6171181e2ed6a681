"""The guard's objects: the files in policies/ and bindings/, with the lists from the code filled in.

`deploy/render.py` writes them to deploy/guard and into the chart, and `doctor` compares a cluster with them.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from string import Template
from typing import Any, Final

import yaml

from kai import keys
from kai.cel import cel_list
from kai.installation import RESERVATION_NAMESPACE
from kai.key_classes import (
    CONFIG_MAP_NAME,
    CREATION_KEYS,
    EXTENDED_RESOURCE_CLAIM,
    FREE_KEYS,
    PREFIXES,
    RESERVED_APPS,
    KeyKind,
    On,
    beginning_with,
    fixed_keys,
    kept_on_owners,
    removable_from_pods,
)
from kai.own_labels import EXCLUDED_NAMESPACES

FILES: Final = (
    "policies/keys.yaml",
    "policies/queues.yaml",
    "policies/owners.yaml",
    "policies/references.yaml",
    "bindings/enforce.yaml",
    "bindings/vclusters.yaml",
)
"""The files of the guard, in the order in which they are applied."""

_WIDTH: Final = 118
"""Maximum length of a line of a filled-in list."""
_OWN_LINE: Final = re.compile(r"^( +)\$\{(\w+)\}$", re.MULTILINE)


_VALUES: Final[Mapping[str, str]] = {
    "configMapName": CONFIG_MAP_NAME,
    "containerPrefix": keys.CONTAINER_PREFIX,
    "creationKeys": cel_list(CREATION_KEYS),
    "excludedNamespaces": "[" + ", ".join(sorted(EXCLUDED_NAMESPACES)) + "]",
    "extendedResourceClaim": EXTENDED_RESOURCE_CLAIM,
    "fixedAnnotationsOfPods": cel_list(fixed_keys(KeyKind.ANNOTATION, On.POD)),
    "fixedLabelsOfOwners": cel_list(fixed_keys(KeyKind.LABEL, On.OWNER)),
    "fixedLabelsOfPods": cel_list((keys.VCLUSTER_MANAGED_BY, *fixed_keys(KeyKind.LABEL, On.POD))),
    "freeKeys": cel_list(FREE_KEYS),
    "ownAnnotations": beginning_with(*PREFIXES, keys.CONTAINER_PREFIX),
    "ownKeys": beginning_with(*PREFIXES),
    "queueLabel": keys.QUEUE_LABEL,
    "keptOnOwners": cel_list(kept_on_owners()),
    "removableOfPods": removable_from_pods(),
    "reservationNamespace": RESERVATION_NAMESPACE,
    "reservedApps": cel_list(RESERVED_APPS),
    "reservedGpu": keys.RESERVED_GPU,
}
"""What stands for each `${NAME}` in the files."""


@cache
def text_of(file: str) -> str:
    """Return one of `FILES` with the lists filled in; a list on a line of its own is wrapped.

    Raises:
        KeyError: the file names a list that `_VALUES` lacks.
    """
    template = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    return Template(_OWN_LINE.sub(_wrapped, template)).substitute(_VALUES)


def _wrapped(line: re.Match[str]) -> str:
    indent, name = line.groups()
    return textwrap.fill(
        _VALUES[name],
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def guard_objects() -> Iterator[dict[str, Any]]:
    """Yield the policies and their bindings; the bindings only audit."""
    for file in FILES:
        yield from yaml.safe_load_all(text_of(file))
