"""The command `explain`: reads policies, manifests and a cluster, and prints the decisions about pods."""

import asyncio
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from console.explain.explainer import ExplainedDocument, ExplainedPod, Explainer, explain
from console.explain.formats import as_json, as_patch
from console.explain.manifest_sources import ManifestSource, read_sources
from console.explain.pod_defaults import as_map, texts
from console.explain.policy_edits import CLUSTER, NamespaceEdits, Policies
from console.explain.text import as_table, as_text, namespace_lines, sums, unadmitted_sentence
from console.explain.workload_kinds import makes_no_pods
from kai import keys
from service.command import (
    UNUSABLE,
    UsageError,
    columns_of,
    output_has_colour,
    write_document,
    write_lines,
    write_note,
    write_warning,
)
from service.documents import DocumentError, list_items
from service.text import fold, one_line
from webhook.namespaces.file_policies import read_namespaces
from webhook.policy.labels import LabelProblems, PolicyMetadata
from webhook.settings.decision_options import KnownSettings

OUTPUTS: Final = ("text", "table", "json", "patch")
_DEFAULT_NAMESPACE: Final = "default"
_MOST_AS_TEXT: Final = 4
"""Number of pods up to which the default output is text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainSettings:
    """The settings of `explain`."""

    program: str
    """Name of the running command, for messages."""
    filenames: Sequence[str]
    """Files and directories of manifests; `-` is standard input."""
    recursive: bool
    namespace: str | None
    """The namespace of objects that name none, and of the edits; None for the default."""
    all_namespaces: bool
    """Whether the workloads of all namespaces are read."""
    policies: str | None
    """`cluster`, or a file or directory of Namespace objects; None for none."""
    kubeconfig: str | None
    context: str | None
    settings_namespace: str
    """The namespace of the ConfigMap with the settings of the cluster's webhook."""
    is_live: bool
    """Whether the workloads of a cluster are explained instead of manifests."""
    asks_server: bool
    """Whether each pod is also created by dry run."""
    edits: NamespaceEdits
    """Labels and annotations of the namespace to try."""
    options: KnownSettings
    """The settings of the webhook that the command line gives."""
    output: str | None
    """One of `OUTPUTS`; None for text or, for many pods, a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The decisions about all pods, and what they rest on."""

    documents: Sequence[ExplainedDocument]
    policies: Policies
    problems: Mapping[str, LabelProblems]
    """What the webhook for namespaces says about the namespaces of the pods and of the edits."""
    notes: Sequence[str] = ()
    """Sentences about what is not known, and about namespaces that are not managed."""

    @property
    def pods(self) -> Iterator[ExplainedPod]:
        """The pods of all documents."""
        return (pod for document in self.documents for pod in document.pods)

    @property
    def is_refused(self) -> bool:
        """Whether a pod or a label would be refused."""
        return any(invalid.is_refused for invalid in self.problems.values()) or any(
            pod.is_refused or (pod.server is not None and pod.server.is_admitted is False)
            for pod in self.pods
        )

    @property
    def has_problem(self) -> bool:
        """Whether the API server gave no usable answer about a pod."""
        return any(pod.server is not None and bool(pod.server.problem) for pod in self.pods)


def write_explanations(settings: ExplainSettings) -> int:
    """Print what the webhooks would do; return 1 if something would be refused, 2 without an answer, else 0.

    Raises:
        DocumentError: a manifest is unusable, or nested too deep for the output.
        PoliciesError: the policies cannot be read.
        UsageError: standard output cannot be written, or no access to a cluster is configured.
    """
    if settings.policies == CLUSTER:
        answer = asyncio.run(_answer_from_cluster(settings))
    else:
        answer = _answer_from_files(settings)
    try:
        _print(settings, answer)
    except RecursionError:
        raise DocumentError("a manifest is nested too deep for YAML") from None
    return UNUSABLE if answer.has_problem else int(answer.is_refused)


def _answer_from_files(settings: ExplainSettings) -> Answer:
    namespace, rules = settings.namespace or _DEFAULT_NAMESPACE, settings.options.rules
    policies = Policies.collect(
        read_namespaces(Path(settings.policies)) if settings.policies else {},
        [namespace],
        settings.edits,
        default_mode=rules.default_mode,
    )
    sources = read_sources(settings.filenames, recursive=settings.recursive)
    documents = list(explain(sources, Explainer(namespace, policies.by_namespace, rules)))
    return _answer(documents, policies, [namespace] if settings.edits else ())


async def _answer_from_cluster(settings: ExplainSettings) -> Answer:
    # Imported here, because a preview from files needs no HTTP client.
    from console.explain.cluster_facts import read_facts  # noqa: PLC0415
    from console.explain.live_workloads import live_workloads  # noqa: PLC0415
    from console.explain.server_dry_runs import with_answers  # noqa: PLC0415
    from kube.access import AccessError, find_access  # noqa: PLC0415
    from kube.client import KubeClient  # noqa: PLC0415
    from service.log_writer import discard_library_logs  # noqa: PLC0415

    discard_library_logs()
    try:
        access = await find_access(settings.kubeconfig, settings.context)
        namespace = settings.namespace or access.namespace
    except AccessError as error:
        raise UsageError(f"no cluster: {error}") from None
    sources = read_sources(settings.filenames, recursive=settings.recursive) if settings.filenames else []
    async with KubeClient(access) as client:
        created = _created_namespaces(sources)
        facts = await read_facts(
            client,
            settings.options,
            names=None if settings.all_namespaces else _used_namespaces(settings, sources, namespace),
            created=created,
            settings_namespace=settings.settings_namespace,
            accepts_unread=settings.asks_server,
        )
        known = {**created, **facts.namespaces}
        edited = {*known, namespace} if settings.all_namespaces else [namespace]
        policies = Policies.collect(known, edited, settings.edits, default_mode=facts.rules.default_mode)
        explainer = Explainer(namespace, policies.by_namespace, facts.rules, facts.defaults, facts.unread)
        notes = [*facts.notes, *_unmanaged(settings.namespace, policies)]
        if settings.is_live:
            names = None if settings.all_namespaces else [namespace]
            gc.disable()  # with many workloads in memory, a collection takes most of a second
            try:
                live = await live_workloads(client, explainer, namespaces=names)
            finally:
                gc.freeze()  # what was read stays until the end, so no collection needs to look at it
                gc.enable()
            documents = [ExplainedDocument(None, None, live.items)]
            notes += live.notes
        else:
            documents = list(explain(sources, explainer))
            if settings.asks_server:
                documents = await with_answers(client, documents)
    judged = [] if settings.namespace is None and not settings.edits else [namespace]
    return _answer(documents, policies, judged, notes)


def _unmanaged(namespace: str | None, policies: Policies) -> Iterator[str]:
    """Say that the namespace of the command line is not managed, if that is so."""
    if namespace is not None and namespace not in policies.by_namespace:
        yield f"namespace {namespace} is not managed: it has no label {keys.QUEUE_LABEL}"


def _answer(
    documents: Sequence[ExplainedDocument],
    policies: Policies,
    named: Iterable[str],
    notes: Iterable[str] = (),
) -> Answer:
    """Collect the answer.

    Args:
        documents: the decisions.
        policies: the policies that were used.
        named: namespaces whose labels are judged even without pods.
        notes: sentences about what is not known.
    """
    used = dict.fromkeys([*named, *(pod.namespace for document in documents for pod in document.pods)])
    return Answer(
        documents=documents,
        policies=policies,
        problems={name: policies.problems(name) for name in used},
        notes=list(notes),
    )


def _objects(sources: Iterable[ManifestSource]) -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    """Yield each object of the manifests that has metadata, and its metadata."""
    for source in sources:
        for document in source.documents:
            for value, _ in list_items(document.value):
                if isinstance(as_map(value).get("metadata"), dict):
                    yield value, value["metadata"]


def _used_namespaces(
    settings: ExplainSettings, sources: Sequence[ManifestSource], namespace: str
) -> set[str]:
    """Return the namespaces of the objects that may have pods, and those that the command line names.

    Args:
        settings: the settings of the command.
        sources: the manifests.
        namespace: the namespace of objects that name none.
    """
    is_named = settings.namespace is not None or settings.edits or settings.is_live
    used = {namespace} if is_named else set()
    for value, metadata in _objects(sources):
        if not makes_no_pods(str(value.get("apiVersion") or ""), str(value.get("kind") or "")):
            used.add(str(metadata.get("namespace") or namespace))
    return used


def _created_namespaces(sources: Iterable[ManifestSource]) -> dict[str, PolicyMetadata]:
    """Return the labels and annotations of the namespaces that the manifests create, by name."""
    return {
        str(metadata.get("name")): PolicyMetadata.select(
            texts(metadata.get("labels")), texts(metadata.get("annotations"))
        )
        for value, metadata in _objects(sources)
        if value.get("kind") == "Namespace"
    }


def _print(settings: ExplainSettings, answer: Answer) -> None:
    documents, problems, program = answer.documents, answer.problems, settings.program
    few = next(islice(answer.pods, _MOST_AS_TEXT, None), None) is None
    output = settings.output or ("text" if few else "table")
    if output in ("text", "table"):
        write_lines(_text(answer, output))
        return
    for sentence in answer.policies.without_effect:
        write_warning(f"{program}: warning: {sentence}")
    for note in answer.notes:
        write_warning(f"{program}: {note}")
    if output == "json":
        write_document(_joined(as_json(documents, problems)))
    else:
        write_document(_joined(as_patch(documents)))
    for refusal in _refusals(answer):
        write_note(f"{program}: {refusal}")  # one line each, so that scripts can search them


def _text(answer: Answer, output: str) -> Iterator[str]:
    """Yield the lines of the text or the table, with the sums last."""
    columns, colour = columns_of(sys.stdout), output_has_colour()
    documents, problems = answer.documents, answer.problems
    if output == "table":
        yield from namespace_lines(problems, answer.policies, colour=colour, columns=columns)
        yield from as_table(documents, columns=columns)
        for sentence in dict.fromkeys(filter(None, map(unadmitted_sentence, answer.pods))):
            yield from fold(sentence, columns, indent="  ")
    else:
        yield from as_text(documents, problems, answer.policies, colour=colour, columns=columns)
    for note in answer.notes:
        yield from fold(f"note: {note}", columns, indent="  ")
    yield from sums(documents, columns=columns)


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _refusals(answer: Answer) -> Iterator[str]:
    """Yield a sentence for each cause of exit status 1, and for each invalid label that is only a warning."""
    for namespace, invalid in answer.problems.items():
        kind = "error" if invalid.is_refused else "warning"
        for problem in invalid.first:
            yield f"{kind}: namespace {one_line(namespace)}: {problem}"
    for pod in answer.pods:
        title = f"error: {one_line(pod.pod.title)} in namespace {one_line(pod.namespace)}"
        for denial in pod.verdict.denials if pod.verdict else ():
            yield f"{title}: denied: {denial.sentence}"
        if pod.is_refused and not pod.is_denied:
            yield f"{title}: {pod.mutation.decision.finding.sentence}"
        sentence = unadmitted_sentence(pod)
        if sentence:
            yield f"{title}: {sentence}"
