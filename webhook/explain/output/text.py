"""The results of `explain` as text for people."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.text import fold, one_line, shorten_middle
from webhook.explain.decision.explainer import ExplainedDocument, ExplainedPod, UnexplainedObject
from webhook.explain.decision.server_answer import ServerAnswer
from webhook.explain.manifests.sources import Location
from webhook.explain.output.diff import diff, paint
from webhook.explain.output.words import headline, notes, server_sentences, source_sentence, with_code
from webhook.explain.policies import Policies
from webhook.policy.labels import LabelProblems

_NO_PODS: Final = "The manifests contain no pods."
_NO_WORKLOADS: Final = "There are no workloads."
_LONGEST_NAMESPACE: Final = 40
"""Largest width of a namespace in a title; the object's name is shortened further."""


def as_text(
    documents: Sequence[ExplainedDocument],
    problems: Mapping[str, LabelProblems],
    policies: Policies,
    *,
    colour: bool,
    columns: int,
) -> Iterator[str]:
    """Yield the lines of a text report.

    The report has for each pod its title, file, action, reason, warnings and diff, then the objects without
    known pods, and first the problems of the namespaces. No sentence about one pod occurs twice.

    Args:
        documents: the explained documents.
        problems: the invalid labels and annotations by namespace.
        policies: the policies of the namespaces.
        colour: whether to colour the text for a terminal.
        columns: width of the lines; lines of a diff may be longer.
    """
    report = _TextReport(colour=colour, columns=columns)
    yield from namespace_lines(problems, policies, colour=colour, columns=columns)
    others: list[tuple[Location | None, UnexplainedObject]] = []
    has_pods = False
    for document in documents:
        for location, item in document.located():
            if isinstance(item, ExplainedPod):
                has_pods = True
                yield from report.pod(item, location)
            else:
                others.append((location, item))
    if not has_pods:
        yield _NO_PODS if any(document.source for document in documents) else _NO_WORKLOADS
    if others:
        yield paint("Other objects:", "@", colour=colour)
        for location, other in others:
            yield from report.other(other, location)


def namespace_lines(
    problems: Mapping[str, LabelProblems], policies: Policies, *, colour: bool, columns: int
) -> Iterator[str]:
    """Yield the lines about invalid labels of namespaces, and about edits without effect."""
    for namespace, invalid in problems.items():
        if not invalid.count:
            continue
        yield paint(f"Namespace {one_line(namespace)}", "@", colour=colour)
        for problem in invalid.first:
            for line in fold(f"policy: {problem}", columns, head="  ", indent="    "):
                yield paint(line, "-", colour=colour)
        if invalid.count > len(invalid.first):
            yield f"  policy: and {invalid.count - len(invalid.first)} more"
        yield ""
    for sentence in policies.without_effect:
        yield from fold(f"warning: {sentence}", columns, indent="  ")


@dataclass(frozen=True, slots=True, kw_only=True)
class _TextReport:
    """Writes the lines about pods and other objects."""

    colour: bool
    columns: int

    def pod(self, item: ExplainedPod, location: Location | None) -> Iterator[str]:
        """Yield the lines about a pod."""
        decision = item.mutation.decision
        yield paint(self._title(item.pod.title, item.namespace), "@", colour=self.colour)
        if location is not None:
            yield from self._indented(f"file: {self._file(location)}")
        yield from self._indented(headline(item))
        written = {decision.finding.sentence}
        source = source_sentence(item)
        if source:
            yield from self._indented(f"decided by: {source}")
        for denial in item.verdict.denials if item.verdict else ():
            is_new = denial.sentence not in written or denial.reason is not decision.reason
            denied = with_code(denial) if is_new else f"for the reason above ({denial.reason.code})"
            for line in self._indented(f"denied: {denied}"):
                yield paint(line, "-", colour=self.colour)
            written.add(denial.sentence)
        for finding in item.warnings:
            if finding.sentence not in written:
                yield from self._indented(f"warning: {with_code(finding)}")
                written.add(finding.sentence)
        for note in notes(item):
            yield from self._indented(f"note: {note}")
        for sentence in server_sentences(item):
            yield from self._indented(sentence)
        if item.server is not None:
            yield from self._server_changes(item.server)
        elif item.planned:
            before, after = _written(item.pod.template), _written(item.after)
            yield from (f"  {line}" for line in diff(before, after, colour=self.colour))
        yield ""

    def _server_changes(self, answer: ServerAnswer) -> Iterator[str]:
        """Yield what the whole cluster changes in the pod; this replaces the diff of our own patch."""
        if not answer.is_admitted:
            return
        yield "  what the cluster changes:" if answer.changes else "  the cluster changes nothing"
        yield from (f"  {paint(line, line[:1], colour=self.colour)}" for line in answer.changes)

    def other(self, item: UnexplainedObject, location: Location | None) -> Iterator[str]:
        """Yield the lines about an object without known pods."""
        place = f" ({self._file(location)})" if location else ""
        text = f"{item.title} in namespace {one_line(item.namespace)}{place}: {item.message} ({item.code})"
        yield from fold(text, self.columns, head="  ", indent="    ")

    def _indented(self, text: str) -> list[str]:
        return fold(text, self.columns, head="  ", indent="    ")

    def _file(self, location: Location) -> str:
        tail = f", line {location.line}"
        return shorten_middle(one_line(location.file), self.columns - len("  file: ") - len(tail)) + tail

    def _title(self, title: str, namespace: str) -> str:
        tail = f" in namespace {shorten_middle(one_line(namespace), _LONGEST_NAMESPACE)}"
        return shorten_middle(one_line(title), self.columns - len(tail)) + tail


def _written(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {key: pod[key] for key in ("metadata", "spec") if pod.get(key)}
