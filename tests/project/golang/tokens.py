"""Splits Go source into tokens."""

import json
import re
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<string>"(?:[^"\\\n]|\\.)*"|`[^`]*`|'(?:[^'\\\n]|\\.)*')"""
    r"|(?P<name>[^\W\d]\w*)|(?P<number>\d[\w.]*)"
    r"|(?P<sign>:=|==|!=|<=|>=|&&|\|\||\.\.\.|<-|\+\+|--|[-+*/%&|^]=|&\^|<<|>>|[^\s\w])"
)
_CLOSING: Final = {")": "(", "]": "[", "}": "{"}
_ENDS_A_STATEMENT: Final = frozenset({")", "]", "}", "++", "--"})
_CONTINUING: Final = frozenset(
    {
        *("package", "import", "func", "type", "const", "var", "struct", "map", "interface", "chan"),
        *("if", "else", "for", "range", "switch", "select", "case", "default", "go", "defer", "goto"),
    }
)
"""Keywords after which a statement goes on in the next line."""
KEYWORDS: Final = _CONTINUING | {"return", "break", "continue", "fallthrough"}
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
        if before in ("interface", "struct", ",", "{", ":"):
            return True
        if before == "}":
            return self.at(self.pairs[index - 1] - 1) in ("interface", "struct")
        start = index - 1
        while self.is_name(start) and self.at(start - 1) in (".", "*"):
            start -= 2 if self.at(start - 1) == "." else 1
        if self.is_name(start) and self.at(start - 1) == "]":
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
