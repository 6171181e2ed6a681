"""Webhooks that are called before kaishare's and therefore miss its pods."""

import io
import json
from typing import Any, cast

import pytest

from kube.client import KubeClient
from service.log import JsonLog
from webhook.registration.call_order import OrderWatch, called_before_us
from webhook.registration.configuration_objects import WebhookConfiguration, read_configuration

OURS = "kai-00-kaishare"
ASKS = "object.spec.schedulerName == 'kai-scheduler'"
BATCH = "object.spec.schedulerName == 'batch-scheduler'"


def mutator(name: str, *conditions: str, service: str = "", **rule: Any) -> WebhookConfiguration:
    rules = [{"operations": ["CREATE"], "apiGroups": [""], "resources": ["pods"], **rule}]
    client = {"service": {"name": service, "namespace": "a", "path": "/mutate--v1-pod"}} if service else {}
    hook = {
        "name": "a.b.c",
        "clientConfig": client,
        "rules": rules,
        "matchConditions": [{"name": "c", "expression": c} for c in conditions],
    }
    document = {"metadata": {"name": name}, "webhooks": [{"name": "x.y.z"}, hook]}
    return read_configuration(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("own", "others", "early"),
    [
        (OURS, [mutator("mutating-kai-admission", ASKS)], ()),
        (OURS, [], ()),
        ("zz-kaishare", [mutator("mutating-kai-admission", ASKS)], ("mutating-kai-admission",)),
        ("zz-kaishare", [mutator("mutating-kai-admission")], ()),  # before v0.13 it looks at every pod
        ("zz-kaishare", [mutator("mutating-kai-admission", ASKS), mutator("b", ASKS), mutator("zzz", ASKS)],
         ("b", "mutating-kai-admission")),
        (OURS, [mutator("a", ASKS, operations=["UPDATE"])], ()),
        (OURS, [mutator("a", ASKS, resources=["pods/binding"])], ()),
        (OURS, [mutator("a", ASKS, apiGroups=["apps"])], ()),
        (OURS, [mutator("a", ASKS, operations=["*"], apiGroups=["*"], resources=["*/*"])], ("a",)),
        (OURS, [mutator("a", "object.metadata.name != 'x'", f"has(object.spec) && {ASKS}")], ("a",)),
        (OURS, [mutator("a", BATCH)], ()),  # another scheduler's
        (OURS, [mutator("a", "object.spec.schedulerName != 'kai-scheduler'")], ()),
        (OURS, [mutator("a", BATCH, service="admission")], ("a",)),
        (OURS, [mutator("a", "object.spec.schedulerName.startsWith('x')", service="binder")], ("a",)),
        (OURS, [mutator("a", BATCH), mutator("m-kai", BATCH, service="admission")], ("a",)),
    ],
)  # fmt: skip
def test_webhooks_that_match_on_the_scheduler_must_come_after_kaishare(
    own: str, others: list[WebhookConfiguration], early: tuple[str, ...]
) -> None:
    assert called_before_us([mutator(own), *others], own) == early


def test_the_schedulers_of_policies_count_as_kais() -> None:
    mutators = [mutator(OURS), mutator("a", BATCH)]
    assert called_before_us(mutators, OURS, ["batch-scheduler"]) == ("a",)


def test_without_kaishares_webhook_there_is_no_order() -> None:
    assert called_before_us([mutator("mutating-kai-admission", ASKS)], OURS) is None


def test_one_line_names_few_of_many_configurations() -> None:
    stream = io.BytesIO()
    order = OrderWatch(cast(KubeClient, None), own="zz-kaishare", log=JsonLog(stream))
    early = [mutator(f"a-{number:04}", ASKS) for number in range(5_000)]
    order._changed({("", each.name): each for each in [mutator("zz-kaishare"), *early]})
    line = json.loads(stream.getvalue())
    assert line["called_before"] == [f"a-{number:04}" for number in range(8)]
    assert line["more"] == 4_992
