"""Which KAI runs in the cluster and how it shares GPUs, by the pods of its namespace. Pure.

Its programs are named so in every release, and take these flags (`cmd/admission/app/options.go`; up to v0.9
the binder is also the webhook and takes the first).
"""

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from gpuagent.doctor.finding import Finding, ok, problem, unknown
from kai.version import Version
from kube.errors import one_line

NAMESPACE: Final = "kai-scheduler"
_VERSION: Final = "KAI's version"
_SHARING: Final = "KAI's GPU sharing"
_PROGRAMS: Final = frozenset(
    {"admission", "binder", "operator", "podgroupcontroller", "podgrouper", "queuecontroller", "scheduler"}
)
_TAG = re.compile(r"(?:^|/)([a-z0-9._-]+):([A-Za-z0-9._-]+)(?:@.*)?$")
_SHARES: Final = "--gpu-sharing-enabled"
_HAMI: Final = "--hami-core-enabled"
_FALSE: Final = frozenset({"false", "0", "f", "F", "FALSE", "False"})


class KaiContainer(Struct, frozen=True):
    """One container of KAI's."""

    image: str | None = None
    command: list[str] | None = None
    args: list[str] | None = None


class KaiSpec(Struct, frozen=True):
    """Of such a pod."""

    containers: list[KaiContainer] | None = None


class KaiPod(Struct, frozen=True):
    """One pod of KAI's namespace."""

    spec: KaiSpec


def kai_findings(pods: list[KaiPod], *, told: Version | None) -> Iterator[Finding]:
    """Version and sharing mode.

    Args:
        pods: those of KAI's namespace.
        told: the version that the agent is told; None: a current one.
    """
    programs: dict[str, list[KaiContainer]] = {}
    versions: set[Version] = set()
    for container in (container for pod in pods for container in pod.spec.containers or ()):
        found = _TAG.search(container.image or "")
        if found is None or found[1] not in _PROGRAMS:
            continue
        programs.setdefault(found[1], []).append(container)
        try:
            versions.add(Version.parse(found[2]))
        except ValueError:
            continue
    yield _version(programs, versions, told)
    yield _sharing(programs)


def _version(
    programs: dict[str, list[KaiContainer]], versions: set[Version], told: Version | None
) -> Finding:
    if not programs:
        return unknown(_VERSION, f"no pod of KAI is seen in the namespace {NAMESPACE}")
    if not versions:
        images = sorted({one_line(one.image or "") for many in programs.values() for one in many})
        return unknown(
            _VERSION,
            f"its images do not tell: {', '.join(images[:3])}",
            "tell the agent with --kai-version if KAI is older than 0.8.2",
        )
    oldest_first = sorted(versions, key=lambda one: (one.major, one.minor, one.patch, one.prerelease))
    shown = " and ".join(map(str, oldest_first))
    if len(versions) > 1:
        return problem(_VERSION, f"{shown} at once", "finish, or undo, the update of KAI")
    (version,) = versions
    if told is not None and told != version:
        return problem(
            _VERSION, f"{version}, and the agent is told {told}", f"serve with --kai-version {version}"
        )
    if told is None and version.counts_megabytes:
        return problem(
            _VERSION,
            f"{version}, which counts GPU memory in units of 10^6 bytes; the agent is not told",
            f"serve with --kai-version {version}",
        )
    return ok(_VERSION, str(version))


def _sharing(programs: dict[str, list[KaiContainer]]) -> Finding:
    deciding = programs.get("admission") or programs.get("binder")
    if not deciding:
        return unknown(_SHARING, f"no pod of KAI's admission is seen in the namespace {NAMESPACE}")
    if not any(_is_set(container, _SHARES) for container in deciding):
        return problem(
            _SHARING,
            "off: KAI refuses every pod with a share",
            "install KAI with global.gpuSharing=true",
        )
    if any(_is_set(container, _HAMI) for container in deciding):
        return ok(_SHARING, "on, with limits that HAMi-core is to enforce in the containers")
    return ok(_SHARING, "on; nothing in its arguments enforces a share")


def _is_set(container: KaiContainer, flag: str) -> bool:
    for argument in (*(container.command or ()), *(container.args or ())):
        name, equals, value = argument.partition("=")
        if name == flag:
            return not equals or value not in _FALSE
    return False
