"""Generated settings of a webhook, and namespaces with policies and LimitRanges."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kai import kaishare_keys, keys
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from service.names import is_label_key, is_label_value
from tests.support import size_oracle
from tests.support.kinds import made
from tests.support.pod_strategies import MIG
from tests.support.pods import GPU

Json = dict[str, Any]

RELEASES: Final = (None, "0.9.8", "0.13.4", "0.17.0")
CLASS: Final = "usual"
"""The PriorityClass that is the cluster's default in some clusters."""

LIMITS: Final[Mapping[str, Sequence[Json]]] = {
    "none": (),
    "cpu": ({"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "100m"}},),
    "one GPU": ({"type": "Container", "default": {GPU: "1"}},),
    "two GPUs": ({"type": "Container", "default": {GPU: "2"}},),
    "no GPU": ({"type": "Container", "default": {GPU: "0"}},),
    "GPU request": ({"type": "Container", "defaultRequest": {GPU: "1"}},),
    "cpu request": ({"type": "Container", "defaultRequest": {"cpu": "100m"}},),
    "two ranges": ({"type": "Container", "default": {"cpu": "1"}}, {"type": "Container", "default": {GPU: "1"}}),
    "most": ({"type": "Container", "max": {GPU: "1"}},),
    "most and default": ({"type": "Container", "max": {GPU: "4"}, "default": {GPU: "0"}},),
    "least": ({"type": "Container", "min": {GPU: "1"}},),
    "of pods": ({"type": "Pod", "max": {GPU: "1"}},),
    "another GPU": ({"type": "Container", "default": {"amd.com/gpu": "1"}},),
    "a MIG device": ({"type": "Container", "default": {MIG: "1"}},),
}  # fmt: skip
"""LimitRanges of a namespace by a name for counts: one item for each LimitRange."""


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """Options of the webhook, and facts about its cluster."""

    kai_version: str | None
    inject_shares: bool
    default_mode: str
    excluded: frozenset[str] | None
    """Excluded namespaces; None for the default."""
    has_default_class: bool

    @property
    def options(self) -> list[str]:
        options = [
            f"--inject-shares={str(self.inject_shares).lower()}",
            f"--default-mode={self.default_mode}",
        ]
        if self.kai_version is not None:
            options.append(f"--kai-version={self.kai_version}")
        if self.excluded is not None:
            options.append(f"--exclude-namespaces={','.join(sorted(self.excluded))}")
        return options


@dataclass(frozen=True, kw_only=True)
class GeneratedNamespace:
    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    limits: str
    """A key of `LIMITS`."""

    @property
    def objects(self) -> list[Json]:
        space = made("Namespace", self.name, labels=dict(self.labels), annotations=dict(self.annotations))
        return [
            space,
            *(
                made("LimitRange", f"range-{number}", self.name, spec={"limits": [item]})
                for number, item in enumerate(LIMITS[self.limits])
            ),
        ]


@dataclass(frozen=True, kw_only=True)
class GeneratedCluster:
    """Settings of a webhook and namespaces."""

    settings: WebhookSettings
    namespaces: Sequence[GeneratedNamespace]


def generated_cluster(chance: random.Random, number: int, prefix: str, count: int) -> GeneratedCluster:
    """Return a cluster."""
    names = [f"{prefix}-{index}" for index in range(count)]
    excluded = frozenset({*EXCLUDED_NAMESPACES, *names[:2]}) if chance.random() < 0.6 else None
    settings = WebhookSettings(
        kai_version=RELEASES[number % len(RELEASES)],
        inject_shares=chance.random() < 0.85,
        default_mode=chance.choice(("default", "default", "default", "observe", "off")),
        excluded=excluded,
        has_default_class=chance.random() < 0.5,
    )
    return GeneratedCluster(settings=settings, namespaces=[_namespace(chance, name) for name in names])


def _namespace(chance: random.Random, name: str) -> GeneratedNamespace:
    labels, annotations = _policy(chance)
    if chance.random() < 0.06:
        del labels[keys.QUEUE_LABEL]
    limits = (
        "none"
        if chance.random() < 0.25
        else chance.choice([*sorted(LIMITS), "one GPU", "no GPU", "two ranges"])
    )
    return GeneratedNamespace(name=name, labels=labels, annotations=annotations, limits=limits)


_LABELS: Final[Mapping[str, tuple[float, Sequence[str]]]] = {
    kaishare_keys.MODE: (0.6, ("default", "enforce", "enforce", "enforce", "observe", "off", "Enforce")),
    kaishare_keys.SCHEDULER: (0.25, ("kai-scheduler", "other-scheduler", "default-scheduler", "Bad_Name")),
    kaishare_keys.SHARE_FOR: (0.6, ("whole-gpu", "marked", "all", "all", "none")),
    kaishare_keys.MAX_FRACTION: (0.3, ("0.5", "1", "0.25", "1.5")),
    kaishare_keys.MAX_MEMORY: (0.15, ("2000", "1", "2Gi")),
    kaishare_keys.PRIORITY: (0.3, ("train", "inference", "Bad_Name")),
    kaishare_keys.TOLERATION: (0.3, ("inject", "inject", "true")),
    kaishare_keys.DISTRIBUTED: (0.3, ("keep", "share", "share", "Share")),
    kaishare_keys.ANNOUNCE: (0.2, ("true", "false")),
    kaishare_keys.VCLUSTER: (0.2, ("true", "true", "false")),
    kaishare_keys.OVER_SHARE: (0.05, ("evict",)),
    "kaishare.dev/unknown": (0.05, ("x",)),
    "example.com/team": (0.1, ("blue",)),
}
_SHARES: Final[Sequence[Mapping[str, str]]] = (
    *[{kaishare_keys.FRACTION: "0.5"}] * 10, {kaishare_keys.FRACTION: "0.25"}, {kaishare_keys.FRACTION: "0.02"}, {kaishare_keys.MEMORY: "2000"},
    {kaishare_keys.MEMORY: "8192"}, {}, {}, {kaishare_keys.FRACTION: "2"}, {kaishare_keys.FRACTION: "0.5", kaishare_keys.MEMORY: "2000"},
)  # fmt: skip


def _policy(chance: random.Random) -> tuple[dict[str, str], dict[str, str]]:
    """Return labels and annotations of a managed namespace that the API server stores, valid and invalid."""
    queue = chance.choice((*["queue-a"] * 20, "team.a", "team.a", "Not_A_Queue"))
    labels = {keys.QUEUE_LABEL: queue, **chance.choice(_SHARES)}
    for key, (likely, values) in _LABELS.items():
        if chance.random() < likely:
            labels[key] = chance.choice(values)
    annotations: dict[str, str] = {}
    if chance.random() < 0.5:
        for _ in range(chance.randint(1, 3)):
            names = size_oracle.NAMES if chance.random() < 0.9 else size_oracle.BAD_NAMES
            key = kaishare_keys.SIZE_PREFIX + chance.choice(names)
            good = chance.random() < 0.9
            labels[key] = chance.choice([*size_oracle.VALUES] if good else size_oracle.BAD_VALUES)
            if chance.random() < 0.6:
                bad = chance.random() < 0.1
                annotations[key] = chance.choice(
                    size_oracle.BAD_SELECTORS if bad else [*size_oracle.SELECTORS]
                )
    if chance.random() < 0.05:
        labels |= {f"{kaishare_keys.SIZE_PREFIX}n{number:02}": "0.25" for number in range(17)}
    if chance.random() < 0.03:
        annotations[f"{kaishare_keys.SIZE_PREFIX}orphan"] = "app=web"
    return (
        {key: value for key, value in labels.items() if is_label_key(key) and is_label_value(value)},
        {key: value for key, value in annotations.items() if is_label_key(key)},
    )
