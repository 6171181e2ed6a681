"""Text from outside is safe to show, short, and costs no more than its limit."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text import (
    first_few,
    fold,
    listed,
    one_line,
    printable,
    shorten,
    shorten_middle,
    shorten_utf8,
    width,
)

HOSTILE = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(
            "\x00\x1b\x7f\x9b\n\r\t\u00a0\u200b\u200e\u2028\u202e\u2066\ufeff\ud800\udfff\U000e0041"
        ),
    ),
    max_size=80,
)
LIMITS = st.integers(min_value=3, max_value=60)
SAFE_CATEGORIES = "LMNPS"


def is_safe(text: str) -> bool:
    """Whether every character is a blank, a letter, a mark, a number, punctuation or a symbol."""
    return all(char == " " or unicodedata.category(char)[0] in SAFE_CATEGORIES for char in text)


@given(HOSTILE, LIMITS)
def test_one_line_is_safe_short_and_encodable(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert is_safe(line)
    assert len(line) <= limit
    assert line.encode().decode() == line
    assert "  " not in line


@given(HOSTILE, LIMITS)
def test_printable_is_safe_and_has_a_character_for_each(text: str, limit: int) -> None:
    result = printable(text, limit)
    assert is_safe(result)
    assert len(result) == min(len(text), limit)
    assert result.encode().decode() == result


@given(HOSTILE, LIMITS)
def test_clean_text_that_fits_stays_as_it_is(text: str, limit: int) -> None:
    clean = one_line(text, limit)
    assert one_line(clean, limit) == printable(clean, limit) == shorten(clean, limit) == clean


@given(st.text(), LIMITS)
def test_bytes_are_cut_at_a_character(text: str, limit: int) -> None:
    cut = shorten_utf8(text, limit)
    assert len(cut.encode()) <= limit
    if cut != text:
        assert text.startswith(cut.removesuffix("…"))
        assert len(text.encode()) > limit
        assert len(cut.encode()) > limit - 4, "no more is cut off than one character"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n\n  b\tc", "a b c"), ("\x1b[31mred\x9b0m", "\ufffd[31mred\ufffd0m"),
        ("user\u202egnp.exe", "user\ufffdgnp.exe"), ("a\u200bb\ufeff", "a\ufffdb\ufffd"), ("a\ud800", "a\ufffd"),
        ("x" * 301, "x" * 299 + "…"), ("x" * 300, "x" * 300), (" " * 5000 + "x", "…"), ("模型 ü 🦜", "模型 ü 🦜"),
    ],
)  # fmt: skip
def test_a_line_of_foreign_text(text: str, line: str) -> None:
    assert one_line(text) == line


class Counted(str):
    read = 0

    def __getitem__(self, key: object) -> str:
        part = super().__getitem__(key)  # type: ignore[index]
        Counted.read += len(part)
        return part

    def __iter__(self) -> object:
        raise AssertionError("the whole text is read")

    split = isprintable = encode = __iter__  # type: ignore[assignment]


@pytest.mark.parametrize("function", [one_line, printable, shorten, shorten_utf8])
def test_the_cost_is_that_of_the_limit(function) -> None:
    Counted.read = 0
    function(Counted("\x1b\n" * 500_000), 100)
    assert Counted.read <= 401


@pytest.mark.parametrize(("text", "columns"), [("", 0), ("abc", 3), ("模型", 4), ("e\u0301", 1), ("…", 1)])
def test_columns_in_a_terminal(text: str, columns: int) -> None:
    assert width(text) == columns


@given(HOSTILE, st.integers(min_value=0, max_value=60))
def test_a_text_shortened_in_the_middle_fits_and_keeps_both_ends(text: str, columns: int) -> None:
    safe = one_line(text)
    short = shorten_middle(safe, columns)
    assert width(short) <= columns
    assert short == safe if width(safe) <= columns else "…" in short or columns == 0
    assert shorten_middle("train-resnet-5d4f8c7b96-x2x7k", 15) == "train-r…6-x2x7k"


@given(HOSTILE, st.integers(min_value=1, max_value=60), st.text(" -", max_size=8))
def test_folded_lines_fit_and_keep_every_word(text: str, columns: int, indent: str) -> None:
    safe = one_line(text)
    indent = indent[: columns - 1]
    lines = fold(safe, columns, head=indent, indent=indent)
    assert max(map(width, lines)) <= columns
    if all(width(word) <= columns for word in safe.split(" ")):
        folded = " ".join(line.removeprefix(indent[: len(line) - len(line.lstrip(" -"))]) for line in lines)
        assert [word for word in safe.split(" ") if word.strip("-")] == [
            word for word in folded.split(" ") if word.strip("-") and word in safe
        ] or "-" in indent


@pytest.mark.parametrize(
    ("text", "columns", "head", "indent", "lines"),
    [
        ("a  b   c", 10, "> ", "", ["> a  b   c"]),
        ("", 10, "> ", "  ", ["> "]),
        (" ? a  b cccccccc", 8, "", "   ", [" ? a  b", "cccccccc"]),
        ("see 0123456789 now", 12, "    ", "    ", ["    see", "  0123456789", "    now"]),
        ("see 0123456789abcdef", 12, "    ", "    ", ["    see", "012345…bcdef"]),
    ],
)
def test_a_folded_text(text: str, columns: int, head: str, indent: str, lines: list[str]) -> None:
    assert fold(text, columns, head=head, indent=indent) == lines


def test_a_list_is_cut_after_the_first_names_and_counts_the_rest() -> None:
    names = ["g", "a", "f", "b\n", "e", "c", "d"]
    assert listed(names) == "a, b, c, d, e and 2 more"
    assert listed(names[:5]) == "a, b, e, f, g"
    assert listed([]) == ""
    assert first_few(names, 2) == "g, a and 5 more"
    assert first_few(names, 7) == "g, a, f, b, e, c, d"
