"""Sizes that the project keeps to, what the services load, and words that a reader does not understand."""

import ast
import graphlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.project.sources import PACKAGES, ROOT, matching, modules

LINES: Final = {
    "kai": 2_950, "certs": 1_250, "console": 15_500, "gpuagent": 14_700, "kube": 3_000, "service": 3_300,
    "webhook": 9_100, "tests": 75_000,
}  # fmt: skip
"""Most lines of Python in a folder."""


def lines_of(*patterns: str) -> int:
    return sum(
        len(file.read_text(encoding="utf-8").splitlines()) for each in patterns for file in ROOT.glob(each)
    )


@pytest.mark.parametrize(("folder", "most"), LINES.items())
def test_a_folder_does_not_grow(folder: str, most: int) -> None:
    assert most // 2 < lines_of(f"{folder}/**/*.py") <= most


def test_the_whole_does_not_grow() -> None:
    files = list(modules(ROOT))
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= 49_700
    assert len([file for file in files if file.name != "__init__.py"]) <= 260
    assert (
        len(
            [file for file in files if file.name != "__init__.py" and len(file.read_text().splitlines()) < 50]
        )
        <= 15
    )


@pytest.mark.parametrize(
    ("patterns", "most"),
    [(["service/page/*.*"], 900), (["deploy/mixin/dashboards/*"], 1_500)],
    ids=["page", "dashboards"],
)
def test_what_is_not_python_does_not_grow(patterns: list[str], most: int) -> None:
    assert most // 2 < lines_of(*patterns) <= most


def test_the_documentation_does_not_grow() -> None:
    pages = sorted(ROOT.glob("docs/**/*.md"))
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    assert len(pages) <= 32
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in (*pages, *top)) <= 60_000
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


LOADED: Final = """
import json, sys
import {modules}
print(json.dumps({{name: getattr(module, "__file__", None) for name, module in sys.modules.items()}}))
"""


@pytest.mark.parametrize(
    ("services", "most"),
    [
        pytest.param("webhook.cli, webhook.serve", 18_800, id="webhook"),
        pytest.param("gpuagent.cli, gpuagent.serve", 19_700, id="agent"),
    ],
)
def test_a_service_loads_few_lines_and_nothing_of_the_console(services: str, most: int) -> None:
    command = [sys.executable, "-c", LOADED.format(modules=services)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert not {"console", "textual", "rich", "shtab", "kube.kubeconfig"} & loaded.keys()
    files = {Path(file) for file in loaded.values() if file} & set(modules(ROOT))
    assert 10_000 < sum(len(file.read_text().splitlines()) for file in files) <= most


def test_no_module_imports_itself_through_others() -> None:
    """Such a circle works or fails by the module that is imported first."""
    files = {file.relative_to(ROOT).with_suffix(""): file for file in modules(ROOT)}
    names = {".".join(path.parts).removesuffix(".__init__"): file for path, file in files.items()}
    imports = {name: set(imported_by(file)) & names.keys() - {name} for name, file in names.items()}
    assert len(imports) > 200
    graphlib.TopologicalSorter(imports).prepare()


def imported_by(file: Path) -> Iterator[str]:
    """Yield the names that a module imports when it is loaded, which may be names of modules."""
    for statement in ast.parse(file.read_text()).body:
        match statement:
            case ast.ImportFrom(module=str(module), names=imported):
                yield module
                yield from (f"{module}.{each.name}" for each in imported)
            case ast.Import(names=imported):
                yield from (each.name for each in imported)


PHRASES: Final = {
    r"nobody(?:'s)?": "name the user or component; or use the passive",
    r"somebody(?:'s)?": "name the user or component",
    r"anybody(?:'s)?": "any user, any pod, any client",
    r"whoever|whomever": "name the user or component",
    r"who comes later": "later connections, later requests",
    r"who looks, and does not serve": "for `explain`",
    r"he|his|him|himself": "they, their, them, themselves",
    r"(?:is|are|was|were) (?:not )?ours|of (?:ours|yours|theirs)|of kaishare's(?! [a-z])|after ours|before ours": (
        "kaishare's; your"
    ),
    r"by us": "by this project",
    r"Prepare; `?run`? does it": "Set up the watch; call `run` to start it",
    r"once or now and then": "once or periodically",
    r"now and then": "periodically, or: sometimes",
    r"other than usual": "name the difference",
    r"whatever comes": "name the inputs",
    r"do so until cancelled": "name the task: keep the certificate valid until cancelled",
    r"it takes what it takes": "the framework's default applies",
    r"how much more than a figure is still not more": "tolerance above a limit",
    r"a flag stays what it is": "the flag keeps its state",
    r"(?:is|were|was) (?:not )?the case": "the condition is (not) met; None if there is none",
    r"nothing speaks against|what speaks against": "is allowed; the objection",
    r"going on without": "resource unavailable",
    r"no longer without": "resource available again",
    r"and more of its objects": "more invalid objects",
    r"images do not tell": "version not found in image tags",
    r"as plain text, and end": "print once as plain text and exit",
    r"(?:the|an) ordinary end": "the normal end, the normal timeout",
    r"anew": "again; restart",
    r"for want of": "because … is missing",
    r"what there is to do": "the action",
    r"of (?:its|our|your|his|their|one's) (?:own )?making": "that … creates",
    r"that (?:is|are) none": "without",
    r"all is well": "no problem found",
    r"there is no telling": "unknown",
    r"(?:can|could|may|might|to) be had": "is available; can be fetched",
    r"seen live": "observed on",
    r"is sought": "has recent connections",
    r"(?:comes?|came) of it": "the result",
    r"what (?:became|becomes|came|comes) of": "the result of",
    r"put(?:s|ting)? right": "correct",
    r"in the mean": "on average",
    r"some [0-9][0-9,.]*": "about N",
    r"had not to": "did not have to",
    r"from a stranger|a stranger (?:needs|may)": "untrusted; a new user",
    r"on its worst day": "with faults",
    r"wants? to know": "needs",
    r"whose memory it": "attribution of memory",
    r"told so": "notified",
    r"asked (?:about|after)": "requested, sent to, looked up",
    r"gets? at the": "gets access to the",
    r"give[ns]? away|giving away|gave away": "allocate",
    r"in (?:another|other) people's": "of other components",
}  # fmt: skip
"""Wording that readers did not understand, as regular expressions in any case, each with what to write."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield each file that users or contributors read, with its text; markers of comments are blanks."""
    prose = (
        "*.md", "docs/**/*.md", "deploy/**/*.md", "deploy/**/*.yaml", "deploy/**/*.*sonnet", "service/page/*.*s",
    )  # fmt: skip
    for path in (
        *matching(ROOT, *prose),
        *modules(ROOT, (*PACKAGES, "deploy", "docs", "examples", "benchmarks")),
    ):
        if path.name != "CHANGELOG.md":  # quotes former messages
            text = path.read_text(encoding="utf-8")
            yield str(path.relative_to(ROOT)), re.sub(r"(?m)^[ \t]*(?:#+|//|\*)", " ", text)


def test_no_text_has_wording_that_readers_do_not_understand() -> None:
    any_phrase = re.compile(rf"\b(?:{'|'.join(PHRASES)})(?![\w-])".replace(" ", r"\s+"), re.IGNORECASE)
    assert any_phrase.search("A text that\nbegins  anew.")
    matches = [f"{name}: {match[0]!r}" for name, text in texts() for match in any_phrase.finditer(text)]
    assert not matches, "\n".join(matches)
