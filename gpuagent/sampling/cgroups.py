"""The text of /proc/<pid>/cgroup: which pods and which container its paths name. Pure.

How the kubelet and the runtimes name cgroups: Kubernetes `pkg/kubelet/cm/cgroup_manager_linux.go`
(`pod<UID>`, dashes as underscores under systemd) and the leaf names of containerd, CRI-O and Docker.
A path is relative to the reader's cgroup namespace, so it may start with `/..`.
"""

import re
from dataclasses import dataclass, field, replace

_LINE = re.compile(r"[0-9]+:([^:]*):(/.*)")  # a path may hold colons, a list of controllers never does
_POD = re.compile(
    r"(?:^|[-/])pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?::|$)"
)
_CONTAINER = re.compile(r"(?:^|[-:])([0-9a-f]{64})(?:\.scope)?$")
_CONMON = "conmon"  # the monitor CRI-O puts beside a container, under the container's ID
_DELETED = " (deleted)"  # the kernel's mark of a cgroup that was removed under its last process
_ESCAPED_DASH = "\\x2d"  # systemd's, inside a unit's name


@dataclass(frozen=True, slots=True)
class CgroupNames:
    """What the paths of one process name."""

    pod_uids: tuple[str, ...] = ()
    """Outermost first: UIDs with dashes, or 32 hex digits for a static pod (its config hash)."""
    container_id: str = ""
    """The outermost container below the outermost pod, or of the path if it has no pod."""
    hides_exiting: bool = field(default=False, compare=False)
    """Whether some path may not be where the process was, had the process begun to exit: cgroup v1 shows
    such a process in the root (kernel/cgroup/cgroup.c `proc_cgroup_show`), cgroup v2 where it was."""


class MalformedCgroup(ValueError):
    """Not one line has the form `<hierarchy>:<controllers>:<path>`."""


def read_names(text: str) -> CgroupNames:
    """Read a whole file: the unified hierarchy if it names a pod, else the first that does.

    On a hybrid host `0::` stops at the service that started the container (seen with KIND on cgroup v1),
    so a hierarchy that names only a container does not end the search.

    Raises:
        MalformedCgroup: nothing in the text is a line of such a file.
    """
    paths: list[str] = []
    has_v1 = False
    for line in text.split("\n"):  # not splitlines: a cgroup's name may hold every other line break
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        if found[1]:
            has_v1 = True
            paths.append(found[2])
        else:
            paths.insert(0, found[2])
    if not paths:
        raise MalformedCgroup("no line of the form <hierarchy>:<controllers>:<path>")
    names = [read_path(path) for path in paths]
    named = [found for found in names if found.pod_uids] or [found for found in names if found.container_id]
    best = named[0] if named else CgroupNames()
    return replace(best, hides_exiting=has_v1 or paths == ["/"])


def read_path(path: str) -> CgroupNames:
    """Read one path.

    Whoever runs in a container may be able to make cgroups below its own, with any name: what is further
    out was named by the kubelet, so it comes first and decides.
    """
    path = path.removesuffix(_DELETED).replace(_ESCAPED_DASH, "-")
    pods: list[str] = []
    container = ""
    for segment in path.split("/"):
        pod = _POD.search(segment)
        if pod:
            if not pods:
                container = ""
            pods.append(pod[1].replace("_", "-"))
        if not container:
            leaf = _CONTAINER.search(segment)
            if leaf and _CONMON not in segment:
                container = leaf[1]
    return CgroupNames(tuple(pods), container)
