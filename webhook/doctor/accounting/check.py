"""The findings of the check: the differences that two readings have in common."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from service.check_results import CheckResult, limited, ok, unknown
from service.text import counted, listed, quoted
from webhook.doctor.accounting.node_sums import compare_nodes
from webhook.doctor.accounting.queue_limits import compare_limits
from webhook.doctor.accounting.queue_status import compare_status
from webhook.doctor.accounting.reading import CHECK, Difference, Key, Reading, SumComparison
from webhook.doctor.accounting.single_pods import deleted_pods, unknown_subgroups


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedReading:
    """What one reading shows."""

    reading: Reading
    status: SumComparison = field(default_factory=SumComparison)
    nodes: SumComparison = field(default_factory=SumComparison)
    differences: Mapping[Key, Difference]


def evaluate(reading: Reading) -> EvaluatedReading:
    """Compare all figures of a reading. Pure.

    Without a part of the objects or without figures of KAI, `Queue.status` is not compared. A sum that is
    too large in spite of a missing object is a difference all the same.
    """
    status = compare_status(reading) if reading.is_whole and reading.has_figures else SumComparison()
    nodes = compare_nodes(reading)
    differences = (
        *status.differences,
        *compare_limits(reading),
        *nodes.differences,
        *unknown_subgroups(reading),
    )
    by_key = {difference.key: difference for difference in differences}
    return EvaluatedReading(reading=reading, status=status, nodes=nodes, differences=by_key)


def persistent_findings(first: EvaluatedReading, last: EvaluatedReading) -> Iterator[CheckResult]:
    """Yield the findings that both readings have in common.

    Args:
        first: the first reading.
        last: a reading some seconds later, or the first one again if it has no difference.
    """
    findings = [
        difference.finding
        for key, difference in last.differences.items()
        if difference.persists_since(first.differences.get(key))
    ]
    yield from limited(findings, "more difference")
    deleted = list(deleted_pods(last.reading))
    yield from deleted
    yield from _unknown(last)
    if not last.reading.has_figures:
        yield unknown(
            CHECK,
            "KAI has written no figures: the requests of pods were compared with limits and nodes only",
            "run KAI with its podgroupcontroller and queuecontroller",
        )
    changing = len(last.differences) - len(findings)
    if changing:
        yield unknown(
            CHECK,
            f"{counted(changing, 'figure')} changed between two readings, and could not be compared",
            "run doctor again",
        )
    if last.reading.is_whole and last.reading.has_figures and not findings and not deleted:
        yield _agreement(last)


def _agreement(evaluation: EvaluatedReading) -> CheckResult:
    queues, nodes = evaluation.status.compared, evaluation.nodes.compared
    pods = len(evaluation.reading.pods.items)
    return ok(
        CHECK,
        f"the requests of {counted(pods, 'pod')} add up to KAI's figures in"
        f" {counted(len(queues), 'queue')} and fit on {counted(len(nodes), 'node')}",
    )


def _unknown(evaluation: EvaluatedReading) -> Iterator[CheckResult]:
    for kind, comparison in (("queue", evaluation.status), ("node", evaluation.nodes)):
        if comparison.unknown:
            names = [quoted(name) for name in comparison.unknown]
            reasons = {reason for pods in comparison.unknown.values() for reason in pods}
            yield unknown(
                CHECK,
                f"the sum of {counted(len(names), kind)} is unknown: {listed(names)}; pods:"
                f" {listed(reasons)}",
            )
