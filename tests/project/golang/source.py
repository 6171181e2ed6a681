"""Reads Go source: the declarations of each file, and the packages of a checkout.

Only syntax is read, and no types. A name of a method or of a field therefore stands for all methods and fields
of this name.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.project.golang.tokens import Code, Span, literal, tokens

_SKIPPED_FOLDERS: Final = frozenset(
    {"test_utils", "test-utils", "testutils", "env-tests", "e2e", "fake", "fakes", "mock", "mocks"}
)
_GENERATED: Final = "// Code generated "
"""Beginning of a generated file's first comment, as Go's convention has it; such code follows from types."""


@dataclass(slots=True, eq=False)
class Function:
    """A function, a method, or a function literal that has a name."""

    file: "File"
    name: str
    is_method: bool
    params: list[str]
    types: list[str]
    """The type of each parameter, as it is written."""
    result: str
    """The types of the results, as they are written."""
    body: Span
    outer: "Function | None" = None

    @property
    def top(self) -> "Function":
        """The function of the file's top level that contains this one."""
        return self.outer.top if self.outer else self


@dataclass(slots=True, eq=False)
class File:
    """One file of Go source."""

    path: str
    """Relative to the checkout."""
    folder: str
    code: Code
    imports: dict[str, str] = field(default_factory=dict)
    """Import path by the name that the file uses."""
    functions: list[Function] = field(default_factory=list)
    variables: list[tuple[str, Span]] = field(default_factory=list)
    """Constants and variables of the package, with their values."""

    def function_at(self, index: int) -> Function | None:
        """Return the function of the top level that contains a token."""
        for function in self.functions:
            if function.outer is None and function.body[0] <= index < function.body[1]:
                return function
        return None

    def innermost_at(self, index: int) -> Function | None:
        """Return the innermost function, literals included, that contains a token."""
        around = [f for f in self.functions if f.body[0] <= index < f.body[1]]
        return max(around, key=lambda f: f.body[0], default=None)


@dataclass(slots=True)
class Checkout:
    """The packages of a checkout."""

    module: str
    files: list[File] = field(default_factory=list)
    variables: dict[tuple[str, str], list[tuple[File, Span]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Values of each constant and variable, by folder and name."""
    functions: dict[tuple[str, str], list[Function]] = field(default_factory=lambda: defaultdict(list))
    methods: dict[str, list[Function]] = field(default_factory=lambda: defaultdict(list))
    occurrences: dict[str, list[tuple[File, int]]] = field(default_factory=lambda: defaultdict(list))
    """Every place of each identifier."""

    def folder_of(self, import_path: str) -> str | None:
        """Return the folder of an imported package; None if it is outside of the checkout."""
        if import_path == self.module:
            return ""
        return (
            import_path.removeprefix(f"{self.module}/") if import_path.startswith(self.module + "/") else None
        )

    def add(self, file: File) -> None:
        """Take a file's declarations into the indexes."""
        self.files.append(file)
        for name, span in file.variables:
            self.variables[file.folder, name].append((file, span))
        for function in file.functions:
            if function.is_method:
                self.methods[function.name].append(function)
            elif function.outer is None:
                self.functions[file.folder, function.name].append(function)
        for index in range(len(file.code.texts)):
            if file.code.is_name(index):
                self.occurrences[file.code.texts[index]].append((file, index))


def read_checkout(root: Path) -> Checkout:
    """Read the Go source of a checkout below pkg/ and cmd/, without tests and generated files.

    Raises:
        ValueError: the folder is no checkout, or a file cannot be read.
    """
    try:
        module = (root / "go.mod").read_text(encoding="utf-8").split("module", 1)[1].split()[0]
    except (OSError, IndexError):
        raise ValueError("has no go.mod that names a module") from None
    checkout = Checkout(module)
    for path in sorted([*(root / "pkg").rglob("*.go"), *(root / "cmd").rglob("*.go")]):
        relative = path.relative_to(root)
        if path.name.endswith("_test.go") or _SKIPPED_FOLDERS.intersection(relative.parts):
            continue
        source = path.read_text(encoding="utf-8")
        if not source.startswith(_GENERATED) and f"\n{_GENERATED}" not in source.split("\npackage ", 1)[0]:
            try:
                checkout.add(parse(source, relative.as_posix()))
            except ValueError as error:
                raise ValueError(f"{relative}: {error}") from None
    return checkout


def parse(source: str, path: str) -> File:
    """Read the declarations of one file."""
    code = tokens(source)
    file = File(path, path.rpartition("/")[0], code)
    index = 0
    while index < len(code.texts):
        word = code.texts[index]
        if word in ("import", "const", "var"):
            if code.at(index + 1) == "(":
                span = (index + 2, code.pairs[index + 1])
                index = code.pairs[index + 1]
            else:
                span = (index + 1, code.statement_end(index + 1))
                index = span[1]
            for spec in code.split(span, ";"):
                _specification(file, word, spec)
        elif word == "func" and code.at(index - 1) in (";", ""):
            index = _function(file, index)
        elif code.pairs[index] > index:
            index = code.pairs[index]
        index += 1
    return file


def _specification(file: File, word: str, spec: Span) -> None:
    code = file.code
    if word == "import":
        path = literal(code.texts[spec[1] - 1]) or ""
        parts = path.split("/")
        name = parts[-2] if re.fullmatch("v[0-9]+", parts[-1]) and len(parts) > 1 else parts[-1]
        file.imports[code.texts[spec[0]] if spec[1] - spec[0] > 1 else name] = path
        return
    sides = code.split(spec, "=")
    if len(sides) == 2:
        names = [code.texts[part[0]] for part in code.split(sides[0])]
        values = code.split(sides[1])
        for place, name in enumerate(names):
            file.variables.append((name, values[min(place, len(values) - 1)]))


def _function(file: File, index: int) -> int:
    """Add a function of the top level and the literals in it, and return its last token."""
    code, start = file.code, index + 1
    is_method = code.at(start) == "("
    if is_method:
        start = code.pairs[start] + 1
    opening = start + 1
    if code.at(opening) == "[":
        opening = code.pairs[opening] + 1
    brace = code.pairs[opening] + 1
    while code.at(brace) not in ("{", ";", "") or code.at(brace - 1) in ("interface", "struct"):
        brace = code.pairs[brace] + 1 if code.pairs[brace] > brace else brace + 1
    if code.at(brace) != "{":
        return brace
    body = (brace + 1, code.pairs[brace])
    params, types = _parameters(code, opening)
    result = code.text((code.pairs[opening] + 1, brace))
    function = Function(file, code.texts[start], is_method, params, types, result, body)
    file.functions.append(function)
    for place in range(*body):
        if code.texts[place] == "func" and code.at(place + 1) == "(":
            _literal(file, function, place)
    return code.pairs[brace]


def _literal(file: File, function: Function, index: int) -> None:
    code = file.code
    brace = code.pairs[index + 1] + 1
    while code.at(brace) not in ("{", ";", ",", ")", "") or code.at(brace - 1) in ("interface", "struct"):
        brace = code.pairs[brace] + 1 if code.pairs[brace] > brace else brace + 1
    if code.at(brace) == "{":
        name = code.at(index - 2) if code.at(index - 1) in (":=", "=") else ""
        body = (brace + 1, code.pairs[brace])
        params, types = _parameters(code, index + 1)
        result = code.text((code.pairs[index + 1] + 1, brace))
        file.functions.append(Function(file, name, False, params, types, result, body, outer=function))


def _parameters(code: Code, opening: int) -> tuple[list[str], list[str]]:
    """Return the names and the types of a function's parameters."""
    parts = code.split((opening + 1, code.pairs[opening]))
    names = [code.texts[part[0]] for part in parts]
    types: list[str] = []
    for start, end in reversed(parts):
        types.insert(0, code.text((start + 1, end)) if end - start > 1 else types[0] if types else "")
    return names, types
