"""Words of scripts: those that a POSIX shell would find, without comments; and values of options."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kai.command_lines import option_value, option_values, script_words

PIECES = st.sampled_from(
    [*" \t\n;&|()<>'\"\\", "a", "--b=c", "é", "$X", "''", '""', "\\\n", "'a b'", '"a b"', '"\\""', '"\\n"']
)


def by_shlex(script: str) -> list[str]:
    """Split a script without comments by the standard library; at blanks where a quote does not end."""
    joined = script.replace("\\\n", " ")
    words = shlex.shlex(joined, posix=True, punctuation_chars=True)
    words.whitespace_split, words.commenters = True, ""
    try:
        return list(words)
    except ValueError:
        return joined.split()


@given(st.lists(PIECES, max_size=30).map("".join))
def test_words_are_those_of_the_standard_library(script: str) -> None:
    script = f"x {script}"  # a script does not begin with a hyphen
    assert list(script_words(["sh", "-c", script])) == by_shlex(script)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("a # b\nc", ["a", "c"]), ("#!/bin/sh\na", ["a"]), ("a;# b", ["a", ";"]), ("a # it's\nb", ["a", "b"]),
        ("${HOSTNAME##*-} b", ["${HOSTNAME##*-}", "b"]), ("$# b", ["$#", "b"]), ("a#b c", ["a#b", "c"]),
        ("'a # b' c", ["a # b", "c"]), ('"a # b" c', ["a # b", "c"]), ("\\# a", ["#", "a"]),
    ],
)  # fmt: skip
def test_a_comment_begins_with_a_word_and_ends_with_the_line(script: str, words: list[str]) -> None:
    assert list(script_words(["bash", "-c", script])) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["torchrun", "--nnodes=4", "--no-python", "bash", "-c", "a b"], ["torchrun", "--nnodes=4", "--no-python", "a", "b"]),
        (["a", "bash"], ["a", "bash"]),
        (["bash", "a.sh", "-c", "b c"], ["bash", "a.sh", "-c", "b c"]),
        (["/usr/bin/tini", "--", "/bin/sh", "-ec", "a;b"], ["/usr/bin/tini", "--", "a", ";", "b"]),
    ],
)  # fmt: skip
def test_a_script_takes_the_place_of_its_shell(line: list[str], words: list[str]) -> None:
    assert list(script_words(line)) == words


def test_the_last_value_of_an_option_counts() -> None:
    words = ["--a=1", "--b_c", "2", "--a", "--b-c=3", "x", "--d"]
    assert option_values(words) == {"--a": "--b-c=3", "--b-c": "3", "--d": ""}
    assert option_value("--e", words) is None
