"""Watched files: every change is said once, whatever it keeps the same."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from service.file_watch import FileWatch


def settle(*paths: Path) -> None:
    """Wait until the last change of any of them is no longer fresh."""
    newest = max((path.stat().st_ctime for path in paths if path.exists()), default=0.0)
    while time.time() - newest < 0.06:
        time.sleep(0.01)


def replace(file: Path) -> None:
    (file.parent / "new").write_text("two")
    (file.parent / "new").rename(file)


def rewrite_with_the_same_time(file: Path) -> None:
    before = file.stat()
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "rewritten": lambda file: file.write_text("two"), "rewritten, its time put back": rewrite_with_the_same_time,
    "replaced": replace, "gone": Path.unlink, "unreadable": lambda file: file.chmod(0o000),
    "a directory now": lambda file: (file.unlink(), file.mkdir()),
}  # fmt: skip


@pytest.mark.parametrize("title", CHANGES)
@pytest.mark.parametrize("watched", ["the file", "its directory"])
def test_a_change_is_reported_once(tmp_path: Path, title: str, watched: str) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    watch = FileWatch(file if watched == "the file" else tmp_path)
    assert not watch.changed()
    CHANGES[title](file)
    settle(file, tmp_path)
    assert watch.changed()
    assert not watch.changed()


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    watch = FileWatch(file)
    assert watch.is_unchanged()
    file.write_text("tw")
    assert not watch.is_unchanged()
    settle(file)
    assert watch.changed()
    assert watch.is_unchanged()


def test_a_file_being_written_is_reported_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    watch = FileWatch(file)
    file.write_text("tw")
    if watch.changed():
        pytest.skip("this machine took 50 ms from one line to the next")
    file.write_text("two")
    settle(file)
    assert watch.changed()


def test_a_file_from_the_future_is_no_reason_to_wait(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    watch = FileWatch(file)
    file.write_text("two")
    os.utime(file, (time.time() + 3600, time.time() + 3600))
    settle(file)
    assert watch.changed()


def test_files_may_come_and_go(tmp_path: Path) -> None:
    watch = FileWatch(tmp_path / "nowhere", tmp_path / "folder")
    assert not watch.changed()
    (tmp_path / "folder").mkdir()
    settle(tmp_path / "folder")
    assert watch.changed()
    (tmp_path / "folder" / "file").write_text("one")
    settle(tmp_path / "folder" / "file")
    assert watch.changed()
