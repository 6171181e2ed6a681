"""Reads Go source: tokens, the declarations of each file, and the packages of a checkout.

Only syntax is read, and no types. A name of a method or of a field therefore stands for all methods and fields
of this name.
"""

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<string>"(?:[^"\\\n]|\\.)*"|`[^`]*`|'(?:[^'\\\n]|\\.)*')"""
    r"|(?P<name>[^\W\d]\w*)|(?P<number>\d[\w.]*)"
    r"|(?P<sign>:=|==|!=|<=|>=|&&|\|\||\.\.\.|<-|\+\+|--|[-+*/%&|^]=|&\^|<<|>>|[^\s\w])"
)
_CLOSING: Final = {")": "(", "]": "[", "}": "{"}
_ENDS_A_STATEMENT: Final = frozenset({")", "]", "}", "++", "--"})
_CONTINUING: Final = frozenset(
    "package import func type const var if else for switch select case default go defer range struct map"
    " interface chan goto".split()
)
KEYWORDS: Final = _CONTINUING | {"return", "break", "continue", "fallthrough"}
_SKIPPED_FOLDERS: Final = frozenset(
    {"test_utils", "test-utils", "testutils", "env-tests", "e2e", "fake", "fakes", "mock", "mocks"}
)
_GENERATED: Final = "// Code generated "
"""Beginning of a generated file's first comment, as Go's convention has it; such code follows from types."""

Span = tuple[int, int]
"""The first token of an expression, and the token after its last one."""


@dataclass(slots=True)
class Code:
    """The tokens of one file."""

    texts: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    pairs: list[int] = field(default_factory=list)
    """The index of the bracket that belongs to a bracket; -1 for other tokens."""
    parents: list[int] = field(default_factory=list)
    """The index of the innermost open bracket around each token; -1 outside of brackets."""

    def text(self, span: Span) -> str:
        """Return the source of an expression, in one notation for all layouts."""
        text = ""
        for token in self.texts[span[0] : span[1]]:
            if text and (text[-1].isalnum() or text[-1] == "_") and (token[0].isalnum() or token[0] == "_"):
                text += " "
            text += ", " if token == "," else token
        return text.replace(", )", ")").replace(", }", "}")

    def at(self, index: int) -> str:
        """Return a token's text, or an empty text outside of the file."""
        return self.texts[index] if 0 <= index < len(self.texts) else ""

    def is_name(self, index: int) -> bool:
        """Whether a token is an identifier."""
        text = self.at(index)
        return (text[:1].isalpha() or text[:1] == "_") and text not in KEYWORDS

    def split(self, span: Span, sign: str = ",") -> list[Span]:
        """Split an expression at a sign outside of its brackets, and drop empty parts."""
        parts, start, index = [], span[0], span[0]
        while index < span[1]:
            if self.texts[index] in "([{" and self.pairs[index] >= 0:
                index = self.pairs[index]
            elif self.texts[index] == sign:
                parts.append((start, index))
                start = index + 1
            index += 1
        parts.append((start, span[1]))
        return [self.strip(part) for part in parts if self.strip(part)[0] < part[1]]

    def strip(self, span: Span) -> Span:
        """Remove the ends of statements at the ends of an expression."""
        start, end = span
        while start < end and self.texts[start] == ";":
            start += 1
        while start < end and self.texts[end - 1] == ";":
            end -= 1
        return start, end

    def statement_end(self, index: int) -> int:
        """Return the index of the token that ends the statement of a token."""
        while index < len(self.texts):
            text = self.texts[index]
            if text in (";", ")", "]", "}"):
                return index
            if text == "{" and not self._is_literal(index):
                return index
            index = self.pairs[index] + 1 if self.pairs[index] > index else index + 1
        return index

    def _is_literal(self, index: int) -> bool:
        """Whether a brace begins the values of a composite literal or the body of a function literal."""
        before = self.at(index - 1)
        if before in ("]", "}", "interface", "struct", ",", "{", ":"):
            return True
        start = index
        while start > 0 and self.texts[start - 1] not in (";", "{", "}"):
            start = self.pairs[start - 1] if self.texts[start - 1] in ")]" else start - 1
        words = self.texts[start:index]
        if "func" in words and words[0] != "func":
            return True
        return words[:1] not in (["if"], ["for"], ["switch"], ["select"]) and "else" not in words


def tokens(source: str) -> Code:
    """Split Go source into tokens, with `;` where a line ends a statement."""
    code, position, line, opened = Code(), 0, 1, [-1]

    def add(text: str) -> None:
        if text in _CLOSING and len(opened) > 1:
            code.pairs[opened[-1]] = len(code.texts)
            code.pairs.append(opened.pop())
        else:
            code.pairs.append(-1)
        code.parents.append(opened[-1])
        if text in ("(", "[", "{"):
            opened.append(len(code.texts))
        code.texts.append(text)
        code.lines.append(line)

    while position < len(source):
        letter = source[position]
        if letter == "\n":
            last = code.at(len(code.texts) - 1)
            if last in _ENDS_A_STATEMENT or (
                last and (last[0].isalnum() or last[0] in "_\"`'") and last not in _CONTINUING
            ):
                add(";")
            line, position = line + 1, position + 1
        elif letter.isspace():
            position += 1
        elif source.startswith("//", position):
            position = _find(source, "\n", position)
        elif source.startswith("/*", position):
            end = _find(source, "*/", position) + 2
            line, position = line + source.count("\n", position, end), end
        else:
            match = _TOKEN.match(source, position)
            if match is None:
                raise ValueError(f"line {line}: {letter!r} begins no token")
            add(match[0])
            line, position = line + match[0].count("\n"), match.end()
    return code


def _find(source: str, text: str, start: int) -> int:
    end = source.find(text, start)
    return len(source) if end < 0 else end


def literal(token: str) -> str | None:
    """Return the value of a token that is a string; None for other tokens."""
    if token[:1] == "`":
        return token[1:-1]
    if token[:1] == '"':
        try:
            return str(json.loads(token))
        except ValueError:
            return None
    return None


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
        return import_path.removeprefix(f"{self.module}/") if import_path.startswith(self.module + "/") else None

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
