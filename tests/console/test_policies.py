"""Policies as table, JSON and YAML."""

import ssl
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certs.authority import Authority
from console.policies import PolicyRow, as_document, as_table, read_policies
from kube.client import KubeClient
from service.text import width
from tests.support.api_server import object_server
from tests.support.cluster_webhook import bare_pod, managed_namespace
from tests.support.published_settings import settings_object
from webhook.namespaces.file_policies import PoliciesError
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode, PolicyMetadata

LABELS = {
    "kai.scheduler/queue": "team-a", "kaishare.dev/gpu-memory": "2000", "kaishare.dev/priority": "high",
    "kaishare.dev/max-gpu-fraction": "0.75", "kaishare.dev/max-gpu-memory": "8000",
    "kaishare.dev/over-share": "evict", "kaishare.dev/over-share-grace": "5m",
    "size.kaishare.dev/small": "0.25", "size.kaishare.dev/large": "nonsense",
}  # fmt: skip


def row(name: str = "vision", *, pods: dict[str, int] | None = None, **labels: str) -> PolicyRow:
    policy = PolicyMetadata({**LABELS, **labels}).policy(name)
    assert policy is not None
    return PolicyRow(policy=policy, is_excluded=False, pods=pods)


def test_wide_is_a_table_of_all_values_whole() -> None:
    sizes = {f"size.kaishare.dev/{'s' * 37}-{number:02}": "0.5" for number in range(14)}
    rows = [row("n" * 63, **sizes), row()]
    lines = list(as_table(rows, wide=True, columns=80))
    assert lines[0].split() == [
        *("NAMESPACE", "QUEUE", "MODE", "SCHEDULER", "SHARE", "SHARE-FOR", "SIZES", "CAPS", "DISTRIBUTED"),
        *("PRIORITY", "TOLERATION", "OVER-SHARE", "GRACE", "PODS-IN-KAI", "PROBLEMS"),
    ]
    assert lines[1].split()[0] == "n" * 63
    assert all(f"{name.partition('/')[2]}=0.5" in lines[1] for name in sizes)
    assert "…" not in "".join(lines)
    in_a_pipe = list(as_table(rows))
    assert in_a_pipe[0].split()[-2:] == ["PODS-IN-KAI", "PROBLEMS"]
    assert in_a_pipe[1].split()[0] == "n" * 63
    assert list(as_table([])) == ["No namespace is managed: none has the label kai.scheduler/queue."]


NAMES = st.text(st.characters(codec="utf-8"), max_size=63)


@given(
    st.lists(st.tuples(NAMES, NAMES, st.dictionaries(NAMES, NAMES, max_size=16)), min_size=1, max_size=4),
    st.integers(min_value=40, max_value=250),
    st.booleans(),
)
def test_every_line_fits_and_no_namespace_is_missing(
    namespaces: list[tuple[str, str, dict[str, str]]], columns: int, wide: bool
) -> None:
    rows = []
    for name, queue, sizes in namespaces:
        labels = {f"size.kaishare.dev/{size}": value for size, value in sizes.items()}
        pods = {"inKai": len(queue), "notInKai": len(sizes)}
        rows.append(row(name, pods=pods, **{"kai.scheduler/queue": queue, **labels}))
    with (
        mock.patch.object(sys.stdout, "isatty", return_value=True),
        mock.patch.dict("os.environ", {"NO_COLOR": "1"}),
    ):
        lines = list(as_table(rows, wide=wide, columns=columns))
    assert wide or columns < 110 or max(map(width, lines)) <= columns, "a table gives way where it can"
    assert all(line.isprintable() for line in lines)
    counts = [f"{row.pods['inKai']}/{sum(row.pods.values())}" for row in rows if row.pods]
    assert all(count in "\n".join(lines) for count in counts), "numbers are never shortened"


def test_problems_are_red_and_labels_cannot_act_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = [row(**{"kaishare.dev/mode": "\x1b[2J\u202e"})]
    monkeypatch.setattr("console.text_table.output_has_colour", lambda: True)
    coloured = [line for line in as_table(hostile) if "problem: " in line]
    monkeypatch.undo()
    assert len(coloured) == 2
    for line in coloured:
        assert line.startswith("\033[31mproblem: ")
        assert line.removeprefix("\033[31m").removesuffix("\033[0m").isprintable()
    assert all(line.isprintable() for line in as_table(hostile, wide=True))
    for text in (as_document(hostile, "json"), as_document(hostile, "yaml")):
        assert text.isascii()
        assert "\x1b" not in text


async def test_running_pods_are_counted_and_unlisted_ones_are_unknown(
    tmp_path: Path, authority: Authority, served: ssl.SSLContext
) -> None:
    pods = []
    for name, namespace, scheduler, phase in (
        ("a", "research", "kai-scheduler", "Running"),
        ("b", "research", "kai-scheduler", "Pending"),
        ("c", "research", "default-scheduler", "Running"),
        ("d", "research", "kai-scheduler", "Succeeded"),
        ("e", "web", "default-scheduler", "Running"),
    ):
        made = bare_pod(name, namespace=namespace)
        made["spec"]["schedulerName"] = scheduler
        pods.append({**made, "status": {"phase": phase}})
    namespaces = managed_namespace("research", gpu_fraction="0.5"), managed_namespace("web", mode="observe")
    namespaces[1]["metadata"]["annotations"] = {"kaishare.dev/mode": "off"}
    settings = settings_object(
        DecisionSettings(default_mode=Mode.OFF, excluded_namespaces=frozenset({"web"}))
    )
    async with (
        object_server(tmp_path, authority, served, *namespaces, *pods, settings) as server,
        KubeClient(server.access) as client,
    ):
        listed = await read_policies(client, None)
        chosen = await read_policies(client, "research", Mode.DEFAULT)
        server.forbidden = lambda path: path.endswith("/pods")
        uncounted = await read_policies(client, "research")
        with pytest.raises(PoliciesError, match="namespace nowhere does not exist in this cluster"):
            await read_policies(client, "nowhere")
        server.forbidden = lambda _path: True
        with pytest.raises(PoliciesError, match="you may not list namespaces"):
            await read_policies(client, None)
    assert listed[1] == ["web: the annotation kaishare.dev/mode has no effect here: it must be a label"]
    assert chosen[1] == []
    rows = [(row.policy.namespace, row.policy.mode, row.is_excluded, row.pods) for row in listed[0]]
    assert rows == [
        ("research", Mode.OFF, False, {"inKai": 2, "notInKai": 1}),
        ("web", Mode.OBSERVE, True, {"inKai": 0, "notInKai": 1}),
    ]
    assert [row.policy.mode for row in chosen[0]] == [Mode.DEFAULT]
    assert [row.pods for row in uncounted[0]] == [None]
    assert any("pods were not counted: you may not list pods" in note for note in uncounted[1])
