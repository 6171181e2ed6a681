"""Cgroup paths as kernels, kubelets and runtimes write them, and forged paths."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.sampling.cgroups import CgroupNames, MalformedCgroup, read_names

LEAF = "0f" * 32
OTHER_LEAF = "1e" * 32
STATIC = "2732ca68f6358eba7703fb6f82a25c94"

WORKLOADS = {
    "v1 cgroupfs docker burstable": "5:devices:/kubepods/burstable/pod{uid}/{leaf}",
    "v1 cgroupfs docker guaranteed": "5:devices:/kubepods/pod{uid}/{leaf}",
    "docker desktop": "5:devices:/kubepods/kubepods/besteffort/pod{uid}/{leaf}",
    "kind v1, hybrid: the unified hierarchy stops at the node's containerd": "13:name=systemd:/docker/{other}/kubepods/besteffort/pod{uid}/{leaf}\n0::/docker/{other}/system.slice/containerd.service",
    "kind v1, short": "5:devices:/docker/{other}/kubepods/besteffort/pod{uid}/{leaf}",
    "kind v2, from inside": "0::/docker/{other}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{under}.slice/cri-containerd-{leaf}.scope",
    "kind v2, from the outer host": "0::/system.slice/docker-{other}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{under}.slice/cri-containerd-{leaf}.scope",
    "kind, from the node": "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{under}.slice/cri-containerd-{leaf}.scope",
    "kind with NRI: pod, runtime and container in one segment": "0::/kubelet-kubepods-besteffort-pod{under}.slice:cri-containerd:{leaf}",
    "systemd docker, dashes kept": "5:devices:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice/docker-{leaf}.scope",
    "systemd docker, underscores": "5:devices:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/docker-{leaf}.scope",
    "containerd with colons": "0::/kubepods-besteffort-pod{under}.slice:cri-containerd:{leaf}",
    "containerd with colons, below containerd.service": "9:cpuacct,cpu:/system.slice/containerd.service/kubepods-besteffort-pod{under}.slice:cri-containerd:{leaf}",
    "cri-o v1": "9:devices:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{under}.slice/crio-{leaf}.scope",
    "cri-o v2": "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/crio-{leaf}.scope",
    "cri-o in a private cgroup namespace": "0::/../crio-{leaf}.scope",
    "cri-o with cgroupfs, no .scope": "5:devices:/kubepods/pod{uid}/crio-{leaf}",
    "systemd slices, bare container": "11:devices:/kubepods.slice/kubepods-pod{under}.slice/{leaf}",
    "containerd systemd guaranteed": "0::/kubepods.slice/kubepods-pod{under}.slice/cri-containerd-{leaf}.scope",
    "another pod, from a private cgroup namespace": "0::/../../kubepods-besteffort-pod{under}.slice/docker-{leaf}.scope",
    "private cgroup namespace, cgroupfs": "0::/../../pod{uid}/{leaf}",
    "private cgroup namespace, with the QoS class": "5:devices:/../../../burstable/pod{uid}/{leaf}",
    "containerd cgroupfs besteffort": "0::/kubepods/besteffort/pod{uid}/{leaf}",
    "static pod": "0::/kubepods/pod{static}/{leaf}",
    "child cgroup of a container": "0::/kubepods.slice/kubepods-pod{under}.slice/cri-containerd-{leaf}.scope/nested",
    "ancient, two ways of naming mixed": "11:memory:/system.slice/docker.service/BestEffort.slice/BestEffort-pod{under}.slice/{leaf}",
    "conmon inside the pod's directory: the pod's, but no container": "0::/kubepods/pod{uid}/crio-conmon-{leaf}",
    "cgroup that is deleted already": "0::/kubepods/pod{uid}/{leaf} (deleted)",
    "pod cgroup that is deleted already": "0::/kubepods.slice/kubepods-pod{under}.slice (deleted)",
    "dashes as systemd escapes them": "0::/kubepods.slice/kubepods-pod{escaped}.slice/crio-{leaf}",
    "podman": "0::/machine.slice/libpod-{leaf}.scope",
    "container without a pod directory (only the list of pods can tell its owner)": "5:devices:/kubepods/{leaf}",
    "v1 after a unified root": "0::/\n5:devices:/kubepods/pod{static}/{leaf}",
    "blank line between": "5:devices:/\n\n0::/kubepods/pod{static}/{leaf}\n",
}  # fmt: skip
"""Content of a file by its origin, with names in braces; a container's monitor is no container."""
UID = "2c48913c-b29f-11e7-9350-020968147796"
NAMES = {
    "uid": UID, "under": UID.replace("-", "_"), "escaped": UID.replace("-", r"\x2d"), "static": STATIC, "leaf": LEAF,
    "other": OTHER_LEAF,
}  # fmt: skip


def expected(text: str) -> tuple[str | None, str]:
    """Return the pod and the container that a text with names in braces names."""
    names_pod = any(f"{{{name}}}" in text for name in ("uid", "under", "escaped", "static"))
    pod = STATIC if "{static}" in text else UID
    return pod if names_pod else None, LEAF if "{leaf}" in text and "conmon" not in text else ""


@pytest.mark.parametrize("text", WORKLOADS.values(), ids=WORKLOADS)
def test_the_pod_and_the_container_of_a_cgroup_file(text: str) -> None:
    pod, container = expected(text)
    assert read_names(text.format(**NAMES)) == CgroupNames((pod,) if pod else (), container)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("0::/", id="own cgroup"),
        pytest.param("0::/../../../../../system.slice/kubelet.service", id="host daemon, private namespace"),
        pytest.param("0::/../../../../../init.scope", id="init, private namespace"),
        pytest.param(f"12:pids:/system.slice/crio-conmon-{LEAF}.scope", id="conmon"),
        pytest.param("0::/user.slice", id="user slice"),
        pytest.param("5:devices:/system.slice/docker.service", id="docker daemon"),
        pytest.param("5:devices:/kubepods/pod123/container", id="neither a UID nor an ID"),
        pytest.param("0::/system/apid", id="talos apid"),
        pytest.param("0::/kubelet", id="talos kubelet"),
        pytest.param("0::/init", id="talos init"),
        pytest.param("0::/kata/8c000081", id="kata sandbox (its GPU is invisible to the host)"),
        pytest.param(f"0::/vc/parent/kata_{LEAF}", id="kata, other form"),
        pytest.param(f"0::/kubepods/{LEAF}0", id="65 digits"),
        pytest.param(f"0::/kubepods/{LEAF.upper()}", id="upper case is no container ID"),
        pytest.param("0::/mypod5884dc6c-5b0c-11e9-90bc-525400cfa589", id="pod in the middle of a word"),
    ],
)
def test_cgroup_files_without_a_pod(text: str) -> None:
    assert read_names(text) == CgroupNames()


@pytest.mark.parametrize(
    "text", ["", "\n", "garbage", "0:/", ":::", "x::/", "0::relative", f"/kubepods/pod{STATIC}", "\0\0"]
)
def test_text_that_is_no_cgroup_file_is_refused(text: str) -> None:
    with pytest.raises(MalformedCgroup, match="no line of the form"):
        read_names(text)


OUTER = "11111111-2222-4333-8444-555555555555"
INNER = "99999999-8888-4777-8666-555555555555"


def test_every_pod_is_named_outermost_first() -> None:
    text = f"0::/kubepods/pod{OUTER}/{LEAF}/kubelet/kubepods/burstable/pod{INNER}/{OTHER_LEAF}"
    assert read_names(text) == CgroupNames((OUTER, INNER), LEAF)


def test_the_unified_hierarchy_counts_before_the_others() -> None:
    text = f"5:devices:/kubepods/pod{INNER}/{OTHER_LEAF}\n0::/kubepods/pod{OUTER}/{LEAF}"
    assert read_names(text) == CgroupNames((OUTER,), LEAF)


def test_a_child_cgroup_cannot_name_a_container_beside_it() -> None:
    assert read_names(f"0::/../crio-{LEAF}.scope/crio-{OTHER_LEAF}.scope").container_id == LEAF


@pytest.mark.parametrize("mark", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_a_cgroup_name_with_a_line_break_starts_no_line(mark: str) -> None:
    """The kernel forbids only \\n in a name."""
    text = f"0::/kubepods/pod{OUTER}/{LEAF}/x{mark}0::/pod{INNER}/{OTHER_LEAF}\n"
    assert read_names(text).pod_uids[0] == OUTER


_segments = st.lists(
    st.one_of(
        st.text(st.characters(exclude_characters="/\n", exclude_categories=["Cs"]), max_size=20),
        st.sampled_from([
            f"pod{INNER}", f"kubepods-pod{INNER.replace('-', '_')}.slice", f"crio-{OTHER_LEAF}.scope", "..", "",
            f"x-pod{INNER}.slice:cri-containerd:{OTHER_LEAF}", "0::", "5:devices:", f"pod{STATIC}", " (deleted)",
        ]),
    ),
    max_size=6,
)  # fmt: skip


_LINES = st.builds(
    "{}:{}:/{}".format, st.integers(0, 20), st.sampled_from(["", "devices"]), _segments.map("/".join)
)


@given(st.lists(_LINES, min_size=1, max_size=3).map("\n".join))
def test_any_names_of_cgroups_are_read(text: str) -> None:
    names = read_names(text)
    assert all(re.fullmatch(r"[0-9a-f-]{36}|[0-9a-f]{32}", uid) for uid in names.pod_uids)
    assert re.fullmatch(r"(?:[0-9a-f]{64})?", names.container_id)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(MalformedCgroup):
        read_names(text)


_IN_A_POD = [
    text
    for text in WORKLOADS.values()
    if all(expected(text)) and not {"\n", "(deleted)"} & {*text, text[-9:]}
]


@given(st.sampled_from(_IN_A_POD), _segments)
def test_cgroups_below_a_container_do_not_change_its_owner(text: str, below: list[str]) -> None:
    names = read_names("/".join([text.format(**NAMES), *below]))
    assert (names.pod_uids[0], names.container_id) == expected(text)
