"""KAI's keys in the chart's policy about pods are those of `kai.key_classes`."""

import re

import pytest

from kai import keys
from kai.key_classes import (
    CREATION_KEYS,
    FREE_KEYS,
    KAI_KEYS,
    RESERVED_APPS,
    USER_PREFIXES,
    is_of_kai,
)
from tests.support.guard import rendered


def alternatives(pattern: str) -> set[str]:
    """Return the texts that a regular expression of nested alternatives matches at the beginning of a text.

    One that must be the whole text ends in `$`.
    """

    def read(text: str) -> tuple[set[str], str]:
        """Return the texts of a group without its closing parenthesis, and what follows it."""
        done, heads = set[str](), {""}
        while text and text[0] != ")":
            if text[0] == "(":
                inner, text = read(text[1:])
                tails, text = inner, text[1:]
            elif text[0] == "|":
                done, heads, text = done | heads, {""}, text[1:]
                continue
            else:
                item = re.match(r"\[(.)\]|([\w/$-])", text)
                if item is None:
                    raise ValueError(f"not an alternative: {text}")
                tails, text = {item[1] or item[2]}, text[item.end() :]
            heads = {head + tail for head in heads for tail in tails}
        return done | heads, text

    return read(pattern.removeprefix("^"))[0]


@pytest.fixture(scope="module")
def policy() -> dict[str, str]:
    """Return the expressions of the policy's variables by name, and its validations as one text."""
    (policy_object,) = (
        item
        for item in rendered()
        if item["metadata"]["name"] == "kaishare-guard-pods" and "variables" in item["spec"]
    )
    expressions = {each["name"]: each["expression"] for each in policy_object["spec"]["variables"]}
    return {**expressions, "": " ".join(each["expression"] for each in policy_object["spec"]["validations"])}


def quoted(text: str) -> set[str]:
    return set(re.findall(r"'([^']+)'", text))


def prefixes(expression: str) -> set[str]:
    return set(re.findall(r"key\.startsWith\('([^']+)'\)", expression))


def test_the_policy_reserves_the_keys_of_the_table(policy: dict[str, str]) -> None:
    (pattern,) = re.findall(r"key\.matches\('([^']+)'\)", policy["own"])
    beginnings = alternatives(pattern)
    assert quoted(policy["names"]) | beginnings == {*KAI_KEYS, keys.VCLUSTER_MANAGED_BY}
    assert all(text.endswith(("/", "-", ".")) for text in beginnings)


def test_the_policy_lets_users_write_the_keys_of_the_table(policy: dict[str, str]) -> None:
    free, _, at_creation = policy["free"].partition("variables.isNew")
    assert quoted(free) == set(FREE_KEYS)
    assert quoted(at_creation) == {*CREATION_KEYS, keys.VCLUSTER_MANAGED_BY}
    _, _, users = policy["reserved"].partition("variables.isNew")
    assert prefixes(users) == set(USER_PREFIXES)


def test_the_policy_reserves_the_same_values_of_app(policy: dict[str, str]) -> None:
    (values,) = re.findall(r"value in (\[[^]]+\])", policy[""])
    assert quoted(values) == set(RESERVED_APPS)


@pytest.mark.parametrize("key", KAI_KEYS)
def test_a_key_and_what_begins_like_it(key: str) -> None:
    """A name is reserved as it is, a prefix with anything behind it."""
    is_prefix = key[-1] in "/-."
    assert is_of_kai(key + "note") is is_prefix
    assert is_of_kai(key)
    assert not is_of_kai("x" + key)


def test_alternatives_of_a_pattern() -> None:
    assert alternatives("^(a/|b[.](c|d-)|e($|/)|(f|g)$)") == {"a/", "b.c", "b.d-", "e$", "e/", "f$", "g$"}
    with pytest.raises(ValueError, match="not an alternative"):
        alternatives("^a*")
