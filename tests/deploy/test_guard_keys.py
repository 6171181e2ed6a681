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
    reserved, _, _ = policy["reserved"].partition("!(")
    assert quoted(policy["names"]) | prefixes(reserved) == {*KAI_KEYS, keys.VCLUSTER_MANAGED_BY}
    assert all(text.endswith(("/", "-", ".")) for text in prefixes(reserved))


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
