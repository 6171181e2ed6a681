"""Records of `advise` and `report` on a real Prometheus with some made-up histories and the shipped rules' records."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.console.usage.test_advise_against_prometheus import LABELS, PODS
from tests.golden import product
from tests.golden.api_server import hold
from tests.support import prometheus_server
from tests.support.known_metrics import recorded as names_of_records
from tests.support.object_server import ObjectServer
from tests.support.usage_history import END, History, recorded

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
            options = (
                *question[1:],
                "--prometheus",
                running.url,
                "--kubeconfig",
                str(server.kubeconfig),
                *_RANGE,
            )
            ended = product.run(
                question[0], *options, home=folder, hide={running.url: "PROMETHEUS", server.server: "SERVER"}
            )
            yield " ".join(question), ended.lines
