"""The command `explain`: reads policies and manifests, prints the decisions about their pods."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.command import output_has_colour, write_document, write_note, write_output
from service.text import one_line
from webhook.explain.explain import ExplainedDocument, UnexplainedObject, explain
from webhook.explain.namespaces import NamespaceEdits, Policies, read_policies
from webhook.explain.report import as_json, as_patch, as_text, as_yaml
from webhook.explain.rewrite import rewrite
from webhook.explain.sources import read_sources
from webhook.policy.decide import Rules
from webhook.policy.labels import LabelProblems
from webhook.policy.reasons import Action

OUTPUTS: Final = ("text", "json", "yaml", "patch", "manifest")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainSettings:
    """The settings of `explain`."""

    program: str
    """Name of the running command, for messages."""
    filenames: Sequence[str]
    """Files and directories of manifests; `-` is standard input."""
    recursive: bool
    namespace: str
    """The namespace of objects that name none."""
    policies: str | None
    """`cluster`, or a file or directory of Namespace objects; None for none."""
    kubeconfig: str | None
    context: str | None
    edits: NamespaceEdits
    """Labels and annotations of the namespace to try."""
    output: str
    """One of `OUTPUTS`."""


def run(settings: ExplainSettings, rules: Rules) -> int:
    """Print what the webhooks would do; return 1 if something would be refused, else 0.

    Raises:
        DocumentError: a manifest is unusable.
        PoliciesError: the policies cannot be read.
        UsageError: standard output cannot be written.
    """
    namespaces = read_policies(settings.policies, kubeconfig=settings.kubeconfig, context=settings.context)
    policies = Policies.collect(
        namespaces, settings.namespace, settings.edits, default_mode=rules.default_mode
    )
    sources = read_sources(settings.filenames, recursive=settings.recursive)
    documents = list(
        explain(sources, namespace=settings.namespace, policies=policies.by_namespace, rules=rules)
    )
    used = dict.fromkeys(pod.namespace for document in documents for pod in document.pods)
    if settings.edits:
        used[settings.namespace] = None
    problems = {name: policies.problems(name) for name in used}
    is_refused = any(invalid.is_refused for invalid in problems.values()) or any(
        pod.is_refused for document in documents for pod in document.pods
    )
    _print(settings, documents, problems, policies, is_refused=is_refused)
    return 1 if is_refused else 0


def _print(
    settings: ExplainSettings,
    documents: Sequence[ExplainedDocument],
    problems: Mapping[str, LabelProblems],
    policies: Policies,
    *,
    is_refused: bool,
) -> None:
    output, program = settings.output, settings.program
    if output == "text":
        write_output(_joined(as_text(documents, problems, policies, colour=output_has_colour())))
        return
    for sentence in policies.without_effect:
        write_note(f"{program}: warning: {sentence}")
    if output == "json":
        write_document(_joined(as_json(documents, problems)))
    elif output == "yaml":
        write_document(_joined(as_yaml(documents, problems)))
    elif output == "patch":
        write_document(_joined(as_patch(documents)))
    elif is_refused:
        _write_notes(program, ["no manifest is written, because of these errors:"])
    else:
        manifests = rewrite(documents)
        _write_notes(program, [*manifests.notes, *_unchanged(documents)])
        write_document(manifests.text)
    _write_notes(program, _refusals(documents, problems))


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _write_notes(program: str, notes: Iterable[str]) -> None:
    for note in notes:
        write_note(f"{program}: {note}")


def _refusals(documents: Sequence[ExplainedDocument], problems: Mapping[str, LabelProblems]) -> Iterator[str]:
    """Yield a sentence for each cause of exit status 1, and for each invalid label that is only a warning."""
    for namespace, invalid in problems.items():
        kind = "error" if invalid.is_refused else "warning"
        for problem in invalid.first:
            yield f"{kind}: namespace {one_line(namespace)}: {problem}"
    for document in documents:
        for pod in document.pods:
            title = f"error: {one_line(pod.pod.title)} in namespace {one_line(pod.namespace)}"
            for denial in pod.verdict.denials if pod.verdict else ():
                yield f"{title}: denied: {denial.sentence}"
            if pod.is_refused and not pod.is_denied:
                yield f"{title}: {pod.mutation.decision.finding.sentence}"


def _unchanged(documents: Sequence[ExplainedDocument]) -> Iterator[str]:
    """Yield a sentence for each namespace in mode observe, and for each object that may make other pods."""
    observed = dict.fromkeys(
        pod.namespace
        for document in documents
        for pod in document.pods
        if pod.mutation.decision.action is Action.OBSERVED
    )
    for namespace in observed:
        yield f"namespace {one_line(namespace)} is in mode observe: its pods are written unchanged"
    for document in documents:
        for item in document.items:
            if isinstance(item, UnexplainedObject) and item.code != "no-pods":
                yield f"{item.title} is written unchanged: {item.message}"
