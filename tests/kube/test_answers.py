"""Warnings of an API server, in the form of RFC 7234."""

import pytest

from kube.answers import parse_warnings


@pytest.mark.parametrize(
    ("headers", "texts"),
    [
        ([], ()),
        (['299 - "text"'], ("text",)),
        ([r'299 - "unknown field \"spec.foo\""'], ('unknown field "spec.foo"',)),
        ([r'299 - "a \\ and \" and \\\""'], (r"a \ and " + '" and ' + '\\"',)),
        (['299 - ""'], ("",)),
        (['299 - "one, with a comma"', '299 - "two"'], ("one, with a comma", "two")),
        (['299 - "one", 299 - "two"'], ('299 - "one", 299 - "two"',)),
        (['299 - "one"', '299 agent.example "two" "Sun, 06 Nov 1994 08:49:37 GMT"'], ("one", "two")),
        (['199 - "Grüße, 😀"'], ("Grüße, 😀",)),
        (['299 - "' + "x" * 4096 + '"'], ("x" * 4096,)),
        # Other forms are kept as they are.
        (["no form"], ("no form",)),
        (['299 - "not closed'], ('299 - "not closed',)),
        (['299 - "one" 299 - "two"'], ('299 - "one" 299 - "two"',)),
        # Every text is printable.
        (['299 - "bell \x07 and \u202e"'], ("bell \N{REPLACEMENT CHARACTER} and \N{REPLACEMENT CHARACTER}",)),
        (["299 - \"lone \udcff\""], ("lone \N{REPLACEMENT CHARACTER}",)),
    ],
)  # fmt: skip
def test_texts_of_warnings(headers: list[str], texts: tuple[str, ...]) -> None:
    assert parse_warnings(headers) == texts
