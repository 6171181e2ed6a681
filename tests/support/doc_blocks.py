"""Reads the fenced blocks of the documentation, and runs those that are marked `run`.

A block of commands follows a comment that a rendered page does not show:

    <!-- run -->                    a test runs the block in a copy of the repository, without a network
    <!-- run in deploy/alerts -->   as above, in that folder
    <!-- not run here: why -->      no test runs it, for the reason given

`<!-- unmarked commands are not run here: why -->` below the title of a page is the mark of its blocks without one.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
COMMANDS: Final = frozenset({"console", "sh", "bash", "shell"})
"""Languages of blocks that hold commands."""
OPTIONAL_PROGRAMS: Final = ("helm", "kubectl", "promtool", "openssl", "jq")
"""Programs that a block may need and a machine may lack."""

_FENCE: Final = re.compile(r"^( *)(`{3,}|~{3,})\s*(\S*)(.*)$")
_MARK: Final = re.compile(r"<!-- (?:(run)(?: in ([\w./-]+))?|not run here: (\S.*?)) -->")
_PAGE_MARK: Final = re.compile(r"^<!-- unmarked commands are (not run here: \S.*?) -->$", re.MULTILINE)
_INDENTED: Final = re.compile(
    r"^ {4,}(?:\$ )?(?:kubectl|helm|docker|kind|vcluster|make|pip|python|kaishare-\w+) \S"
)
_COPIED: Final = ("deploy", "docs", "examples", "Makefile", "README.md", "CONTRIBUTING.md")
_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Command:
    text: str
    output: str | None
    """None if the block shows no output."""


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    mark: str | None
    """The comment directly above the block, or else the page's for blocks of commands; None without one."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page}:{self.line}"

    @property
    def holds_commands(self) -> bool:
        return self.language in COMMANDS

    @property
    def runs(self) -> bool:
        match = _MARK.fullmatch(self.mark or "")
        return match is not None and match[1] is not None

    @property
    def folder(self) -> str:
        match = _MARK.fullmatch(self.mark or "")
        return (match[2] if match else None) or "."

    @property
    def problem(self) -> str | None:
        """What is wrong with the mark; None if nothing is."""
        if not self.language:
            return "the fence names no language; use console for commands, text for anything else"
        if not self.holds_commands:
            return "only blocks of commands are marked" if self.mark else None
        if self.mark is None or not _MARK.fullmatch(self.mark):
            return "the line above must be <!-- run --> or <!-- not run here: why -->, or the page must have a mark"
        if self.runs and not self.commands():
            return "a block that runs needs a line that begins with `$ `"
        return None

    def commands(self) -> list[Command]:
        """Split the block at its prompts; a line that ends in a backslash continues its command."""
        parts: list[tuple[list[str], list[str]]] = []
        continues = False
        for line in self.text.splitlines():
            if line.startswith("$ "):
                parts.append(([line[2:]], []))
                continues = line.endswith("\\")
            elif parts:
                parts[-1][0 if continues else 1].append(line)
                continues = continues and line.endswith("\\")
        return [
            Command("\n".join(command), "\n".join(output) if output else None) for command, output in parts
        ]

    def missing_programs(self, path: str) -> list[str]:
        """Return the optional programs that the block calls and the path lacks."""
        called = set(re.findall(r"(?:^\$ |\| *|&& *)([\w.-]+)", self.text, re.MULTILINE))
        return [name for name in OPTIONAL_PROGRAMS if name in called and not shutil.which(name, path=path)]


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages of the repository; CHANGELOG.md has no commands to type."""
    folders = ("docs", "deploy", "examples", "benchmarks")
    files = [*root.glob("*.md"), *(page for folder in folders for page in (root / folder).rglob("*.md"))]
    return sorted(page for page in files if page.name != "CHANGELOG.md")


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    page_mark = _PAGE_MARK.search(text)
    default = f"<!-- {page_mark[1]} -->" if page_mark else None
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        fence = _FENCE.match(lines[index])
        if fence is None:
            index += 1
            continue
        start, indent = index, len(fence[1])
        closing = re.compile(rf"^ *{re.escape(fence[2])}\s*$")
        index += 1
        while index < len(lines) and not closing.match(lines[index]):
            index += 1
        if index == len(lines):
            raise ValueError(f"{page}:{start + 1}: the fence is not closed")
        above = lines[start - 1].strip() if start else ""
        yield Block(
            page, start + 1, fence[3], "\n".join(line[indent:] for line in lines[start + 1 : index]),
            above if above.startswith("<!--") else default if fence[3] in COMMANDS else None,
        )  # fmt: skip
        index += 1


def indented_commands(page: Path) -> list[str]:
    """Return the lines outside of fences that look like a command in an indented block."""
    lines = page.read_text(encoding="utf-8").splitlines()
    inside = {
        number
        for block in blocks_of(page)
        for number in range(block.line, block.line + len(block.text.splitlines()) + 1)
    }
    return [
        f"{page.name}:{number}: {line.strip()}"
        for number, line in enumerate(lines, start=1)
        if number not in inside and _INDENTED.match(line)
    ]


def search_path() -> str:
    """Return a PATH with the environment of this Python and the programs of KUBEBUILDER_ASSETS first."""
    folders = [str(Path(sys.executable).parent), os.environ.get("KUBEBUILDER_ASSETS", "")]
    return os.pathsep.join([*filter(None, folders), os.environ.get("PATH", os.defpath)])


def copy_repository(folder: Path) -> Path:
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def isolated_environment(home: Path) -> Mapping[str, str]:
    """Return an environment without a cluster, a proxy that answers, and the user's settings."""
    nowhere = "http://127.0.0.1:9"
    return {
        "HOME": str(home), "PATH": search_path(), "LANG": "C.UTF-8", "KUBECONFIG": str(home / "no-cluster"),
        "HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "http_proxy": nowhere, "https_proxy": nowhere,
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip


@cache
def without_network() -> tuple[str, ...]:
    """Return a prefix that runs a command in a network namespace of its own; empty where Linux forbids one."""
    for prefix in (("unshare", "--net"), ("unshare", "--user", "--map-root-user", "--net")):
        if not shutil.which("unshare"):
            break
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    return ()


def run(block: Block, repository: Path, home: Path) -> Sequence[str]:
    """Run the commands of a block in one shell; return the output of each."""
    commands = block.commands()
    script = ["set -euo pipefail"]
    for number, command in enumerate(commands):
        script.append(f"{{ {command.text}\n}} > {home}/output.{number} 2>&1")
    done = subprocess.run(
        [*without_network(), "bash", "-c", "\n".join(script)], cwd=repository / block.folder,
        env=dict(isolated_environment(home)), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=_SECONDS, check=False,
    )  # fmt: skip
    files = [home / f"output.{number}" for number in range(len(commands))]
    outputs = [file.read_text(encoding="utf-8") for file in files if file.exists()]
    assert done.returncode == 0, f"{block}: exit status {done.returncode}\n{done.stderr}{''.join(outputs)}"
    return outputs
