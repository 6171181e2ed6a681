"""Which KAI runs in a cluster and how it is set, by the pods of its namespace.

Its programs are named so in every release, and take these flags (`cmd/admission/app/options.go`; up to v0.9
the binder is also the webhook and takes the first).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from kai import keys
from kai.version import Version

NAMESPACE: Final = "kai-scheduler"
RUNTIME_CLASS: Final = "nvidia"
"""What pods with a share are given where no flag says otherwise."""

_PROGRAMS: Final = frozenset(
    {"admission", "binder", "operator", "podgroupcontroller", "podgrouper", "queuecontroller", "scheduler"}
)
_TAG = re.compile(r"(?:^|/)([a-z0-9._-]+):([A-Za-z0-9._-]+)(?:@[^/]*)?$")
_SHARES: Final = "--gpu-sharing-enabled"
_HAMI: Final = "--hami-core-enabled"
_RUNTIME_CLASSES: Final = ("--gpu-fraction-runtime-class-name", "--gpu-pod-runtime-class-name")
_RESERVATION_RUNTIME_CLASS: Final = "--runtime-class-name"
_QUEUE_LABEL: Final = "--queue-label-key"
_FALSE: Final = frozenset({"false", "0", "f", "F", "FALSE", "False"})


class KaiContainer(Struct, frozen=True):
    """One container of KAI's."""

    image: str | None = None
    command: list[str] | None = None
    args: list[str] | None = None

    def value_of(self, flag: str) -> str | None:
        """What a flag is set to; "" for one that has no value, None for one that is not there."""
        words = [*(self.command or ()), *(self.args or ())]
        for index, word in enumerate(words):
            name, equals, value = word.partition("=")
            if name == flag:
                after = words[index + 1] if index + 1 < len(words) else ""
                return value if equals else "" if after.startswith("-") else after
        return None


class KaiSpec(Struct, frozen=True):
    """Of such a pod."""

    containers: list[KaiContainer] | None = None


class KaiPod(Struct, frozen=True):
    """One pod of KAI's namespace."""

    spec: KaiSpec


@dataclass(frozen=True, slots=True)
class Installation:
    """KAI's programs as they run."""

    programs: Mapping[str, tuple[KaiContainer, ...]]
    """By name."""

    @classmethod
    def seen_in(cls, pods: Iterable[KaiPod]) -> "Installation":
        """Pick KAI's programs out of the pods of its namespace."""
        programs: dict[str, list[KaiContainer]] = {}
        for container in (container for pod in pods for container in pod.spec.containers or ()):
            found = _TAG.search(container.image or "")
            if found is not None and found[1] in _PROGRAMS:
                programs.setdefault(found[1], []).append(container)
        return cls({name: tuple(containers) for name, containers in programs.items()})

    @property
    def versions(self) -> tuple[Version, ...]:
        """Every release that an image names, the oldest first."""
        found = {version for image in self.images for version in _versions(image)}
        return tuple(sorted(found, key=lambda one: (one.major, one.minor, one.patch, one.prerelease)))

    @property
    def images(self) -> tuple[str, ...]:
        """Every image, once."""
        return tuple(sorted({one.image or "" for many in self.programs.values() for one in many}))

    @property
    def shares_gpus(self) -> bool | None:
        """Whether it takes pods with a share; None: its admission is not seen."""
        deciding = self._deciding
        return any(_is_on(container, _SHARES) for container in deciding) if deciding else None

    @property
    def has_hami(self) -> bool:
        """Whether it hands limits to HAMi-core."""
        return any(_is_on(container, _HAMI) for container in self._deciding)

    @property
    def runtime_class(self) -> str | None:
        """The RuntimeClass that its admission gives pods with a share; "" for none, None: not known.

        The newer of two flags counts where both are set (v0.17.0); every release from v0.9.7 on sets one.
        """
        if len(self.versions) != 1 or not self._deciding:
            return None
        if not self.versions[0].sets_runtime_class:
            return ""
        return next(_values(self._deciding, *_RUNTIME_CLASSES), RUNTIME_CLASS)

    @property
    def reservation_runtime_class(self) -> str | None:
        """The RuntimeClass of pods that hold a GPU for shares; "" for none, None: the binder is not seen.

        The chart sets it apart from the one of pods with a share (`binder.runtimeClassName`, v0.13.4).
        """
        binders = self.programs.get("binder")
        return next(_values(binders, _RESERVATION_RUNTIME_CLASS), "") if binders else None

    @property
    def queue_label(self) -> str | None:
        """The label that names a pod's queue (`global.queueLabelKey`); None: its pod-grouper is not seen."""
        groupers = self.programs.get("podgrouper")
        return next(_values(groupers, _QUEUE_LABEL), keys.QUEUE_LABEL) if groupers else None

    @property
    def _deciding(self) -> tuple[KaiContainer, ...]:
        return self.programs.get("admission") or self.programs.get("binder") or ()


def _values(containers: Iterable[KaiContainer], *flags: str) -> Iterator[str]:
    """What flags are set to, the first flag first."""
    for flag in flags:
        for container in containers:
            value = container.value_of(flag)
            if value is not None:
                yield value


def _versions(image: str) -> Iterator[Version]:
    found = _TAG.search(image)
    if found is not None:
        try:
            yield Version.parse(found[2])
        except ValueError:
            return


def _is_on(container: KaiContainer, flag: str) -> bool:
    """As Go's flags have it: `--flag`, or `--flag=true`; a word that follows is not its value."""
    words = (*(container.command or ()), *(container.args or ()))
    for word in words:
        name, equals, value = word.partition("=")
        if name == flag:
            return not equals or value not in _FALSE
    return False
