"""The files of the dashboards: consistent, and complete."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import grafana, known_metrics
from tests.support.grafana import NAMES, ROOT, Dashboard

BOARDS = [grafana.load(name) for name in NAMES]
_SERIES = re.compile(
    r"(?<![\w:])((?:(?:queue|namespace):)?(?:kaishare|kai|apiserver|kube|process)_[\w:]+|ALERTS|up)\b(\{[^}]*\})?"
)
each_board = pytest.mark.parametrize("board", BOARDS, ids=NAMES)


@each_board
def test_identity_time_and_data_source(board: Dashboard) -> None:
    assert (board.model["uid"], "id" in board.model) == (f"kaishare-{board.name}", False)
    assert "kaishare" in board.model["tags"]
    assert board.model["time"]["to"] == "now"
    first, second, *_ = board.model["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    assert (second["name"], second["allValue"]) == ("cluster", ".*")
    assert "__inputs" not in board.model


@each_board
def test_every_panel_has_a_question_and_a_meaning_of_its_colours(board: Dashboard) -> None:
    for panel in board.panels():
        description = panel["description"]
        assert "?" in description, panel["title"]
        for color in colors(panel):
            if color in ("red", "orange"):
                assert color in description.lower(), (panel["title"], color)


def thresholds(panel: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the steps of a panel, and those of each column with its title."""
    config = panel["fieldConfig"]
    yield "", config["defaults"].get("thresholds", {}).get("steps", [])
    for override in config["overrides"]:
        for item in override["properties"]:
            if item["id"] == "thresholds":
                yield override["matcher"]["options"], item["value"]["steps"]


def colors(panel: dict[str, Any]) -> set[str]:
    """Return the colours of a panel's thresholds, without lines, whose limit is drawn."""
    if panel["type"] == "timeseries":
        return set()
    return {step["color"] for title, steps in thresholds(panel) for step in steps if title != "flagged"}


@each_board
def test_a_sorted_table_begins_with_the_rows_that_need_attention(board: Dashboard) -> None:
    for panel in board.panels():
        red_below = {
            title for title, steps in thresholds(panel) if title and steps[0]["color"] in ("red", "orange")
        }
        for transformation in panel.get("transformations", ()):
            if transformation["id"] == "sortBy":
                (order,) = transformation["options"]["sort"]
                assert order["desc"] == (order["field"] not in red_below), panel["title"]


@each_board
def test_runbooks_that_are_named_exist(board: Dashboard) -> None:
    sections = set(
        re.findall(r"^## (Kaishare\w+)", (ROOT / "docs" / "runbooks.md").read_text(), flags=re.MULTILINE)
    )
    named = {name for panel in board.panels() for name in re.findall(r"\bKaishare\w+", panel["description"])}
    assert named <= sections


@each_board
def test_every_panel_has_its_own_id_and_title_and_the_data_source(board: Dashboard) -> None:
    ids = [panel["id"] for panel in itertools.chain(board.panels(), rows(board))]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in board.panels()]
    assert len(set(titles)) == len(titles)
    for panel in board.panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def rows(board: Dashboard) -> Iterator[dict[str, Any]]:
    yield from (panel for panel in board.model["panels"] if panel["type"] == "row")


@each_board
def test_the_overview_is_open_and_the_details_are_collapsed(board: Dashboard) -> None:
    kinds = [panel["type"] == "row" for panel in board.model["panels"]]
    assert kinds == sorted(kinds)
    assert all(row["collapsed"] and row["panels"] for row in rows(board))


@each_board
def test_every_selector_of_every_query_filters_the_cluster(board: Dashboard) -> None:
    for query in queries(board):
        # A selector of several metrics counts as one of the text that their names begin with.
        by_one_name = re.sub(r'{__name__=~"(\w{1,60})[^"]{1,60}", ', r"\1{", query)
        for metric, selector in re.findall(_SERIES, by_one_name):
            if query == "label_values(kaishare_build_info, cluster)" or re.search(
                r"\) up offset \w+ == 1", query
            ):
                continue  # the variable itself, and a join on cluster
            assert 'cluster=~"$cluster"' in selector, (metric, query)


@each_board
def test_every_join_matches_the_cluster(board: Dashboard) -> None:
    for query in queries(board):
        for labels in re.findall(r"\bon \(([^)]*)\)", query) + re.findall(r"\bby \(([^)]*)\)", query):
            assert "cluster" in labels.split(", "), query
        assert not re.search(r"\b(sum|max|min|avg|count|group) ?\(", query), query


def queries(board: Dashboard) -> Iterator[str]:
    yield from (target["expr"] for panel in board.panels() for target in panel["targets"])
    variables = board.model["templating"]["list"]
    yield from (variable["query"]["query"] for variable in variables if variable["type"] == "query")
    yield from (annotation["expr"] for annotation in board.model["annotations"]["list"])


@each_board
def test_the_dashboard_names_only_metrics_that_exist(board: Dashboard) -> None:
    assert known_metrics.unknown(queries(board)) == set()


def test_the_dashboards_show_every_metric() -> None:
    text = " ".join(query for board in BOARDS for query in queries(board))
    hidden = {name for name in known_metrics.documented() if name not in text}
    assert hidden <= {
        "kaishare_webhook_request_duration_seconds",  # its buckets and its count are shown
        "kaishare_webhook_request_duration_seconds_sum",
        "kaishare_webhook_framework_options_total",  # `kaishare report` shows it
        "kaishare_agent_sample_duration_seconds_count",
        "kaishare_agent_sample_duration_seconds_sum",
    }


@each_board
def test_queries_use_only_variables_of_the_dashboard(board: Dashboard) -> None:
    text = json.dumps(board.model)
    used = {name for pair in re.findall(r"\$(?:\{(\w+)|(\w+))", text) for name in pair if name}
    builtin = {name for name in used if name.startswith("__") or name.isdigit()}
    assert used - builtin - board.variables.keys() == set()
    assert board.variables.keys() - used == set()


@each_board
def test_what_tenants_can_multiply_is_never_drawn_in_full(board: Dashboard) -> None:
    """Tenants make pods and sizes. A panel that repeats for each, or a line for each, would stop the browser."""
    for panel in board.panels():
        if "repeat" in panel:
            assert not board.variables[panel["repeat"]]["includeAll"]
        drawn = [target["expr"] for target in panel["targets"] if "{{pod}}" in target.get("legendFormat", "")]
        assert board.name == "node" or all(query.startswith("topk by (cluster)") for query in drawn)


@each_board
def test_links_lead_to_dashboards_and_variables_that_exist(board: Dashboard) -> None:
    targets = {f"kaishare-{other.name}": other for other in BOARDS}
    urls = re.findall(r'"url": "/d/([\w-]+)\?([^"]*)"', json.dumps(board.model))
    assert urls or board.name == "webhook"
    for uid, query in urls:
        for name in re.findall(r"(?:var-|\$\{)(\w+)(?:=|:queryparam)", query):
            assert name in targets[uid].variables, query
        assert "${cluster:queryparam}" in query
        for name in ("agent_scheme", "agent_job"):  # a link to an agent's page needs them there, too
            is_kept = f"${{{name}:queryparam}}" in query
            assert is_kept == (name in board.variables and name in targets[uid].variables), query
    (menu,) = board.model["links"]
    assert (menu["type"], menu["tags"], menu["includeVars"]) == ("dashboards", ["kaishare"], True)
