"""The tables of the documentation, written from the code's own: `python -m docs.tables FILE…`.

A document marks where a table belongs with `<!-- table: NAME -->` and `<!-- end -->`; what stands between is
replaced, the prose around it is not touched.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from docs import api_schema
from docs.form_differences import DIFFERENCES
from gpuagent.first_acts import FOR_PROBLEM
from kai.kaishare_keys import EXCLUDED_NAMESPACES, SIZE_PREFIX
from kai.key_classes import KAI_KEYS, TABLE, KeyClass
from webhook.policy import distributed
from webhook.policy.labels import LABELS
from webhook.policy.reasons import Group, Reason
from webhook.policy.sizes import A_SIZE

_EVIDENCE: Final = (
    *distributed.VARIABLES,
    distributed.JAX_PROCESSES,
    distributed.CLUSTER,
    *distributed.RENDEZVOUS,
    distributed.NODES_OPTION,
    distributed.LWS_SIZE,
    distributed.KUEUE_COUNT,
    *distributed.JOB_SET,
    distributed.MPI_JOB,
    distributed.MPI_OPERATOR,
)
"""Evidence that a pod is a rank of a distributed job."""
_PURPOSES: Final = {
    "kai.scheduler/queue": "the queue of the namespace's pods; makes the namespace managed",
    "kaishare.dev/mode": "how strictly the policy applies, see [Modes](#modes)",
    "kaishare.dev/scheduler": "KAI under another name; `default-scheduler` gives no share",
    "kaishare.dev/gpu-fraction": "the [default share](#the-default-share), as a part of a GPU",
    "kaishare.dev/gpu-memory": "the default share in MiB",
    "kaishare.dev/share-for": "[which pods](#the-default-share) get the default share, or a size by selector",
    "kaishare.dev/max-gpu-fraction": "the [cap](#caps): the largest share that a pod may ask for",
    "kaishare.dev/max-gpu-memory": "the cap in MiB",
    "kaishare.dev/priority": "the PriorityClass, for KAI, of pods without one",
    "kaishare.dev/gpu-toleration": "tolerates the taint `nvidia.com/gpu` on pods with a share",
    "kaishare.dev/distributed": "whether ranks of [distributed jobs](#distributed-jobs) get shares, too",
    "kaishare.dev/framework-memory": "whether the webhook tells the author the"
    " [memory option of a framework](frameworks.md), or sets it",
    "kaishare.dev/announce": "the [warning](#the-decision-stays-on-the-pod) that a GPU was converted",
    "kaishare.dev/vcluster": "marks the host namespace of a vCluster, whose syncer writes vCluster's keys;"
    " elsewhere they are [reserved](#under-enforce)",
    "kaishare.dev/over-share": "pods above their share are reported, or [evicted](flags.md#evictions)"
    " where the administrator allows it",
    "kaishare.dev/over-share-grace": "how long a pod may be above its share before it is flagged",
    "size.kaishare.dev/NAME": "a [size](#sizes-several-shares-in-one-namespace): a share with a name",
}
"""What each label of a namespace is for, with links of docs/policy.md."""
_PLACE = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def written(document: str) -> str:
    """Return the document with every marked table as it is now.

    Raises:
        KeyError: a table of that name does not exist.
    """
    return _PLACE.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", document)


def _labels() -> str:
    rows = [(label.key, label.allowed, label.absent) for label in LABELS.values()]
    rows.append((f"{SIZE_PREFIX}NAME", A_SIZE, "no such size"))
    return _table(
        ("namespace label", "what it is for", "allowed", "absent means"),
        [(f"`{key}`", _PURPOSES[key], allowed, absent) for key, allowed, absent in rows],
    )


def _excluded() -> str:
    return ", ".join(f"`{name}`" for name in sorted(EXCLUDED_NAMESPACES)) + "\n"


def _reasons(*groups: Group) -> Callable[[], str]:
    def table() -> str:
        rows = [(f"`{reason.code}`", reason.text) for reason in Reason if reason.group in groups]
        return _table(("reason", "what it says"), rows)

    return table


def _evidence() -> str:
    places = _grouped((row.counts, f"{row.place} `{row.name}` ({row.source})") for row in _EVIDENCE)
    return _table(("evidence if it is", "on the pod (written by)"), places)


def _form_differences() -> str:
    rows = [(f"`{row.name}`", row.webhook, row.policy) for row in DIFFERENCES]
    return _table(("difference", "webhook", "admission policies"), rows)


def _kai_names() -> str:
    return ", ".join(f"`{name}{'…' if name[-1] in '/-.' else ''}`" for name in KAI_KEYS) + "\n"


def _kai_keys(rule: KeyClass) -> Callable[[], str]:
    def table() -> str:
        keys = _grouped(
            (row.effect, f"{row.kind} `{row.key}{'…' if row.is_prefix else ''}` ({row.since})")
            for row in TABLE
            if row.rule is rule
        )
        effect = "what it sets" if rule is KeyClass.FREE else "what a later change could give"
        return _table((effect, "key (read since KAI)"), keys)

    return table


def _problem_acts() -> str:
    rows = [
        (f"`{reason}`", act.text)
        for reason, act in FOR_PROBLEM.items()
        if not reason.startswith("reservation-")
    ]
    return _table(("reason", "first act"), rows)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "labels": _labels,
    "problem-acts": _problem_acts,
    "excluded-namespaces": _excluded,
    "evidence": _evidence,
    "form-differences": _form_differences,
    "reasons-left-alone": _reasons(Group.LEFT_ALONE),
    "reasons-share": _reasons(Group.SHARE),
    "reasons-size": _reasons(Group.SIZE),
    "reasons-warnings": _reasons(Group.WARNING, Group.WARNING_OR_DENIAL),
    "reasons-denials": _reasons(Group.DENIED, Group.WARNING_OR_DENIAL),
    "reasons-admitted": _reasons(Group.ADMITTED),
    "reasons-labels": _reasons(Group.LABELS),
    "reasons-failed": _reasons(Group.FAILED),
    "kai-prefixes": _kai_names,
    "kai-keys-fixed": _kai_keys(KeyClass.CREATION),
    "kai-keys-free": _kai_keys(KeyClass.FREE),
}


def _grouped(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return a row for each first cell, with the second cells of its rows in lines."""
    groups: dict[str, list[str]] = {}
    for first, second in rows:
        groups.setdefault(first, []).append(second)
    return [(first, "<br>".join(lines)) for first, lines in groups.items()]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def main(files: list[str]) -> None:
    """Rewrite the files: the tables of a document, or the whole schema of the agent's API."""
    for file in map(Path, files):
        is_schema = file.name == api_schema.FILE
        text = api_schema.schema_text() if is_schema else written(file.read_text(encoding="utf-8"))
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
