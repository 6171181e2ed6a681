"""Names in the documents on installation and security exist, and the figures are those of the code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent.pods import bounds as pod_bounds
from gpuagent.pods.assemble import MOST_ENDED
from gpuagent.pods.node_pods import MOST_CONTAINER_IDS
from gpuagent.sampling.processes import THREADS_OF_A_PROCESS, THREADS_OF_A_SAMPLE
from gpuagent.server.agent_server import AGENT_CONNECTIONS
from kube import answers, tokens
from service import documents, log, log_writer
from service.http import bounded_server
from service.http.limits import RESERVED_DESCRIPTORS
from service.json_depth import DEEPEST
from service.list_splitter import LONGEST_OBJECT
from tests.support import yaml_text
from tests.support.doc_tables import table_under
from tests.support.helm_chart import CHART, EVERY_RIGHT, ROOT, Object, find_object, rendered
from webhook.namespaces import cluster_policies
from webhook.policy import distributed
from webhook.policy.decide import MOST_WARNINGS
from webhook.policy.reasons import LONGEST_WARNING
from webhook.server import bodies as intake
from webhook.server.admission_server import ADMISSION_CONNECTIONS, MOST_IN_FLIGHT
from webhook.server.ops_server import OPS_CONNECTIONS

DOCUMENTS = [
    ROOT / "docs" / "install.md",
    ROOT / "docs" / "security.md",
    ROOT / "docs" / "troubleshooting.md",
    *(ROOT / "docs" / "start" / f"{page}.md" for page in ("laptop", "one-gpu", "vclusters")),
    *(ROOT / "deploy" / folder / "README.md" for folder in ("kai", "vcluster")),
]
VALUES: dict[str, Any] = yaml_text.load((CHART / "values.yaml").read_text())
SECURITY = ROOT / "docs" / "security.md"
KIB, MIB = 1 << 10, 1 << 20


def known(path: str) -> bool:
    here: Any = VALUES
    for key in path.split("."):
        if not isinstance(here, dict) or key not in here:
            return False
        here = here[key]
    return True


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_and_values_that_a_document_names_exist(document: Path) -> None:
    text = document.read_text()
    paths = re.findall(r"(?<![\w/.])((?:deploy|examples|docs)/[\w./-]+|Dockerfile\.\w+)", text)
    assert [path for path in paths if not (ROOT / path.rstrip(".")).exists()] == []
    named = re.findall(rf"(?<![\w./-])((?:{'|'.join(VALUES)})\.[a-zA-Z]+(?:\.[a-zA-Z]+)*)(?=[=`: ])", text)
    assert {name for name in named if not known(name)} == set()
    assert paths or named


def test_commands_on_the_webhooks_log_read_every_replica_and_every_line() -> None:
    """kubectl reads one pod of a workload, and ten lines of each pod of a selector."""
    paths = [path for folder in ("docs", "deploy") for path in (ROOT / folder).rglob("*.md")]
    paths += [path for folder in ("console", "webhook", "gpuagent") for path in (ROOT / folder).rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*paths, CHART / "templates" / "NOTES.txt"])
    commands = re.findall(r"kubectl [^\n|`]*\blogs [^\n|`]*", text)
    assert not [command for command in commands if re.search(r"\blogs \w+/", command)]
    selectors = [
        match.groups() for command in commands if (match := re.search(r" -l (\S+)=(\S+)(.*)", command))
    ]
    assert len(selectors) >= 6
    webhook = find_object(rendered(), "Deployment", "kaishare-webhook")["spec"]["selector"]["matchLabels"]
    for key, value, rest in selectors:
        assert webhook.get(key) == value
        assert " --tail " in rest


NAMED_TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", SECURITY.read_text())))


def test_the_security_document_names_tests_that_exist() -> None:
    assert NAMED_TESTS
    for path, name in NAMED_TESTS:
        assert re.search(
            rf"^ *(async )?(def|class) {name}\b|^ *{name}\b.* = ", (ROOT / path).read_text(), re.MULTILINE
        ), f"{path}::{name}"


def test_every_attempt_of_every_threat_names_a_test() -> None:
    threats = re.split(r"^### ", section("Threats"), flags=re.MULTILINE)[1:]
    assert [threat[:3] for threat in threats] == ["(a)", "(b)", "(c)", "(d)", "(e)", "(f)"]
    for threat in threats:
        attempts = [
            row for part in threat.split("\n\n") if part.startswith("| attempt ") for row in rows(part)
        ]
        assert attempts
        assert [row for row in attempts if "::" not in row[-1]] == []


def section(title: str) -> str:
    """A second-level section of docs/security.md."""
    return SECURITY.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of a text's only table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def in_units(count: int) -> str:
    """Return a number of bytes as the documents write it."""
    return f"{count // MIB} MiB" if count % MIB == 0 else f"{count // KIB} KiB"


def checks(limits: tokens.ReviewLimits) -> str:
    """Return limits of checks as the documents write them."""
    return f"{limits.concurrent} at once; {limits.burst}, then {limits.per_second:g} a second"


def rights(objects: list[Object]) -> Iterator[tuple[str, ...]]:
    """Yield each rule on resources as the tables show it: the role, verbs, resources, and where."""
    for role in (item for item in objects if item["kind"] in ("Role", "ClusterRole")):
        namespace = role["metadata"].get("namespace")
        place = f"namespace `{namespace}`" if namespace else "the cluster"
        for rule in (rule for rule in role["rules"] if "resources" in rule):
            of = [f"`{name}.{group}`" for group in rule["apiGroups"] for name in rule["resources"]]
            names = ", ".join(f"`{name}`" for name in rule.get("resourceNames", ()))
            where = f"{place}, named {names}" if names else place
            yield role["metadata"]["name"], ", ".join(rule["verbs"]), ", ".join(of).replace(".`", "`"), where


def test_the_tables_of_rights_are_those_of_the_chart() -> None:
    text = SECURITY.read_text().partition("\n## Rights\n")[2].partition("\n## ")[0]
    listed = [
        (name, *row)
        for heading, name in re.findall(r"^(### .*`([a-z-]+)`)$", text, re.MULTILINE)
        for row in table_under(SECURITY, heading)
    ]
    every = {*rights(rendered(EVERY_RIGHT)), *rights(rendered({}))}  # KAI's mode is read unless it is given
    assert sorted(row[:4] for row in listed) == sorted(every)
    without = rendered({"webhook": {"certificates": {"mode": "cert-manager"}, "gpuSharingMode": "HamiCore"}})
    assert sorted(row[:4] for row in listed if not row[5]) == sorted(rights(without))
    assert all(row[4] for row in listed)


def test_the_documented_bounds_are_those_of_the_code() -> None:
    tls, ops, agent = ADMISSION_CONNECTIONS, OPS_CONNECTIONS, AGENT_CONNECTIONS
    part = in_units(intake.MOST_BYTES // intake._PEERS_PART)
    bodies = f"{in_units(intake.MOST_BYTES)} in total; one address {part} beside others"
    assert tls.head_seconds == ops.head_seconds == agent.head_seconds
    assert tls.answer_seconds == ops.answer_seconds == agent.answer_seconds
    assert tls.idle_seconds == ops.idle_seconds == agent.idle_seconds
    assert tls.min_answer_seconds == ops.min_answer_seconds == agent.min_answer_seconds
    assert ops.max_page_bytes == agent.max_page_bytes
    seconds = {part: agent.seconds_for_reading(int(agent.max_busy * part)) for part in (0.25, 0.5, 0.9)}
    assert seconds == {0.25: 7.5, 0.5: 5, 0.9: pytest.approx(1, abs=0.1)}
    assert VALUES["webhook"]["maxInFlight"] == MOST_IN_FLIGHT
    assert answers.LONGEST_ANSWER == answers._LONGEST_LINE == LONGEST_OBJECT
    look_ups = cluster_policies
    assert {row[0]: row[1] for row in rows(section("Bounds"))} == {
        "connections to 8443": f"{tls.max_connections}",
        "connections to 8080": f"{ops.max_connections}",
        "connections to 9445": f"{agent.max_connections}",
        "connections to 8080 whose requests are being answered": f"{ops.max_busy}",
        "connections to 9445 whose requests are being answered": f"{agent.max_busy}",
        "TLS handshakes at once on 8443": f"{tls.max_handshakes}",
        "a request head, from its first byte to its last": f"{tls.head_seconds:.0f} s",
        "size of a request head": in_units(bounded_server.MAX_HEAD_BYTES),
        "requests that wait for the answer to the one before": f"one, or several of together {in_units(bounded_server.MAX_HEAD_BYTES)}",
        "a request line": f"{bounded_server.MAX_REQUEST_LINE_BYTES} bytes",
        "a header": f"{bounded_server.MAX_FIELD_BYTES} bytes",
        "headers of a request": f"{bounded_server.MAX_FIELDS}",
        "reading an answer": f"{tls.answer_seconds:.0f} s without progress, down to {tls.min_answer_seconds:.0f} s beside others that do not read (below)",
        "checks of tokens that were not allowed before": checks(tokens.UNKNOWN_LIMITS),
        "such checks for one client's address": checks(tokens.CLIENT_LIMITS),
        "checks of tokens that were allowed before": checks(tokens.KNOWN_LIMITS),
        "requests that wait for a check": f"{tokens.UNKNOWN_LIMITS.most_waiting}, and {tokens.KNOWN_LIMITS.most_waiting} with tokens that were allowed before; {tokens.CLIENT_LIMITS.most_waiting} of one client's address",
        "clients whose limits are remembered": f"{tokens.MOST_CLIENTS}",
        "a check of a token": f"{tokens.CHECK_SECONDS:.0f} s",
        "tokens that are remembered": f"{tokens.MOST_ALLOWED} allowed for {tokens.ALLOWED_SECONDS:.0f} s, {tokens.MOST_REFUSED} refused for {tokens.REFUSED_SECONDS:.0f} s",
        "pages in memory on 8080 and 9445": f"{in_units(ops.max_page_bytes)} each; a page that several clients read counts once",
        "a connection without a request": f"{tls.idle_seconds:.0f} s",
        "the body of a review": in_units(intake.LARGEST_BODY),
        "bodies that are arriving": f"{intake.MOST_UNFINISHED}, {bodies}",
        "reviews that wait or are being answered": f"{MOST_IN_FLIGHT} (`webhook.maxInFlight`), {bodies}",
        "time for which a review waits for its turn": "the API server's time-out",
        "look-ups of namespaces that the watch does not have": f"{look_ups._MOST_IN_WINDOW} in {look_ups._WINDOW_SECONDS:.0f} s, in equal parts by address, at least {look_ups._LEAST_IN_WINDOW} each; {look_ups._MOST_AT_ONCE} at once, {look_ups._MOST_AT_ONCE_OF_A_PEER} of one address",
        "addresses with look-ups": f"{look_ups._MOST_PEERS} in {look_ups._WINDOW_SECONDS:.0f} s",
        "warnings to the author of a pod": f"{MOST_WARNINGS} of {LONGEST_WARNING} characters",
        "a line of the log": in_units(log.LINE_BYTES),
        "lines of the log that wait": f"{in_units(log_writer.QUEUE_BYTES)} or {log_writer.QUEUE_LINES} lines",
        "log lines about bad requests, and those of one library": f"{log.BURST}, then {log.LINES_PER_SECOND:.0f} a second",
        "one object of a list or a watch": in_units(LONGEST_OBJECT),
        "nesting of an object of a list or a watch": f"{DEEPEST} levels",
        "labels of a pod that the agent keeps": in_units(pod_bounds.LABELS.total_bytes),
        "annotations of a pod that the agent keeps": in_units(pod_bounds.ANNOTATIONS.total_bytes),
        "an annotation": f"{pod_bounds.ANNOTATIONS.longest_value} characters",
        "containers of a pod whose IDs the agent knows": f"{MOST_CONTAINER_IDS}",
        "ended pods whose names the agent keeps": f"{MOST_ENDED}",
        "excerpts of a pod's command lines": f"{pod_bounds.MOST_BYTES} bytes",
        "threads looked at where main threads have exited": f"{THREADS_OF_A_PROCESS} of a process, {THREADS_OF_A_SAMPLE} of a sample",
        "aliases in a YAML document": f"{in_units(documents._MOST_ADDED)} added",
        "nesting of a YAML document": f"{documents._DEEPEST} levels",
        "an integer in a YAML document": f"{documents._LONGEST_INTEGER} characters",
        "a number in a YAML document": f"{documents._LONGEST_NUMBER} characters",
        "the variable `TF_CONFIG` of a container": f"{distributed._LONGEST_CLUSTER >> 20} MiB",
        "file descriptors kept back from connections": f"{RESERVED_DESCRIPTORS}, or half of a lower limit",
    }  # fmt: skip
