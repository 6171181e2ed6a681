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

# name, file text, pod UID, container ID
WORKLOADS = [
    (
        "v1 cgroupfs docker burstable",
        "5:devices:/kubepods/burstable/pod2c48913c-b29f-11e7-9350-020968147796/34a2062fd26c805aa8cf814cdfe479322b791f80afb9ea4db02d50375df14b41",
        "2c48913c-b29f-11e7-9350-020968147796",
        "34a2062fd26c805aa8cf814cdfe479322b791f80afb9ea4db02d50375df14b41",
    ),
    (
        "v1 cgroupfs docker guaranteed",
        "5:devices:/kubepods/pod2c48913c-b29f-11e7-9350-020968147796/9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961",
        "2c48913c-b29f-11e7-9350-020968147796",
        "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961",
    ),
    (
        "docker desktop",
        "5:devices:/kubepods/kubepods/besteffort/pod6bd2a4d3-a55a-4450-b6fd-2a7ecc72c904/a55d9ac3b312d8a2627824b6d6dd8af66fbec439bf4e0ec22d6d9945ad337a38",
        "6bd2a4d3-a55a-4450-b6fd-2a7ecc72c904",
        "a55d9ac3b312d8a2627824b6d6dd8af66fbec439bf4e0ec22d6d9945ad337a38",
    ),
    (
        "kind v1, hybrid: the unified hierarchy stops at the node's containerd",
        "13:name=systemd:/docker/93529524695bb00d91c1f6dba692ea8d3550c3b94fb2463af7bc9ec82f992d26/kubepods/besteffort/poda2830d0d-b0f0-4ff0-81b5-0ee4e299cf80/09bc3d7ade839efec32b6bec4ec79d099027a668ddba043083ec21d3c3b8f1e6\n0::/docker/93529524695bb00d91c1f6dba692ea8d3550c3b94fb2463af7bc9ec82f992d26/system.slice/containerd.service",
        "a2830d0d-b0f0-4ff0-81b5-0ee4e299cf80",
        "09bc3d7ade839efec32b6bec4ec79d099027a668ddba043083ec21d3c3b8f1e6",
    ),
    (
        "kind v1, short",
        "5:devices:/docker/8d461fa5765781bcf5f7eb192f101bc3103d4b932e26236f43feecfa20664f96/kubepods/besteffort/poddaa5c7ee-3484-4533-af39-3591564fd03e/aff34703e5e1f89443e9a1bffcc80f43f74d4808a2dd22c8f88c08547b323934",
        "daa5c7ee-3484-4533-af39-3591564fd03e",
        "aff34703e5e1f89443e9a1bffcc80f43f74d4808a2dd22c8f88c08547b323934",
    ),
    (
        "kind v2, from inside",
        "0::/docker/65a1b6ad09655b3f1475ede1aa0061a97c0d1ada9f2b2acac959afbc92094463/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod96dd7de3_0783_4613_a707_e0effc077ef5.slice/cri-containerd-13a0f64b909e3ff2d63f196d6947927a8af997ab68f8fa9ebb6d6c7018af4ec9.scope",
        "96dd7de3-0783-4613-a707-e0effc077ef5",
        "13a0f64b909e3ff2d63f196d6947927a8af997ab68f8fa9ebb6d6c7018af4ec9",
    ),
    (
        "kind v2, from the outer host",
        "0::/system.slice/docker-3350ade4226f0adcd9e4e9545d7c2a16a5aa362d12315f2a88e2024cea1246cf.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-podb6a16766_05ee_446a_8ee5_ff96a817f47c.slice/cri-containerd-679f3691f7f1b20198548be43b86f265f9fff9be0ac4c973638f5ee89decbca9.scope",
        "b6a16766-05ee-446a-8ee5-ff96a817f47c",
        "679f3691f7f1b20198548be43b86f265f9fff9be0ac4c973638f5ee89decbca9",
    ),
    (
        "kind, from the node",
        "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod18640755_cc12_4557_b96e_0f74d5b44d1d.slice/cri-containerd-66221e7d988e193822a3e8368b61ad9aeabf6b5276df76daebb7ea33bccc0b87.scope",
        "18640755-cc12-4557-b96e-0f74d5b44d1d",
        "66221e7d988e193822a3e8368b61ad9aeabf6b5276df76daebb7ea33bccc0b87",
    ),
    (
        "kind with NRI: pod, runtime and container in one segment",
        "0::/kubelet-kubepods-besteffort-pod1e597579_417e_482f_bf65_5fe170c3aebd.slice:cri-containerd:a09bc17f5aa29b0dbdec9ede5f46cf1396d2405917ab02e6f1eb1019f388396e",
        "1e597579-417e-482f-bf65-5fe170c3aebd",
        "a09bc17f5aa29b0dbdec9ede5f46cf1396d2405917ab02e6f1eb1019f388396e",
    ),
    (
        "systemd docker, dashes kept",
        "5:devices:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2c48913c-b29f-11e7-9350-020968147796.slice/docker-9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961.scope",
        "2c48913c-b29f-11e7-9350-020968147796",
        "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961",
    ),
    (
        "systemd docker, underscores",
        "5:devices:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podc68f332c_8897_11e9_9797_525400c9c704.slice/docker-ab704ba978feea085662fd58c3448624de9287dd50c7d01608b27b08f96c8725.scope",
        "c68f332c-8897-11e9-9797-525400c9c704",
        "ab704ba978feea085662fd58c3448624de9287dd50c7d01608b27b08f96c8725",
    ),
    (
        "containerd with colons",
        "0::/kubepods-besteffort-pod72f7f152_440c_66ac_9084_e0fc1d8a910c.slice:cri-containerd:b2a102854b4969b2ce98dc329c86b4fb2b06e4ad2cc8da9d8a7578c9cd2004a2",
        "72f7f152-440c-66ac-9084-e0fc1d8a910c",
        "b2a102854b4969b2ce98dc329c86b4fb2b06e4ad2cc8da9d8a7578c9cd2004a2",
    ),
    (
        "containerd with colons, below containerd.service",
        "9:cpuacct,cpu:/system.slice/containerd.service/kubepods-besteffort-pod0125ec2f_b64a_4868_8f5b_94b56cbab864.slice:cri-containerd:ee4b20e90ac7f42a10bd004d05646b13d8ab5e2c5e7cbc01abf8006bac016459",
        "0125ec2f-b64a-4868-8f5b-94b56cbab864",
        "ee4b20e90ac7f42a10bd004d05646b13d8ab5e2c5e7cbc01abf8006bac016459",
    ),
    (
        "cri-o v1",
        "9:devices:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod561fd272_d131_47ef_a01b_46a997a778f3.slice/crio-030ded69d4c98fcf69c988f75a5eb3a1b4357e1432bd5510c936a40d7e9a1198.scope",
        "561fd272-d131-47ef-a01b-46a997a778f3",
        "030ded69d4c98fcf69c988f75a5eb3a1b4357e1432bd5510c936a40d7e9a1198",
    ),
    (
        "cri-o v2",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podb57320a0_e7eb_4ac8_a791_4c4472796867.slice/crio-0ecc7949cbaf17e883264ea1055f60b184a7cb264fd759c4a692e1155086fe2d.scope",
        "b57320a0-e7eb-4ac8-a791-4c4472796867",
        "0ecc7949cbaf17e883264ea1055f60b184a7cb264fd759c4a692e1155086fe2d",
    ),
    (
        "cri-o in a private cgroup namespace",
        "0::/../crio-45490e76e0878aaa4d9808f7d2eefba37f093c3efbba9838b6d8ab804d9bd814.scope",
        None,
        "45490e76e0878aaa4d9808f7d2eefba37f093c3efbba9838b6d8ab804d9bd814",
    ),
    (
        "cri-o with cgroupfs, no .scope",
        "5:devices:/kubepods/pod5884dc6c-5b0c-11e9-90bc-525400cfa589/crio-2cc1e6e2ae40b7c94dac72d68c1fff6b6d9e8058f8e26c4bd5e03ac9318b3956",
        "5884dc6c-5b0c-11e9-90bc-525400cfa589",
        "2cc1e6e2ae40b7c94dac72d68c1fff6b6d9e8058f8e26c4bd5e03ac9318b3956",
    ),
    (
        "systemd slices, bare container",
        "11:devices:/kubepods.slice/kubepods-pod97f1ae73_7ad9_11ec_b4a7_9a35488b4fab.slice/3291bfddf3f3f8d87cb0cd1245fe9c45b2e1e5a9b6fe3de1bddf041aedaecbab",
        "97f1ae73-7ad9-11ec-b4a7-9a35488b4fab",
        "3291bfddf3f3f8d87cb0cd1245fe9c45b2e1e5a9b6fe3de1bddf041aedaecbab",
    ),
    (
        "containerd systemd guaranteed",
        "0::/kubepods.slice/kubepods-podea2e69b4_0bd4_48f0_b75f_cc7c79111027.slice/cri-containerd-7ee34913fbefa6a0dbbdf1bbc302cc29a1bde3b83b8b9f2252a4d4360c373848.scope",
        "ea2e69b4-0bd4-48f0-b75f-cc7c79111027",
        "7ee34913fbefa6a0dbbdf1bbc302cc29a1bde3b83b8b9f2252a4d4360c373848",
    ),
    (
        "another pod, from a private cgroup namespace",
        "0::/../../kubepods-besteffort-pod88f6f4e3_59c0_4ce8_9ecf_391c8b5a60ad.slice/docker-656959d9ee87a0b131c601ce9d9f8f76b1dda60e8608c503b5979d849cbdc714.scope",
        "88f6f4e3-59c0-4ce8-9ecf-391c8b5a60ad",
        "656959d9ee87a0b131c601ce9d9f8f76b1dda60e8608c503b5979d849cbdc714",
    ),
    (
        "private cgroup namespace, cgroupfs",
        "0::/../../poddfd874dc-ab52-4793-af47-d06b78b68337/a3804295d867b752119eab99a9e6364fdf7fe6a4be5af0b11f9915fa7b64ff95",
        "dfd874dc-ab52-4793-af47-d06b78b68337",
        "a3804295d867b752119eab99a9e6364fdf7fe6a4be5af0b11f9915fa7b64ff95",
    ),
    (
        "private cgroup namespace, with the QoS class",
        "5:devices:/../../../burstable/pod095e82d2-713c-467a-a18a-cbb50a075296/6d1234da0f5aa7fa0ccae4c7d2d109929eb9a81694e6357bcd4547ab3985911b",
        "095e82d2-713c-467a-a18a-cbb50a075296",
        "6d1234da0f5aa7fa0ccae4c7d2d109929eb9a81694e6357bcd4547ab3985911b",
    ),
    (
        "containerd cgroupfs besteffort",
        "0::/kubepods/besteffort/pod85401dd3-38cd-47b6-a90a-e16c0e1c06e6/dbc9f149296cec5d12b78385eb5b2c0cfe20b476f117c15c76d981cff44053c1",
        "85401dd3-38cd-47b6-a90a-e16c0e1c06e6",
        "dbc9f149296cec5d12b78385eb5b2c0cfe20b476f117c15c76d981cff44053c1",
    ),
    ("static pod", f"0::/kubepods/pod{STATIC}/{LEAF}", STATIC, LEAF),
    (
        "child cgroup of a container",
        f"0::/kubepods.slice/kubepods-podea2e69b4_0bd4_48f0_b75f_cc7c79111027.slice/cri-containerd-{LEAF}.scope/nested",
        "ea2e69b4-0bd4-48f0-b75f-cc7c79111027",
        LEAF,
    ),
    (
        "ancient, two ways of naming mixed",
        "11:memory:/system.slice/docker.service/BestEffort.slice/BestEffort-pod0d33f94b_ab1a_11e6_9e1a_68f7281d8004.slice/0c34bcd7d02f321d0df7aa6ea703285b02abebc9096c5128c14091fc43ea1f3b",
        "0d33f94b-ab1a-11e6-9e1a-68f7281d8004",
        "0c34bcd7d02f321d0df7aa6ea703285b02abebc9096c5128c14091fc43ea1f3b",
    ),
    (
        "conmon inside the pod's directory: the pod's, but no container",
        f"0::/kubepods/pod5884dc6c-5b0c-11e9-90bc-525400cfa589/crio-conmon-{LEAF}",
        "5884dc6c-5b0c-11e9-90bc-525400cfa589",
        "",
    ),
    (
        "cgroup that is deleted already",
        f"0::/kubepods/pod5884dc6c-5b0c-11e9-90bc-525400cfa589/{LEAF} (deleted)",
        "5884dc6c-5b0c-11e9-90bc-525400cfa589",
        LEAF,
    ),
    (
        "pod cgroup that is deleted already",
        "0::/kubepods.slice/kubepods-podea2e69b4_0bd4_48f0_b75f_cc7c79111027.slice (deleted)",
        "ea2e69b4-0bd4-48f0-b75f-cc7c79111027",
        "",
    ),
    (
        "dashes as systemd escapes them",
        "0::/kubepods.slice/kubepods-podea2e69b4\\x2d0bd4\\x2d48f0\\x2db75f\\x2dcc7c79111027.slice/crio-"
        + LEAF,
        "ea2e69b4-0bd4-48f0-b75f-cc7c79111027",
        LEAF,
    ),
    ("podman", f"0::/machine.slice/libpod-{LEAF}.scope", None, LEAF),
    (
        "container without a pod directory (only the list of pods can tell its owner)",
        f"5:devices:/kubepods/{LEAF}",
        None,
        LEAF,
    ),
    ("v1 after a unified root", f"0::/\n5:devices:/kubepods/pod{STATIC}/{LEAF}", STATIC, LEAF),
    ("blank line between", f"5:devices:/\n\n0::/kubepods/pod{STATIC}/{LEAF}\n", STATIC, LEAF),
]


@pytest.mark.parametrize(
    ("text", "pod", "container"), [row[1:] for row in WORKLOADS], ids=[row[0] for row in WORKLOADS]
)
def test_the_pod_and_the_container_of_a_cgroup_file(text: str, pod: str | None, container: str) -> None:
    assert read_names(text) == CgroupNames((pod,) if pod else (), container)


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


_IN_A_POD = [row for row in WORKLOADS if row[2] and row[3] and "\n" not in row[1] and "deleted" not in row[0]]


@given(st.sampled_from(_IN_A_POD), _segments)
def test_cgroups_below_a_container_do_not_change_its_owner(
    row: tuple[str, str, str | None, str], below: list[str]
) -> None:
    text, pod, container = row[1:]
    names = read_names("/".join([text, *below]))
    assert (names.pod_uids[0], names.container_id) == (pod, container)
