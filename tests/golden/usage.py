"""Records of `why` on the recorded states of three releases of KAI, and of `advise` and `report` on a real Prometheus with some made-up histories and the shipped rules' records."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.console.usage.test_advise_against_prometheus import LABELS, PODS
from tests.golden import product
from tests.golden.api_server import hold
from tests.golden.records import digest
from tests.support import prometheus_server
from tests.support.api_server import ObjectServer
from tests.support.known_metrics import recorded as names_of_records
from tests.support.usage_history import END, History, recorded
from tests.support.why_states import put, states


def why_cases(server: ObjectServer, release: str) -> Iterator[tuple[str, Any]]:
    """Yield the answer about each pod and workload, to an administrator and to an account with the role edit."""
    for state in states(release):
        namespace = state.namespace
        gone = [item["metadata"]["name"] for item in state.items("pod-deleted")]
        names = dict.fromkeys([*(pod["metadata"]["name"] for pod in state.items("pod")), *gone])
        owners = [(each["kind"].lower(), each["metadata"]["name"]) for each in state.items("owners")]
        for is_edit in (False, True):
            put(server, state, is_edit=is_edit)
            server.unserved = ("/apis/kai.scheduler/",)
            for target in (*names, *("/".join(owner) for owner in owners)):
                case = f"{state.path.name} {target}{' edit' if is_edit else ''}"
                yield case, _answer(server, target, namespace, is_edit=is_edit)


def _answer(server: ObjectServer, target: str, namespace: str, *, is_edit: bool) -> Any:
    def why(*options: str) -> product.Ended:
        arguments = (target, "-n", namespace, "--kubeconfig", str(server.kubeconfig), *options)
        return product.run("why", *arguments, home=server.kubeconfig.parent, hide={server.server: "SERVER"})

    text = why()
    if is_edit:
        return {"text": digest("\n".join(text.lines)), "head": text.lines[:4]}
    document = why("-o", "json")
    answer = json.loads(document.out) if document.out else {}
    return {
        "codes": [each["code"] for each in answer.get("findings", [])],
        "json": digest(json.dumps(answer, sort_keys=True)),
        "text": text.lines,
    }


_UNTIL: Final = datetime.fromtimestamp(END, UTC)
_RANGE: Final = ("--until", _UNTIL.isoformat().replace("+00:00", "Z"), "--since", "36h")
_QUESTIONS: Final = (
    *(("advise", *more) for more in ((), ("-o", "json"), ("-o", "kubectl"), ("--by", "workload"), ("--cover-peak", "-o", "json"))),
    *(("report", "--by", by, *more) for by in ("namespace", "size") for more in ((), ("-o", "json"))),
    ("report", "-o", "csv"), ("report", "--price", "Tesla T4=0.4", "-o", "csv"),
)  # fmt: skip


def cases(folder: Path, server: ObjectServer) -> Iterator[tuple[str, Any]]:
    namespaces = [
        {"kind": "Namespace", "metadata": {"name": name, "labels": labels}} for name, labels in LABELS.items()
    ]
    hold(server, _UNTIL, namespaces)
    History(PODS[::4]).write(folder)
    recorded(folder, *names_of_records())
    with prometheus_server.prometheus(folder, {}) as running:
        for question in _QUESTIONS:
            options = (*question[1:], "--prometheus", running.url, "--kubeconfig", str(server.kubeconfig), *_RANGE)  # fmt: skip
            ended = product.run(
                question[0], *options, home=folder, hide={running.url: "PROMETHEUS", server.server: "SERVER"}
            )
            yield " ".join(question), ended.lines
