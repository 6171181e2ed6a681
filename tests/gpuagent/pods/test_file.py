"""Pods from a file that changes while the agent runs."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent.pods import file_pods
from gpuagent.pods.file_pods import FilePods
from service.documents import DocumentError
from service.log import JsonLog
from tests.support.kube_objects import (
    GROUP_0,
    NODE,
    RESERVATIONS,
    bind_request,
    fraction,
    listed,
    node,
    pod,
    reservation,
)


class Source:
    """A FilePods on a file of its own, with a clock to be set."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.now = 1000.0
        self.stream = BytesIO()
        path.write_text(text)
        self.pods = file_pods_of(path, self.stream, clock=lambda: self.now)

    @property
    def names(self) -> list[str]:
        assert self.pods.inventory is not None
        return [node_pod.name for node_pod in self.pods.inventory.pods.values()]

    @property
    def warnings(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in lines if line["level"] == "warning"]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.pods.run())
        try:
            yield
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def until(self, holds: Callable[[], bool]) -> float:
        """Wait as long as an edit may take to count; return how long it took."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        while not holds():
            assert loop.time() - start < 10, "an edit counts within 2 s, on a machine with nothing else to do"
            await asyncio.sleep(0.02)
        return loop.time() - start


def text(*documents: dict[str, Any], kind: str = "List") -> str:
    return json.dumps(listed(*documents, kind=kind))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "pods.json", text(fraction(), reservation(), node()))


@pytest.mark.parametrize("kind", ["List", "PodList"])
@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump], ids=["JSON", "YAML"])
def test_a_list_is_read_at_once(tmp_path: Path, kind: str, write: Callable[[Any], str]) -> None:
    source = Source(tmp_path / "pods", write(listed(fraction(), reservation(), kind=kind)))
    assert source.names == ["half"]
    assert source.pods.inventory is not None
    assert list(source.pods.inventory.reservations) == [GROUP_0]
    assert not source.warnings
    several = Source(tmp_path / "pods.yaml", yaml.safe_dump_all([pod("a", 1), pod("b", 2), node()]))
    assert several.names == ["a", "b"]


def test_a_file_that_was_read_is_logged_once(source: Source) -> None:
    (line,) = source.stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["file"], entry["node"]) == (str(source.path), NODE)
    assert (entry["pods"], entry["reservation_pods"], entry["pods_elsewhere"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        (b"", "empty; expected a v1 PodList or a v1 List"),
        (b"# nothing\n", "empty; expected a v1 PodList or a v1 List"),
        (b"{", "not YAML"),
        (b'{"kind": "PodList", "items": [', "not YAML"),
        (b"items: [\n- a: b\n", "not YAML"),
        (b"just words", "expected a v1 PodList, a v1 List or objects with a kind, got str"),
        (b"{}", "got object without kind"),
        (b"- kind: Pod\n", "got array"),
        (b'{"kind": "PodList", "items": 5}', "PodList: items: expected array, got int"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b'{"kind": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a":' * 100_000, "nested too deep"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_missing_or_broken_file_at_the_start(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "pods.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DocumentError) as raised:
        file_pods_of(path, BytesIO())
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def file_pods_of(path: Path, stream: BytesIO, **options: Any) -> FilePods:
    return FilePods(path=path, node=NODE, reservation_namespace=RESERVATIONS, log=JsonLog(stream), **options)


def test_a_directory_and_a_pipe_are_no_file_and_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in ((tmp_path, "Is a directory"), (tmp_path / "pipe", "pipe: not a regular file")):
        with pytest.raises(DocumentError, match=message):
            file_pods_of(path, BytesIO())


async def test_a_bind_request_that_leaves_the_file_counts_until_its_pod_ends(source: Source) -> None:
    def portions() -> dict[tuple[str, str], str]:
        assert source.pods.inventory is not None
        return {key: request.portion for key, request in source.pods.inventory.bind_requests.items()}

    async with source.running():
        for items, expected in (
            ([fraction(), bind_request()], "0.50"),
            ([fraction(), bind_request(portion="0.25")], "0.25"),
            ([fraction(), pod("more", 2)], "0.25"),
            ([fraction(), bind_request(number=7, portion="0.90")], "0.25"),
        ):
            source.path.write_text(text(*items))
            await source.until(lambda expected=expected: portions() == {("research", "half"): expected})  # type: ignore[misc]
            await asyncio.sleep(1.3)
            assert portions() == {("research", "half"): expected}
        source.path.write_text(text(fraction(phase="Succeeded")))
        await source.until(lambda: portions() == {})


def test_a_malformed_pod_is_one_line_and_the_rest_goes_on(tmp_path: Path) -> None:
    bad = pod("bad", 1, annotations={"gpu-fraction": 0.5})
    source = Source(
        tmp_path / "pods.json", text(bad, pod("good", 2), pod("without-uid", 3) | {"metadata": {"name": "x"}})
    )
    assert source.names == ["good"]
    assert [(line["file"], line["error"]) for line in source.warnings] == [
        (str(source.path), "Pod research/bad: metadata.annotations[gpu-fraction]: expected str, got float; put it in quotes; skipped"),
        (str(source.path), "Pod default/x: metadata.uid: expected a UID, got none; skipped"),
    ]  # fmt: skip


def test_many_malformed_pods_are_few_lines(tmp_path: Path) -> None:
    bad = [pod(f"bad-{number}", number, annotations={"a": 1}) for number in range(50)]
    source = Source(tmp_path / "pods.json", text(*bad))
    assert len(source.warnings) == 21
    assert source.warnings[-1]["more"] == 30


def cut_off(path: Path) -> None:
    path.write_text('{"kind": "PodList", "items": [')


def replace_with_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("breaks", "message"),
    [(cut_off, "not YAML"), (Path.unlink, "No such file"), (replace_with_a_pipe, "not a regular file")],
)
async def test_a_file_that_breaks_keeps_the_last_good_list_and_is_logged_once(
    source: Source, breaks: Callable[[Path], None], message: str
) -> None:
    async with source.running():
        breaks(source.path)
        await source.until(lambda: bool(source.warnings))
        await asyncio.sleep(1)
        assert source.names == ["half"]
        (line,) = source.warnings
        assert str(source.path) in line["error"]
        assert message in line["error"]
        source.path.unlink(missing_ok=True)
        source.path.write_text(text(pod("mended", 1)))
        await source.until(lambda: source.names == ["mended"])


async def test_a_file_that_is_written_piece_by_piece_is_not_read_in_between(source: Source) -> None:
    """Half of a YAML list is a shorter list, and what was known of the pods that it lacks would be forgotten."""
    pods = [pod(f"pod-{number}", number) for number in range(4)]
    whole = yaml.safe_dump(listed(*pods))
    seen = set()
    async with source.running():
        with source.path.open("w") as file:
            for number in range(4):
                file.write(whole[len(whole) * number // 4 : len(whole) * (number + 1) // 4])
                file.flush()
                for _ in range(5):
                    await asyncio.sleep(0.03)
                    seen.add(tuple(source.names))
        await source.until(lambda: len(source.names) == 4)
    assert seen <= {("half",), tuple(document["metadata"]["name"] for document in pods)}
    assert not source.warnings


async def test_contact_is_lost_while_the_file_is_broken(source: Source) -> None:
    assert source.pods.seconds_since_contact() == 0
    async with source.running():
        source.now += 30
        await source.until(lambda: source.pods.seconds_since_contact() == 0)
        source.path.write_text("{")
        await source.until(lambda: bool(source.warnings))
        source.now += 61
        await asyncio.sleep(0.6)
        assert source.pods.seconds_since_contact() >= 61
        source.path.write_text(text())
        await source.until(lambda: source.pods.seconds_since_contact() == 0)


async def test_a_file_that_cannot_be_read_for_a_moment_is_read_again(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [DocumentError("pods.json: Too many open files")] * 2
    content = file_pods._content

    def read(path: Path) -> bytes:
        if failures:
            raise failures.pop()
        return content(path)

    monkeypatch.setattr(file_pods, "_content", read)
    monkeypatch.setattr(file_pods, "_LOOKS_TO_RETRY", 2)
    async with source.running():
        source.path.write_text(text(pod("later")))
        await source.until(lambda: source.names == ["later"])
    assert [line["error"] for line in source.warnings] == ["pods.json: Too many open files"]


async def test_a_warning_is_not_repeated(tmp_path: Path) -> None:
    bad = pod("bad", 1, annotations={"a": 1})
    source = Source(tmp_path / "pods.json", text(bad))
    async with source.running():
        source.path.write_text(text(bad, pod("more", 2)))
        await source.until(lambda: source.names == ["more"])
        assert len(source.warnings) == 1
        source.path.write_text(text(pod("bad", 1), pod("more", 2)))
        await source.until(lambda: len(source.names) == 2)
        source.path.write_text(text(bad))
        await source.until(lambda: source.names == [])
        assert len(source.warnings) == 2
