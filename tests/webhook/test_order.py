"""Who is called before us and so misses our pods."""

import json
from typing import Any

import pytest

from webhook.hooks import read_configuration
from webhook.order import Mutator, called_before_us

OURS = "kai-00-kaishare"
ASKS = "object.spec.schedulerName == 'kai-scheduler'"


def mutator(name: str, *conditions: str, **rule: Any) -> Mutator:
    rules = [{"operations": ["CREATE"], "apiGroups": [""], "resources": ["pods"], **rule}]
    hook = {
        "name": "a.b.c",
        "rules": rules,
        "matchConditions": [{"name": "c", "expression": c} for c in conditions],
    }
    return Mutator.of(
        read_configuration(
            json.dumps({"metadata": {"name": name}, "webhooks": [{"name": "x.y.z"}, hook]}).encode()
        )
    )


@pytest.mark.parametrize(
    ("own", "others", "early"),
    [
        (OURS, [mutator("mutating-kai-admission", ASKS)], ()),
        (OURS, [], ()),
        ("zz-kaishare", [mutator("mutating-kai-admission", ASKS)], ("mutating-kai-admission",)),
        ("zz-kaishare", [mutator("mutating-kai-admission")], ()),  # before v0.13 it looks at every pod
        (
            "zz-kaishare",
            [mutator("mutating-kai-admission", ASKS), mutator("b", ASKS), mutator("zzz", ASKS)],
            ("b", "mutating-kai-admission"),
        ),
        (OURS, [mutator("a", ASKS, operations=["UPDATE"])], ()),
        (OURS, [mutator("a", ASKS, resources=["pods/binding"])], ()),
        (OURS, [mutator("a", ASKS, apiGroups=["apps"])], ()),
        (OURS, [mutator("a", ASKS, operations=["*"], apiGroups=["*"], resources=["*/*"])], ("a",)),
        (OURS, [mutator("a", "object.metadata.name != 'x'", f"has(object.spec) && {ASKS}")], ("a",)),
    ],
)
def test_who_looks_at_the_scheduler_must_come_after_us(
    own: str, others: list[Mutator], early: tuple[str, ...]
) -> None:
    assert called_before_us([mutator(own), *others], own) == early


def test_without_ours_there_is_no_order() -> None:
    assert called_before_us([mutator("mutating-kai-admission", ASKS)], OURS) is None


def test_a_configuration_may_be_empty() -> None:
    empty = read_configuration(b'{"metadata": {"name": "a"}, "webhooks": null}')
    assert Mutator.of(empty) == Mutator("a", False)
