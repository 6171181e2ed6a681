"""Policies as table, JSON and YAML."""

import json

import yaml

from console.policies.reading import PodCounts, PolicyRow, PolicyTable
from console.policies.report import as_json, as_table, as_yaml
from webhook.policy.labels import PolicyMetadata
from webhook.policy.policy_json import policy_json

LABELS = {
    "kai.scheduler/queue": "team-a",
    "kaishare.dev/gpu-memory": "2000",
    "kaishare.dev/max-gpu-fraction": "0.75",
    "kaishare.dev/max-gpu-memory": "8000",
    "kaishare.dev/over-share": "evict",
    "kaishare.dev/over-share-grace": "5m",
    "kaishare.dev/priority": "high",
    "size.kaishare.dev/small": "0.25",
    "size.kaishare.dev/large": "nonsense",
}


def row(
    name: str = "vision", *, excluded: bool = False, pods: PodCounts | None = None, **labels: str
) -> PolicyRow:
    policy = PolicyMetadata({**LABELS, **labels}).policy(name)
    assert policy is not None
    return PolicyRow(policy=policy, is_excluded=excluded, pods=pods)


def table(*rows: PolicyRow) -> PolicyTable:
    return PolicyTable(rows=rows)


def test_a_table() -> None:
    lines = list(
        as_table(table(row(pods=PodCounts(3, 0)), row("web", excluded=True)), wide=False, colour=False)
    )
    assert [line.split() for line in lines[1:3]] == [
        ["vision", "team-a", "default", "2000Mi", "large=invalid,small=0.25", "0.75,8000Mi", "3", "0", "1"],
        ["web", "team-a", "excluded", "2000Mi", "large=invalid,small=0.25", "0.75,8000Mi", "?", "?", "1"],
    ]
    starts = {line.index("team-a") for line in lines[1:3]}
    assert starts == {lines[0].index("QUEUE")}
    assert [line.partition(" is not allowed")[0] for line in lines[3:]] == [
        f'problem: {name}: size.kaishare.dev/large: "nonsense"' for name in ("vision", "web")
    ]


def test_wide_has_more_columns() -> None:
    head, line, *_ = as_table(table(row()), wide=True, colour=False)
    assert head.split()[-7:] == [
        "SCHEDULER",
        "SHARE-FOR",
        "DISTRIBUTED",
        "PRIORITY",
        "TOLERATION",
        "OVER-SHARE",
        "GRACE",
    ]
    assert line.split()[-7:] == ["kai-scheduler", "whole-gpu", "keep", "high", "-", "evict", "300s"]


def test_long_cells_are_shortened_unless_the_table_is_wide() -> None:
    sizes = {f"size.kaishare.dev/size-with-a-name-{n}": "0.5" for n in range(14)}
    narrow = list(as_table(table(row(**sizes)), wide=False, colour=False))[1]
    wide = list(as_table(table(row(**sizes)), wide=True, colour=False))[1]
    assert "…" in narrow
    assert "size-with-a-name-9=0.5" not in narrow
    assert "size-with-a-name-9=0.5" in wide
    assert "…" not in wide


def test_problems_are_red_and_cannot_act_on_the_terminal() -> None:
    hostile = row(**{"kaishare.dev/mode": "\x1b[2J\u202e"})
    coloured = [line for line in as_table(table(hostile), wide=False, colour=True) if "problem: " in line]
    assert len(coloured) == 2
    for line in coloured:
        assert line.startswith("\033[31mproblem: ")
        assert line.removeprefix("\033[31m").removesuffix("\033[0m").isprintable()
    assert all(line.isprintable() for line in as_table(table(hostile), wide=True, colour=False))


def test_no_policy() -> None:
    assert list(as_table(table(), wide=False, colour=False)) == [
        "No namespace is managed: none has the label kai.scheduler/queue."
    ]
    assert json.loads(as_json(table())) == []
    assert yaml.safe_load(as_yaml(table())) == []


def test_json_and_yaml_have_the_keys_of_the_webhooks_page() -> None:
    policy_row = row(pods=PodCounts(3, 1))
    (document,) = json.loads(as_json(table(policy_row)))
    assert document.keys() == policy_json(policy_row.policy).keys() | {"moreProblems", "pods"}
    assert document["pods"] == {"inKai": 3, "notInKai": 1}
    assert document["state"] == "invalid"
    assert json.loads(as_json(table(row(excluded=True))))[0]["state"] == "excluded"
    assert yaml.safe_load(as_yaml(table(policy_row))) == [document]
    assert json.loads(as_json(table(row())))[0]["pods"] is None, "unknown is not zero"


def test_output_is_ascii() -> None:
    hostile = table(row(**{"kaishare.dev/mode": "\x1b\u202e"}))
    assert as_json(hostile).isascii()
    assert as_yaml(hostile).isascii()
    assert "\x1b" not in as_yaml(hostile)
