"""Release and settings of the KAI in a cluster, read from the pods of its namespace.

The names of KAI's programs are the same in every release. The flags are those of
`cmd/admission/app/options.go`; up to v0.9 the binder is also the webhook and has the first flag. Since v0.18
the operator derives them from `global.gpuSharingMode`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from kai import keys
from kai.command_lines import option_value
from kai.releases import Version

NAMESPACE: Final = "kai-scheduler"
RESERVATION_NAMESPACE: Final = "kai-resource-reservation"
"""Namespace of KAI's reservation pods unless a flag of the binder changes it."""
CONFIG_NAME: Final = "kai-config"
"""Name of KAI's only object of the kind Config (`kai.scheduler_configs.yaml`, cluster-scoped)."""
RUNTIME_CLASS: Final = "nvidia"  # RuntimeClass that KAI sets on pods with a share unless a flag changes it

_PROGRAMS: Final = frozenset(
    {"admission", "binder", "operator", "podgroupcontroller", "podgrouper", "queuecontroller", "scheduler"}
    | {"node-scale-adjuster", "nodescaleadjuster"}
)
_TAG = re.compile(r"(?:^|/)([a-z0-9._-]+):([A-Za-z0-9._-]+)(?:@[^/]*)?$")
_SHARES: Final = "--gpu-sharing-enabled"
_HAMI: Final = "--hami-core-enabled"
_NV_FRACTIONS: Final = "--nv-fractions-enabled"
_RUNTIME_CLASSES: Final = ("--gpu-fraction-runtime-class-name", "--gpu-pod-runtime-class-name")
_RESERVATION_RUNTIME_CLASS: Final = "--runtime-class-name"
_RESERVATION_NAMESPACE: Final = "--resource-reservation-namespace"
_QUEUE_LABEL: Final = "--queue-label-key"
_FALSE: Final = frozenset({"false", "0", "f", "F", "FALSE", "False"})


class SharingMode(StrEnum):
    """How KAI shares GPUs: the values of `global.gpuSharingMode` in KAI's chart since v0.18.

    Earlier releases have the first three, without these names.
    """

    NON_MEMORY_ENFORCED = "NonMemoryEnforced"
    """Nothing enforces the memory of a share."""
    HAMI_CORE = "HamiCore"
    """HAMi-core enforces the memory of a share in the containers."""
    NV_FRACTIONS = "NvFractions"
    """NVIDIA's runtime enforces the memory of a share. KAI accepts the annotations of other modes, too."""
    DISABLED = "Disabled"
    """KAI's admission refuses pods with a share."""


_PLUGINS: Final = {"hamicore": SharingMode.HAMI_CORE, "nvfractions": SharingMode.NV_FRACTIONS}


def configured_modes(document: bytes) -> frozenset[SharingMode]:
    """Return the modes that KAI's object Config names: several if it contradicts itself, none if unclear.

    An explicit value of a plugin wins over the mode. Without a mode the plugins and `admission.gpuSharing`
    decide (KAI v0.18.0 gpu_sharing_mode.go); without any of them sharing is on since v0.18, and off before.
    """
    try:
        spec = _map(_map(msgspec.json.decode(document)).get("spec"))
    except (ValueError, RecursionError):
        return frozenset()
    admission = _map(spec.get("admission"))
    plugins = [_map(part.get("plugins")) for part in (admission, _map(spec.get("binder")))]
    flags = {
        (mode, _map(part[name]).get("enabled") is True)
        for name, mode in _PLUGINS.items()
        for part in plugins
        if name in part
    }
    on, off = ({mode for mode, is_on in flags if is_on is wanted} for wanted in (True, False))
    text, sharing = _map(spec.get("global")).get("gpuSharingMode"), admission.get("gpuSharing")
    if text is not None:
        named = {mode for mode in SharingMode if mode == text}
        return frozenset(named and named | on | ({SharingMode.NON_MEMORY_ENFORCED} if named & off else set()))
    if sharing is False:
        return frozenset({SharingMode.DISABLED})
    if on:
        return frozenset(on | ({SharingMode.NON_MEMORY_ENFORCED} if on & off else set()))
    return frozenset({SharingMode.NON_MEMORY_ENFORCED} if sharing is True else ())


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class Program(Protocol):
    """A container with its image and its command line, without the image's entry point."""

    @property
    def image(self) -> str:
        """Name of its image."""

    @property
    def words(self) -> Sequence[str]:
        """Its command and arguments."""


@dataclass(frozen=True, slots=True)
class Installation:
    """KAI's running programs and their settings."""

    programs: Mapping[str, tuple[Program, ...]]  # containers by the program's name
    ready: frozenset[str] = frozenset()  # the programs with a pod that is ready

    @classmethod
    def seen_in(cls, containers: Iterable[tuple[Program, bool]]) -> "Installation":
        """Select KAI's programs from the containers of its namespace, each with whether its pod is ready."""
        programs: dict[str, tuple[Program, ...]] = {}
        ready = set()
        for container, is_ready in containers:
            image = _TAG.search(container.image)
            if image is not None and image[1] in _PROGRAMS:
                programs[image[1]] = (*programs.get(image[1], ()), container)
                if is_ready:
                    ready.add(image[1])
        return cls(programs, frozenset(ready))

    @property
    def versions(self) -> tuple[Version, ...]:
        """Releases in the tags of KAI's images, the oldest first."""
        versions = {version for image in self.images for version in _versions(image)}
        return tuple(sorted(versions, key=lambda v: (v.major, v.minor, v.patch, v.prerelease)))

    @property
    def version(self) -> Version | None:
        """The release; None if no image has one as its tag, or several are installed."""
        return self.versions[0] if len(self.versions) == 1 else None

    @property
    def images(self) -> tuple[str, ...]:
        """Every image, sorted and without duplicates."""
        return tuple(sorted({c.image for containers in self.programs.values() for c in containers}))

    @property
    def sharing_modes(self) -> frozenset[SharingMode]:
        """The modes of the pods of KAI's admission; empty if none was found, several during a rollout."""
        return frozenset(map(_sharing_mode, self._deciding))

    @property
    def sharing_values(self) -> str:
        """The value of KAI's chart that turns GPU sharing on; both values if the release is not known."""
        old, new = "global.gpuSharing=true", f"global.gpuSharingMode={SharingMode.NON_MEMORY_ENFORCED}"
        names = {new if version.has_sharing_modes else old for version in self.versions}
        return names.pop() if len(names) == 1 else f"{old} (since v0.18: {new})"

    @property
    def runtime_class(self) -> str | None:
        """The RuntimeClass that KAI's admission sets on pods with a share; "" for none, None if unknown.

        Where two flags are set, the newer one applies (v0.17.0). Every release since v0.9.7 sets a class.
        """
        if self.version is None or not self._deciding:
            return None
        if not self.version.sets_runtime_class:
            return ""
        return next(_values(self._deciding, *_RUNTIME_CLASSES), RUNTIME_CLASS)

    @property
    def reservation_runtime_class(self) -> str | None:
        """The RuntimeClass of reservation pods; "" for none, None if the binder was not found.

        KAI's chart has a separate value for it (`binder.runtimeClassName`, v0.13.4).
        """
        binders = self.programs.get("binder")
        return next(_values(binders, _RESERVATION_RUNTIME_CLASS), "") if binders else None

    @property
    def reservation_namespace(self) -> str:
        """The namespace of reservation pods (`--resource-reservation-namespace` of the binder)."""
        return next(_values(self.programs.get("binder", ()), _RESERVATION_NAMESPACE), RESERVATION_NAMESPACE)

    @property
    def queue_label(self) -> str | None:
        """Key of the label with a pod's queue (`global.queueLabelKey`); None if no pod-grouper was found."""
        groupers = self.programs.get("podgrouper")
        return next(_values(groupers, _QUEUE_LABEL), keys.QUEUE_LABEL) if groupers else None

    @property
    def asks_for_nodes(self) -> bool:
        """Whether the node-scale-adjuster runs, which asks autoscalers for nodes (`clusterAutoscaling`)."""
        return not self.programs.keys().isdisjoint(("node-scale-adjuster", "nodescaleadjuster"))

    @property
    def _deciding(self) -> tuple[Program, ...]:
        return self.programs.get("admission") or self.programs.get("binder") or ()


def _values(containers: Iterable[Program], *flags: str) -> Iterator[str]:
    """Yield the values of flags, in the order of the flags; "" for a flag before another flag."""
    for flag in flags:
        for container in containers:
            value = option_value(flag, container.words)
            if value is not None:
                yield "" if value.startswith("-") else value


def _versions(image: str) -> Iterator[Version]:
    match = _TAG.search(image)
    if match is not None:
        try:
            yield Version.parse(match[2])
        except ValueError:
            return


def _sharing_mode(container: Program) -> SharingMode:
    if _is_on(container, _NV_FRACTIONS):
        return SharingMode.NV_FRACTIONS
    if not _is_on(container, _SHARES):
        return SharingMode.DISABLED
    return SharingMode.HAMI_CORE if _is_on(container, _HAMI) else SharingMode.NON_MEMORY_ENFORCED


def _is_on(container: Program, flag: str) -> bool:
    """Whether a boolean flag of a Go program is set: `--flag` or `--flag=true`, but not `--flag true`."""
    for word in container.words:
        name, equals, value = word.partition("=")
        if name == flag:
            return not equals or value not in _FALSE
    return False
