"""Parses /proc/<pid>/cgroup: the pods and the container that its paths name. Pure.

The formats of the names come from Kubernetes `pkg/kubelet/cm/cgroup_manager_linux.go` (`pod<UID>`, with
underscores for dashes under systemd) and from containerd, CRI-O and Docker. A path is relative to the
reader's cgroup namespace, so it may start with `/..`.
"""

import re
from dataclasses import dataclass, field, replace

_LINE = re.compile(r"[0-9]+:([^:]*):(/.*)")  # a path may contain colons, the list of controllers cannot
_POD = re.compile(
    r"(?:^|[-/])pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?::|$)"
)
_CONTAINER = re.compile(r"(?:^|[-:])([0-9a-f]{64})(?:\.scope)?$")
_CONMON = "conmon"  # CRI-O's monitor beside a container, with the container's ID
_DELETED = " (deleted)"  # the kernel's suffix for a removed cgroup with a living process
_ESCAPED_DASH = "\\x2d"  # systemd's escape in a unit name


@dataclass(frozen=True, slots=True)
class CgroupNames:
    """Names in the cgroup paths of one process."""

    pod_uids: tuple[str, ...] = ()
    """Outermost pod first: UIDs with dashes, or 32 hex digits for a static pod (its config hash)."""
    container_id: str = ""
    """The outermost container below the outermost pod, or of the whole path without a pod."""
    container_path: str = field(default="", compare=False)
    """Path of that container's cgroup in the unified hierarchy; empty without both. A process may be in a
    cgroup below it."""
    hides_exiting: bool = field(default=False, compare=False)
    """Whether a path may be wrong for an exiting process: cgroup v1 shows such a process in the root
    (kernel/cgroup/cgroup.c `proc_cgroup_show`), cgroup v2 in its last cgroup."""


class MalformedCgroup(ValueError):
    """No line has the form `<hierarchy>:<controllers>:<path>`."""


def read_names(text: str) -> CgroupNames:
    """Parse a whole file: use the unified hierarchy if it names a pod, else the first hierarchy that does.

    On a hybrid host `0::` ends at the service that started the container (seen with KIND on cgroup v1), so
    the search continues after a hierarchy that names only a container.

    Raises:
        MalformedCgroup: no line has the form of a cgroup line.
    """
    paths: list[str] = []
    has_v1 = has_v2 = False
    for line in text.split("\n"):  # not splitlines: a cgroup's name may contain all other line breaks
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        if match[1]:
            has_v1 = True
            paths.append(match[2])
        else:
            has_v2 = True
            paths.insert(0, match[2])
    if not paths:
        raise MalformedCgroup("no line of the form <hierarchy>:<controllers>:<path>")
    names = [read_path(path) for path in paths]
    named = [entry for entry in names if entry.pod_uids] or [entry for entry in names if entry.container_id]
    best = named[0] if named else CgroupNames()
    path = best.container_path if has_v2 and best is names[0] else ""
    return replace(best, container_path=path, hides_exiting=has_v1 or paths == ["/"])


def read_path(path: str) -> CgroupNames:
    """Parse one path.

    Processes in a container may be able to create cgroups with any name below their own. The kubelet names
    the outer cgroups, so the outermost name decides.
    """
    segments = path.removesuffix(_DELETED).split("/")
    pods: list[str] = []
    container, depth = "", 0
    for number, escaped in enumerate(segments, 1):
        segment = escaped.replace(_ESCAPED_DASH, "-")
        pod = _POD.search(segment)
        if pod:
            if not pods:
                container = ""
            pods.append(pod[1].replace("_", "-"))
        if not container:
            leaf = _CONTAINER.search(segment)
            if leaf and _CONMON not in segment:
                container, depth = leaf[1], number
    return CgroupNames(tuple(pods), container, "/".join(segments[:depth]) if container else "")
