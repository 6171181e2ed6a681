"""The commands in the documentation: each block says whether a test runs it, and those that run give what is shown."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.doc_blocks import (
    Block,
    blocks_of,
    copy_repository,
    indented_commands,
    pages,
    run,
    search_path,
)

BLOCKS = [block for page in pages() for block in blocks_of(page)]
RUN = [block for block in BLOCKS if block.runs]


def page_with(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_every_block_of_commands_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [block for block in BLOCKS if block.holds_commands]
    counts = Counter(
        "run" if block.runs else "not run here" if block.problem is None else "without a valid mark"
        for block in commands
    )
    with capsys.disabled():
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        sys.stdout.write(f"\nblocks of commands in the documentation: {len(commands)} ({kinds})\n")
    problems = [f"{block}: {block.problem}" for block in BLOCKS if block.problem]
    problems += [line for page in pages() for line in indented_commands(page)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("block", RUN, ids=str)
def test_a_block_runs_as_it_is_written(block: Block, tmp_path: Path) -> None:
    missing = block.missing_programs(search_path())
    if missing:
        pytest.skip(f"NOT VERIFIED: {block} needs {', '.join(missing)}")
    home = tmp_path / "home"
    home.mkdir()
    outputs = run(block, copy_repository(tmp_path / "repository"), home)
    for command, output in zip(block.commands(), outputs, strict=True):
        if command.output is not None:
            assert output.rstrip("\n") == command.output.rstrip("\n"), command.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```console\n$ true\n```\n", "the line above must be"),
        ("<!-- run -->\n\n```console\n$ true\n```\n", "the line above must be"),
        ("<!-- not run here -->\n```sh\ntrue\n```\n", "the line above must be"),
        ("<!-- run -->\n```console\ntrue\n```\n", "needs a line that begins"),
        ("<!-- run -->\n```yaml\na: 1\n```\n", "only blocks of commands"),
        ("```\nkubectl get pods\n```\n", "names no language"),
        ("<!-- run -->\n```console\n$ true\n```\n", None),
        ("<!-- not run here: needs a GPU -->\n```console\n$ true\n```\n", None),
        ("# A page\n\n<!-- unmarked commands are not run here: a reason -->\n\n```console\n$ true\n```\n", None),
    ],
)  # fmt: skip
def test_a_mark_is_judged(tmp_path: Path, text: str, problem: str | None) -> None:
    (block,) = blocks_of(page_with(tmp_path, text))
    if problem is None:
        assert block.problem is None
    else:
        assert problem in (block.problem or "")


def test_a_block_that_fails_or_prints_something_else_fails(tmp_path: Path) -> None:
    page = page_with(
        tmp_path, "<!-- run -->\n```console\n$ X=1\n$ echo $X \\\n    two\n1 two\n$ false\n```\n"
    )
    (block,) = blocks_of(page)
    assert [command.output for command in block.commands()] == [None, "1 two", None]
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(AssertionError, match="exit status 1"):
        run(block, tmp_path, home)
    assert (home / "output.1").read_text() == "1 two\n"
