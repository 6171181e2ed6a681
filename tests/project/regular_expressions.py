"""Refuses regular expressions that a text from outside could make slow: `python -m tests.project.regular_expressions`.

Every call of `re` in the source is found by its syntax. Its pattern must be a literal, so that nothing from
outside can become part of it, and the matcher must take linear time for it (see `backtracking`). A pattern
whose text is bounded may stand in `BOUNDED` instead, with the bound and who holds it.
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.project.backtracking import Undecided, ambiguity
from tests.project.sources import PACKAGES, ROOT, matching, modules

_FOLDERS: Final = (*PACKAGES, "deploy", "docs", "examples")
_SCRIPTS: Final = "service/page/*.js"

BOUNDED: Final[dict[tuple[str, str], str]] = {
    (
        "docs/tables.py",
        r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)",
    ): "pages of our own documentation",
    ("deploy/render.py", r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)"): "pages of our own documentation",
}
"""By file and pattern: the texts that it meets, and their length. Patterns here are not linear."""

_ANCHORED: Final = frozenset({"match", "fullmatch", "pattern"})
"""Uses that match from the beginning only, or not at all: `pattern` is the text of the expression."""
_SEARCHING: Final = frozenset({"search", "findall", "finditer", "split", "sub", "subn"})
_HARMLESS: Final = frozenset({"escape", "error", "Pattern", "Match", "purge"})
_MENTION: Final = re.compile(r"\bre\b")
"""Each module that uses `re` names it; most modules do not, so that their syntax need not be read."""
_IN_SCRIPT: Final = re.compile(r"RegExp|\.(?:match|matchAll|replace|replaceAll|search|split|test|exec)\(\s*/")


@dataclass(frozen=True, slots=True)
class Expression:
    """A regular expression in the source."""

    file: str
    """Relative to the repository."""
    line: int
    pattern: str | bytes
    flags: int
    is_search: bool
    """Whether some use of it may begin anywhere in the text."""

    @property
    def problem(self) -> str | None:
        """Return the reason why the expression is refused; None if it is accepted."""
        try:
            slowness = ambiguity(self.pattern, self.flags, is_search=self.is_search)
        except Undecided as error:
            slowness, why = None, str(error)
        else:
            why = str(slowness) if slowness else ""
        is_excepted = (self.file, self.pattern) in BOUNDED
        if why:
            return None if is_excepted else f"{self.pattern!r} is not linear: {why}"
        return f"{self.pattern!r} is linear: take it out of BOUNDED" if is_excepted else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A use of `re` that cannot be judged."""

    file: str
    line: int
    problem: str


def expressions(root: Path = ROOT) -> Iterator[Expression | Refusal]:
    """Find every regular expression of the source."""
    for path in modules(root, _FOLDERS):
        yield from find(path.read_text(encoding="utf-8"), str(path.relative_to(root)))
    for path in matching(root, _SCRIPTS):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if _IN_SCRIPT.search(line):
                yield Refusal(str(path.relative_to(root)), number, "a regular expression in JavaScript")


def find(source: str, file: str) -> Iterator[Expression | Refusal]:
    """Find every regular expression of one module."""
    if not _MENTION.search(source):
        return
    nodes = list(ast.walk(ast.parse(source)))
    uses = _uses(nodes)
    names = {id(node.value): _name(node) for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "re":
            yield Refusal(file, node.lineno, "`from re import …`: write `import re`")
        elif isinstance(node, ast.Import) and any(a.name == "re" and a.asname for a in node.names):
            yield Refusal(file, node.lineno, "`import re as …`: write `import re`")
        elif isinstance(node, ast.Call) and _is_of_re(node.func) and node.func.attr not in _HARMLESS:
            yield _expression(node, node.func.attr, file, uses.get(names.get(id(node), ""), _SEARCHING))


def _expression(call: ast.Call, function: str, file: str, uses: frozenset[str]) -> Expression | Refusal:
    """Judge a call of `re`.

    Args:
        call: the call.
        function: its name.
        file: where it stands.
        uses: the methods that are called on a compiled pattern.
    """
    if function != "compile":
        uses = frozenset({function})
    arguments = {keyword.arg: keyword.value for keyword in call.keywords}
    pattern = _literal(call.args[0] if call.args else arguments.get("pattern"))
    if not isinstance(pattern, str | bytes):
        return Refusal(file, call.lineno, "the pattern is not a literal")
    place = {"compile": 1, "split": 3, "sub": 4, "subn": 4}.get(function, 2)
    given = call.args[place] if len(call.args) > place else arguments.get("flags")
    flags = 0 if given is None else _flags(given)
    if flags is None:
        return Refusal(file, call.lineno, "the flags are not literals")
    return Expression(file, call.lineno, pattern, flags, not uses <= _ANCHORED)


def _uses(nodes: Sequence[ast.AST]) -> dict[str, frozenset[str]]:
    """Return the methods that are called on each name; a name used in another way may be searched with."""
    uses: dict[str, set[str]] = {}
    called = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            uses.setdefault(node.value.id, set()).add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in called:
            uses.setdefault(node.id, set()).add("search")
    return {name: frozenset(methods) for name, methods in uses.items() if name.startswith("_")}


def _name(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""


def _is_of_re(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
    )


def _literal(node: ast.expr | None) -> object:
    try:
        return ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None


def _flags(node: ast.expr) -> int | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        left, right = _flags(node.left), _flags(node.right)
        return None if left is None or right is None else left | right
    return int(getattr(re, node.attr)) if _is_of_re(node) else None


def problems(root: Path = ROOT) -> Iterator[str]:
    """Yield a line for each refusal, and for each exception that no expression needs."""
    uses = list(expressions(root))
    for expression in uses:
        if expression.problem:
            yield f"{expression.file}:{expression.line}: {expression.problem}"
    used = {
        (expression.file, expression.pattern) for expression in uses if isinstance(expression, Expression)
    }
    for file, pattern in BOUNDED.keys() - used:
        yield f"{file}: take {pattern!r} out of BOUNDED"


def main() -> int:
    """Print every problem; return 1 if there is one."""
    lines = list(problems())
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
