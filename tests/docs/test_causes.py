"""docs/troubleshooting.md has a section for each cause that `kaishare why` finds, and no other of that form."""

import re
import ssl
from pathlib import Path

import pytest

from certs.authority import Authority
from console.why.core import explain
from console.why.explanation import CODES, Code, PodFinding, as_text
from tests.support.api_server import object_server
from tests.support.doc_blocks import ROOT, blocks_of
from tests.support.why_states import RELEASES, folder, put, read, states

PAGE = ROOT / "docs" / "troubleshooting.md"
SECTIONS = dict(
    re.findall(
        r"^### ([a-z-]+)\n\n(.+?)(?=\n##|\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
)
READERS = ("Developer", "Policy owner", "Administrator")


def test_every_code_has_a_section_and_every_section_a_code() -> None:
    assert set(SECTIONS) == set(CODES)
    for code in CODES:
        page, _, anchor = PodFinding(code, "").page.partition("#")
        assert (ROOT / page, anchor in SECTIONS) == (PAGE, True)


@pytest.mark.parametrize("code", [code for code in CODES if not PodFinding(code, "").is_fine])
def test_a_section_says_who_can_do_something(code: Code) -> None:
    items = re.findall(r"^- ([A-Z][A-Za-z ,]+?):", SECTIONS[code], re.MULTILINE)
    readers = [reader for item in items for reader in item.capitalize().split(", ")]
    assert readers
    assert {reader.capitalize() for reader in readers} <= set(READERS), items


@pytest.mark.skipif(folder() is None, reason="KAISHARE_FIXTURES must name a folder with why/")
async def test_the_example_of_the_command_is_the_answer_about_a_recorded_state(
    tmp_path: Path, authority: Authority, served: ssl.SSLContext
) -> None:
    (example,) = (
        command.output
        for block in blocks_of(ROOT / "docs" / "commands.md")
        if block.holds_commands
        for command in block.commands()
        if command.text.startswith("kaishare why ")
    )
    (state,) = (each for each in states(RELEASES[0]) if each.path.name == "04d-deployment-in-default-queue")
    name = next(pod.name for pod in state.pods() if pod.name.startswith("server-77"))
    async with object_server(tmp_path, authority, served) as server:
        put(server, state)
        answer = explain(await read(server, state.namespace, name))
    lines = as_text(answer, columns=80, program="kaishare")
    assert example is not None
    assert example.splitlines() == lines
