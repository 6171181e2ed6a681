"""The results of `explain` for people: as text and as a table, with differences and sums. Pure."""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from console.explain.explainer import RBAC, ExplainedDocument, ExplainedPod, UnexplainedObject
from console.explain.manifest_sources import Location
from console.explain.pod_documents import GpuAmount, as_json, asked_by, asked_now
from console.explain.policy_edits import Policies
from console.text_table import column_widths, natural_widths, table_lines
from kai import keys
from kai.pod import MalformedPod, decode_pod
from service.text import counted, fold, one_line, printable, shorten_middle, width
from webhook.policy.decide import Changes
from webhook.policy.labels import LabelProblems
from webhook.policy.reasons import Action, Finding, Reason
from webhook.policy.sizes import Source

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_RESET = "\033[0m"
_CONTEXT = 2  # lines


class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # depends on PyYAML's build
    """A YAML dumper that repeats equal values instead of writing anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        """Treat no value as an alias."""
        return True


def diff(before: Mapping[str, Any], after: Mapping[str, Any], *, colour: bool) -> Iterator[str]:
    """Yield the lines of a diff of two pods as YAML, keys in the order they were written."""
    lines = difflib.unified_diff(_yaml(before), _yaml(after), lineterm="", n=_CONTEXT)
    for line in list(lines)[2:]:  # without the two file names
        text = "   …" if line.startswith("@@") else line
        yield paint(text, line[:1], colour=colour)


def paint(text: str, sign: str, *, colour: bool) -> str:
    """Colour a line by its sign: `+` for added, `-` for removed, `@` for a title."""
    return f"{_COLOURS[sign]}{text}{_RESET}" if colour and sign in _COLOURS else text


def _yaml(pod: Mapping[str, Any]) -> list[str]:
    return yaml.dump(dict(pod), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000).splitlines()


_WORDS: Final = {
    Action.INJECTED: "changed",
    Action.OBSERVED: "observed",
    Action.UNCHANGED: "unchanged",
    Action.ERROR: "error",
}
_RANKS: Final = (Reason.DISTRIBUTED, Reason.RANKS_MAY_MEET)
_SHARES: Final = (keys.GPU_FRACTION, keys.GPU_MEMORY)


def action_word(item: ExplainedPod) -> str:
    """Return what happens to the pod, in one or two words."""
    if not item.is_decided:
        return "not known"
    return "denied" if item.is_denied else _WORDS.get(item.mutation.decision.action, "left alone")


def reason_code(item: ExplainedPod) -> str:
    """Return the code of the reason that says most about the pod.

    The first denial comes first, then the change at the creation of a live pod, then the decision.
    """
    if item.verdict is not None and item.verdict.denials:
        return item.verdict.denials[0].reason.code
    if is_changed_earlier(item) and item.earlier is not None:
        return one_line(item.earlier.reason, 40)
    return item.mutation.decision.reason.code


def is_changed_earlier(item: ExplainedPod) -> bool:
    """Whether the share of a live pod is that of the policy, which the webhook gave it at its creation."""
    is_own = item.mutation.decision.source is Source.OWN_SHARE
    return is_own and item.earlier is not None and item.earlier.is_current


def headline(item: ExplainedPod) -> str:
    """Return one sentence about what happens to the pod, with the code of the reason."""
    decision = item.mutation.decision
    if is_changed_earlier(item) and item.earlier is not None:
        made = one_line(item.earlier.reason, 40)
        return f"{action_word(item)}: changed at its creation ({made}); its share is the policy's"
    sentence = with_code(decision.finding)
    if not item.is_decided:
        return f"not known: {sentence}"
    if decision.action is Action.ERROR:
        return f"error, left alone: {sentence}"
    if decision.action is Action.UNCHANGED:
        return f"unchanged: {sentence}"
    if decision.action not in (Action.INJECTED, Action.OBSERVED):
        return f"left alone: {sentence}"
    changes = decision.changes
    mode = "mode observe" if decision.action is Action.OBSERVED else ""
    verb = "would be changed" if mode else "changed"
    if changes.removed_gpu_keys or any(key in changes.annotations for key in _SHARES):
        return f"{verb}{f' ({mode})' if mode else ''}: {sentence}"
    parts = ", ".join([*_parts(changes), *([mode] if mode else [])])
    return f"{verb} ({parts}), no share given: {sentence.removeprefix('no share: ')}"


def _parts(changes: Changes) -> Iterator[str]:
    """Yield the names of the changed parts of a pod that gets no share."""
    if changes.scheduler:
        yield "scheduler"
    if keys.QUEUE_LABEL in changes.labels:
        yield "queue"
    if keys.PRIORITY_LABEL in changes.labels:
        yield "priority"
    if changes.toleration:
        yield "toleration"


def with_code(finding: Finding) -> str:
    """Return a finding's sentence with its code."""
    return f"{finding.sentence} ({finding.reason.code})"


def is_rank(item: ExplainedPod) -> bool:
    """Whether the pod is a rank of a distributed job that asks for one GPU or a share."""
    findings = (item.mutation.decision.finding, *item.warnings)
    return any(finding.reason in _RANKS for finding in findings)


def hints(item: ExplainedPod) -> list[Finding]:
    """Return the warnings that say more than the decision."""
    sentence = item.mutation.decision.finding.sentence
    return [finding for finding in item.warnings if finding.sentence != sentence]


def share_text(item: ExplainedPod) -> str:
    """Return what the pod ends with, in a few characters: `0.25`, `2000 MiB`, `1 GPU`; `-` for nothing."""
    try:
        pod = decode_pod(as_json(item.outcome))
    except MalformedPod:
        return "?"
    for key, unit in ((keys.GPU_FRACTION, ""), (keys.GPU_MEMORY, " MiB")):
        if key in pod.annotations:
            return one_line(pod.annotations[key], 12) + unit
    amount = asked_by(pod)
    if amount.uncounted:
        return "other GPU"
    return f"{amount.gpus:g} GPU{'' if amount.gpus == 1 else 's'}" if amount.gpus else "-"


def amount_after(item: ExplainedPod) -> GpuAmount:
    """Return what a new pod asks for; in mode observe, what it would ask for."""
    return asked_now(as_json(item.outcome))


def source_sentence(item: ExplainedPod) -> str:
    """Describe what decided the share; empty if the pod gets none."""
    decision = item.mutation.decision
    size = decision.size
    match decision.source:
        case Source.OWN_SHARE if not is_changed_earlier(item):
            return "the pod's own share"
        case Source.SIZE_LABEL if size is not None:
            return f"the pod's label kaishare.dev/size: {size.name}"
        case Source.SIZE_SELECTOR if size is not None and size.selector is not None:
            return f"the selector of size {size.name}: {printable(size.selector.text)}"
        case Source.DEFAULT_SHARE:
            return "the namespace's default share"
    return ""


def server_word(item: ExplainedPod) -> str:
    """Return what the API server answered, in one or two words; empty if it was not asked."""
    answer = item.server
    if answer is None:
        return ""
    if answer.is_admitted is None:
        return "no answer"
    if not answer.is_admitted:
        return "refused"
    return "different" if answer.differences and item.is_decided else "admitted"


def server_sentences(item: ExplainedPod) -> Iterator[str]:
    """Yield the sentences about the API server's answer."""
    answer = item.server
    if answer is None:
        return
    refused = f"refused by {answer.refused_by}" if answer.refused_by else "refused"
    word = {None: "no answer", True: "admitted", False: refused}[answer.is_admitted]
    yield f"server: {word}" + (f": {answer.problem}" if answer.problem else "")
    if answer.refusal and answer.refused_by != RBAC:
        yield f"server says: {answer.refusal}"
    yield from (f"admitted with {field}: {value}" for field, value in answer.fields.items())
    yield from (f"server warning: {warning}" for warning in answer.warnings)
    if item.is_decided:
        yield from (f"differs: {difference.sentence}" for difference in answer.differences)
        yield from (f"because: {cause}" for cause in answer.causes)
    yield from (f"note: {note}" for note in answer.notes)


def unadmitted_sentence(item: ExplainedPod) -> str:
    """Say that the API server refused the pod, gave no answer about it, or has a problem; empty otherwise."""
    is_admitted = item.server is None or (item.server.is_admitted and not item.server.problem)
    return "" if is_admitted else next(server_sentences(item))


def notes(item: ExplainedPod) -> Iterator[str]:
    """Yield sentences about what `explain` does not know of the pod, and about a live pod's past."""
    earlier = item.earlier
    is_known = earlier is not None and earlier.reason == item.mutation.decision.reason.code
    if earlier is not None and not is_known and not is_changed_earlier(item):
        yield (
            f"changed at its creation ({one_line(earlier.reason, 40)});"
            " a new pod may get something else, because the policy or the pod has changed since"
        )
    if not item.pod.has_known_labels and item.policy is not None and item.policy.sizes.selecting:
        yield (
            f"the controller of this {one_line(item.pod.kind)} may add labels, which the selectors of sizes"
            " see and explain does not"
        )


_NONE: Final = "-"
_WIDE: Final = 110
"""Width from which the table has both file and name of an object."""
_LEAST: Final = {"FILE": 10, "OBJECT": 10, "NAMESPACE": 10}
"""Smallest width of the columns that are shortened."""


def as_table(documents: Iterable[ExplainedDocument], *, columns: int) -> Iterator[str]:
    """Yield the lines of the table; names are shortened in their middle so that the lines fit.

    Args:
        documents: the explained documents. Objects that have nothing to do with pods are left out.
        columns: width of the lines.
    """
    items = [
        (location, _cells(item, location))
        for document in documents
        for location, item in document.located()
        if isinstance(item, ExplainedPod) or item.code != "no-pods"
    ]
    if not items:
        return
    titles = [title for title in items[0][1] if any(cells[title] for _, cells in items)]
    if "FILE" in titles and columns < _WIDE:
        titles.remove("OBJECT")
    rows = [titles, *([cells[title] or _NONE for title in titles] for _, cells in items)]
    least = [_LEAST.get(title, 0) for title in titles]
    widths = _widths(rows, columns, least)
    if "FILE" in titles:
        for row, (location, _) in zip(rows[1:], items, strict=True):
            row[0] = _file(location, widths[0])
        widths = _widths(rows, columns, least)
    yield from table_lines(rows, widths)


def _cells(item: ExplainedPod | UnexplainedObject, location: Location | None) -> dict[str, str]:
    """Return the cells of a row by the columns' titles; a column of empty cells is left out."""
    pod = item.pod if isinstance(item, ExplainedPod) else item
    names = {
        "FILE": str(location or ""),
        "OBJECT": one_line(f"{pod.kind}/{pod.name or '(no name)'}"),
        "NAMESPACE": one_line(item.namespace),
    }
    if isinstance(item, UnexplainedObject):
        others = {"ACTION": "not known", "SHARE": "?", "REASON": item.code, "WARN": _NONE}
        return {**names, "PODS": "", "SERVER": "", **others}
    return {
        **names,
        "PODS": str(item.running.count) if item.running else "",
        "SERVER": server_word(item),
        "ACTION": action_word(item),
        "SHARE": share_text(item),
        "REASON": reason_code(item),
        "WARN": str(len(hints(item)) or _NONE),
    }


def _file(location: Location | None, columns: int) -> str:
    if location is None:
        return _NONE
    line = f":{location.line}"
    file, room = one_line(location.file), columns - len(line)
    if width(file) > room:
        file = f"…/{file.rpartition('/')[2]}"  # the last part says most
    return shorten_middle(file, room) + line


def _widths(rows: Sequence[Sequence[str]], columns: int, least: Sequence[int]) -> list[int]:
    """Return the widths of the columns; the smallest ones where no table fits."""
    widths = column_widths(rows, columns, least)
    if widths is None:
        widths = [min(room, fewest or room) for room, fewest in zip(natural_widths(rows), least, strict=True)]
    return widths


def sums(documents: Iterable[ExplainedDocument], *, columns: int) -> list[str]:
    """Return one sentence with the sums of all pods, in lines of at most a width."""
    actions: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    pods = warned = others = running = ranks = 0
    today, after = GpuAmount(), GpuAmount()
    is_live = False
    for document in documents:
        for item in document.items:
            if not isinstance(item, ExplainedPod):
                others += 1
                continue
            pods += 1
            actions[action_word(item)] += 1
            answers[server_word(item)] += 1
            warned += bool(hints(item))
            ranks += is_rank(item)
            if item.running is not None:
                is_live = True
                running += item.running.count
                today += item.running.requested
                after += amount_after(item).times(item.running.count)
    noun = "workload" if is_live else "pod"
    head = counted(pods, noun) + (f" with {counted(running, 'pod')}" if is_live else "")
    parts = [f"{count} {action}" for action, count in actions.most_common()]
    text = f"{head}: {', '.join(parts)}" if parts else head
    server_parts = [f"{count} {answer}" for answer, count in answers.most_common() if answer]
    text += f"; the API server: {', '.join(server_parts)}" if server_parts else ""
    for count, what in ((warned, "with warnings"), (ranks, "of distributed jobs")):
        text += f"; {count} {what}" if count else ""
    text += f"; {counted(others, 'other object')}" if others else ""
    if is_live:
        text += f"; asked for today: {today}; by new pods: {after}"
    return fold(f"{text}.", columns)


_NO_PODS: Final = "The manifests contain no pods."
_NO_WORKLOADS: Final = "There are no workloads."
_LONGEST_NAMESPACE: Final = 40
"""Largest width of a namespace in a title; the object's name is shortened further."""


def as_text(documents: Sequence[ExplainedDocument], *, colour: bool, columns: int) -> Iterator[str]:
    """Yield the lines of a text report.

    The report has for each pod its title, file, action, reason, warnings and diff, then the objects without
    known pods. No sentence about one pod occurs twice.

    Args:
        documents: the explained documents.
        colour: whether to colour the text for a terminal.
        columns: width of the lines; lines of a diff may be longer.
    """
    report = _TextReport(colour=colour, columns=columns)
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
        if item.server is None and item.planned:
            before, after = _written(item.pod.template), _written(item.after)
            yield from (f"  {line}" for line in diff(before, after, colour=self.colour))
        yield ""

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
