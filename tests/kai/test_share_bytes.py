"""Bytes of a share, against figures computed from KAI's own code and observed on clusters."""

import pytest

from kai.releases import Version
from kai.share import MIB, Share, container_memory, is_container_memory_key
from kai.share_bytes import Card
from tests.support.kai_oracle import scheduler_memory

OLD = Version.parse("v0.7.11")


@pytest.mark.parametrize(
    ("label", "units", "old_units"),
    [
        (15360, 15300, 16100), (23028, 23000, 24100), (46068, 46000, 48300), (81920, 81900, 85800),
        (81559, 81500, 85500), (143771, 143700, 150700), (143771 * MIB, 143700, 150700),
    ],
)  # fmt: skip
def test_card_is_floored_to_hundreds(label: int, units: int, old_units: int) -> None:
    assert Card.from_mib(label) == Card(units, MIB)
    assert Card.from_mib(label, OLD) == Card(old_units, 10**6)


@pytest.mark.parametrize(
    ("label", "fraction", "mib"),
    [(143771, 0.5, 71850), (143771, 0.125, 17962), (143771, 0.29, 41673), (23028, 0.7, 16099)],
)
def test_fraction_is_a_truncated_product(label: int, fraction: float, mib: int) -> None:
    assert Card.from_mib(label).fraction_bytes(fraction) == mib * MIB


def test_amounts_of_memory() -> None:
    assert Card.from_mib(15360).portion_of_memory(4096) == 0.27
    assert Card.from_mib(46068).portion_of_memory(2000) == 0.05
    a10 = Card.from_mib(23028)
    assert a10.portion_of_memory(2000) == 0.09
    assert a10.fraction_bytes(0.09) == 2070 * MIB
    assert [scheduler_memory(text) for text in ("9223372036854775808", "0", "2000")] == [None, None, 2000]
    with pytest.raises(ValueError, match="less than the 100 MiB"):
        Card.from_mib(99)
    old = Card.from_mib(15360, OLD)
    assert old.memory_bytes(4000) == 4000 * 10**6, "old releases count megabytes"
    assert old.share_bytes(Share(fraction=0.5)) == 8050 * 10**6
    assert Card.from_mib(15360).share_bytes(Share(memory_mib=4000)) == 4000 * MIB


@pytest.mark.parametrize(
    ("version", "counts_megabytes"),
    [("v0.4.14", True), ("v0.4.15", False), ("v0.5.9", True), ("v0.6.13", True), ("v0.6.14", False),
     ("v0.7.99", True), ("v0.8.1", True), ("v0.8.2", False), ("v0.9.0", False), ("v0.17.0", False), ("v1.4.0", False)],
)  # fmt: skip
def test_releases_with_the_megabyte_bug(version: str, counts_megabytes: bool) -> None:
    assert Version.parse(version).counts_megabytes is counts_megabytes


@pytest.mark.parametrize(
    ("version", "reads_name", "every_container", "decimal", "dots"),
    [
        ("v0.9.11", False, False, False, False), ("v0.9.12", True, False, False, False),
        ("v0.10.0-rc6", False, False, False, False), ("v0.10.0", True, False, False, False),
        ("v0.10.1", True, True, False, False), ("v0.12.23", True, True, True, False),
        ("v0.13.4", True, True, False, False), ("v0.14.7", True, True, True, False),
        ("v0.16.2", True, True, False, False), ("v0.16.3", True, True, True, False),
        ("v0.16.5", True, True, True, True), ("v1.0.0", True, True, True, True),
    ],
)  # fmt: skip
def test_the_behaviour_of_each_release(
    version: str, reads_name: bool, every_container: bool, decimal: bool, dots: bool
) -> None:
    release = Version.parse(version)
    assert release.reads_container_name is reads_name
    assert release.validates_every_container is every_container
    assert release.demands_decimal_fraction is decimal
    assert release.accepts_dotted_names is dots


@pytest.mark.parametrize("text", ["", "0.13", "v0.13", "0.13.x", "latest", "v0.13.0.1", "0.13.0\n", "01.2.3"])
def test_version_in_another_form(text: str) -> None:
    with pytest.raises(ValueError, match="three numbers"):
        Version.parse(text)


def test_container_memory_annotations() -> None:
    key = "nvidia.com/container.{}.gpu-memory.{}"
    memories = container_memory(
        {key.format("a.b", "request"): "2Gi", key.format("a.b", "limit"): "3Gi", "x": "y"}
    )
    assert [(m.container, m.kind, m.memory_bytes) for m in memories] == [
        ("a.b", "limit", 3 << 30), ("a.b", "request", 2 << 30),
    ]  # fmt: skip
    for bad in ("0", "-1Gi", "much", ""):
        with pytest.raises(ValueError, match=r"nvidia\.com/container\.a\.gpu-memory\.request"):
            container_memory({key.format("a", "request"): bad})
    with pytest.raises(ValueError, match="more than 256 annotations"):
        container_memory({key.format(f"c{number}", "request"): "1Gi" for number in range(257)})
    assert is_container_memory_key(key.format("main", "limit"))
    assert not is_container_memory_key("nvidia.com/container.main.gpu-compute.mode")


@pytest.mark.parametrize("label", ["", "24Gi", "23028.0", " 23028", "-1", "0", "99"])
def test_a_card_by_its_label(label: str) -> None:
    with pytest.raises(ValueError, match="MiB"):
        Card.from_label(label)
    assert Card.from_label("23028") == Card.from_mib(23028)
    assert Card.from_label("15360", OLD) == Card(16100, 10**6)


@pytest.mark.parametrize(("version", "reads"), [("v0.17.0", False), ("v0.18.0", True)])
def test_requests_of_single_containers_are_read_since_v0_18(version: str, reads: bool) -> None:
    assert Version.parse(version).reads_container_memory is reads
