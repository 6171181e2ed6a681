"""The check of regular expressions knows slow ones; `make lint` runs it over the source."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.project.backtracking import Undecided, ambiguity, worst_texts
from tests.project.regular_expressions import BOUNDED, Refusal, expressions, find

SIZE = 12_000
LONGEST_SECONDS = 0.1
"""A hundred times what linear work takes for a text of this size, and a tenth of what quadratic work takes."""

SLOW = [
    (r"(.+)-[a-z0-9]{7}(?:-[a-z]+)+", False, "polynomial"),
    (r"[0-9]*\.?[0-9]+(?:[eE]-?[0-9]+)?", False, "polynomial"),
    (r"a*a*b", False, "polynomial"),
    (r"a.*b.*c", False, "polynomial"),
    (r"\s*$", True, "polynomial"),
    (r"\[[^]]*\]", True, "polynomial"),
    (r"<!--.*?-->", True, "polynomial"),
    (r"(a+)+b", False, "exponential"),
    (r"(a|aa)+b", False, "exponential"),
    (r"(?:a?b?)*c", False, "exponential"),
    (r"(a*)*b", False, "exponential"),
    (r"((a?)?b)*c", False, "exponential"),
    (r"(\wx?|\dx?)*-", False, "exponential"),
    (r"(?:(?i:k)x?|Kx?)*y", False, "exponential"),
]
LINEAR = [
    (r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", False),
    (r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE]-?[0-9]+)?", False),
    (r"\[[^][]*\]", True),
    (r"^\s*x", True),
    (r"(a|b)*c", False),
    (r"(?:(a+);)*", False),
    (r"(?<=x)y|z(?!a)", True),
    (r"[^ab]*+(?:a[^b]*+b){0,9}", False),
]


def seconds(pattern: re.Pattern[str], text: str, *, is_search: bool) -> float:
    """Measure the CPU time of the cheapest of a few matches."""
    method = pattern.search if is_search else pattern.fullmatch
    taken = []
    for _ in range(3):
        began = time.thread_time()
        method(text)
        taken.append(time.thread_time() - began)
        if taken[-1] < LONGEST_SECONDS:
            break
    return min(taken)


@pytest.mark.nightly
def test_every_linear_expression_of_the_source_is_fast_on_its_worst_texts() -> None:
    for expression in expressions():
        if isinstance(expression, Refusal) or (expression.file, expression.pattern) in BOUNDED:
            continue
        for text in worst_texts(expression.pattern, expression.flags, size=SIZE):
            wanted = text.encode("latin-1", "replace") if isinstance(expression.pattern, bytes) else text
            compiled = re.compile(expression.pattern, expression.flags)
            taken = seconds(compiled, wanted, is_search=expression.is_search)
            assert taken < LONGEST_SECONDS, (expression.pattern, text[:80])


@pytest.mark.parametrize(("pattern", "is_search", "degree"), SLOW)
def test_a_slow_expression_is_known_by_its_degree(pattern: str, is_search: bool, degree: str) -> None:
    slowness = ambiguity(pattern, is_search=is_search)
    assert slowness is not None
    assert slowness.degree == degree


@pytest.mark.nightly
@pytest.mark.parametrize(("pattern", "is_search", "degree"), SLOW)
def test_the_repeated_part_of_a_slow_expression_makes_the_matcher_slow(
    pattern: str, is_search: bool, degree: str
) -> None:
    """Eight times the text takes 64 times as long, and half as much again multiplies an exponential time.

    The limits leave a factor of three for a busy machine; linear work stays below them however often it is measured.
    """
    slowness = ambiguity(pattern, is_search=is_search)
    assert slowness is not None
    short, long, limit = (12, 18, 3) if degree == "exponential" else (300, 2400, 16)
    compiled = re.compile(pattern)

    def worst(size: int) -> float:
        texts = [
            slowness.prefix + slowness.pump * (size // len(slowness.pump)) + end for end in ("\0", "\n\0")
        ]
        return max(seconds(compiled, text, is_search=is_search) for text in texts)

    assert any(worst(long) > limit * worst(short) for _ in range(3))


@pytest.mark.parametrize(("pattern", "is_search"), LINEAR)
def test_a_linear_expression_is_known(pattern: str, is_search: bool) -> None:
    assert ambiguity(pattern, is_search=is_search) is None


@pytest.mark.parametrize("pattern", [r"(a)\1", r"(a)?(?(1)b|c)"])
def test_back_references_and_conditions_are_refused(pattern: str) -> None:
    with pytest.raises(Undecided):
        ambiguity(pattern, is_search=False)


@pytest.mark.parametrize("pattern", [r"(?:ab)*+", r"(?:a|bc)++", r"(a)?+", r"(?>ab)", r"x(?:a{0,3}+b){0,9}+"])
def test_possessive_groups_are_refused_since_some_python_matches_them_wrongly(pattern: str) -> None:
    with pytest.raises(Undecided, match=r"before 3\.11\.5"):
        ambiguity(pattern, is_search=False)


PATTERNS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,20}", "*?"])).map(
            lambda p: f"(?:{p[0]}){p[1]}"
        ),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda p: f"(?:{p[0]}|{p[1]})"),
    ),
    max_leaves=5,
)


@pytest.mark.nightly
@settings(deadline=None, max_examples=60)
@given(PATTERNS, st.text("ab", min_size=1, max_size=3), st.text("ab", max_size=2), st.booleans())
def test_a_linear_expression_is_fast(pattern: str, pump: str, prefix: str, is_search: bool) -> None:
    if ambiguity(pattern, is_search=is_search) is None:
        text = prefix + pump * (SIZE // len(pump)) + "\n"
        assert seconds(re.compile(pattern), text, is_search=is_search) < LONGEST_SECONDS


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import re\ndef f(p, t):\n    return re.match(p, t)\n", "the pattern is not a literal"),
        ("import re\ndef f(p, t):\n    return re.search(f'{p}x', t)\n", "the pattern is not a literal"),
        ("import re\n_P = re.compile('a' + 'b' if X else 'c')\n", "the pattern is not a literal"),
        ("import re\n_P = re.compile('a', FLAGS)\n", "the flags are not literals"),
        ("from re import compile\n", "`from re import …`: write `import re`"),
        ("import re as r\n", "`import re as …`: write `import re`"),
        ("import re\nx = re.sub(\n    r'\\s*'\n    r'$',\n    '', t)\n", "is not linear"),
        ("import re\n_P = re.compile('\\\\s*$')\ndef f(t):\n    return _P.search(t)\n", "is not linear"),
        ("import re\n_P = re.compile('\\\\s*$')\ndef f(t):\n    return g(_P, t)\n", "is not linear"),
        ("import re\nPUBLIC = re.compile('\\\\s*$')\nPUBLIC.match('')\n", "is not linear"),
        ("import re\n_P = re.compile('\\\\s*$')\ndef f(t):\n    return _P.match(t)\n", None),
    ],
)
def test_a_use_of_re_is_judged_by_its_syntax(source: str, problem: str | None) -> None:
    [expression] = find(source, "module.py")
    assert expression.problem is None if problem is None else problem in (expression.problem or "")
