"""The command `explain`: reads policies, manifests and a cluster, and prints the decisions about pods."""

import argparse
import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from console.caller import add_cluster_options, add_settings_namespace, cluster_access, has_kubeconfig
from console.explain.explainer import ExplainedPod, Explainer, Item, explain
from console.explain.manifest_sources import SourceObject, read_manifests
from console.explain.text import (
    as_json_text,
    as_table,
    as_text,
    namespace_sentences,
    sums,
    unadmitted_sentence,
)
from console.text_table import paint
from kai import keys
from kai.kaishare_keys import PREFIX, SIZE_PREFIX
from service.command import (
    UNUSABLE,
    UsageError,
    add_namespace,
    columns_of,
    read_by,
    write_document,
    write_lines,
    write_warning,
)
from service.documents import DocumentError
from service.names import is_label_key, is_label_value
from service.text import fold, quoted, shorten
from webhook.namespaces.file_policies import read_namespaces
from webhook.policy.labels import (
    NO_METADATA,
    LabelProblems,
    Mode,
    NamespacePolicy,
    PolicyMetadata,
    label_problems,
    near_prefixes,
)
from webhook.policy.pod_parts import as_map, texts
from webhook.policy.templates import makes_no_pods
from webhook.settings.decision_options import add_decision_options, parse_decision_options

OUTPUTS: Final = ("text", "table", "wide", "json")
CLUSTER: Final = "cluster"  # as the value of --policies; a file of that name must be given as `./cluster`
_MOST_AS_TEXT: Final = 4  # number of pods up to which the default output is text
_EXAMPLES: Final = """examples:
  %(prog)s -n vision -f deployment.yaml
  %(prog)s --live -A --label kaishare.dev/gpu-fraction=0.5
  kubectl kustomize overlays/prod | \\
      %(prog)s --policies namespaces/ -f -

exit status:
  0  nothing would be refused
  1  a pod or a label would be refused
  2  unusable input or output, or no answer of the cluster
"""
Edit = tuple[str, str | None]  # a key with its new value; None removes the key
_READ_BY_POLICY: Final = {"label": (PREFIX, SIZE_PREFIX), "annotation": (SIZE_PREFIX,)}


def read_edit(kind: str, text: str) -> Edit:
    """Read KEY=VALUE or KEY- as a namespace's label or annotation to try; ValueError if it has no effect."""
    key, equals, value = text.partition("=")
    if not equals:
        key = key[:-1] if key.endswith("-") else ""
    if not key:
        raise ValueError(f"{quoted(text)} is not allowed; allowed: KEY=VALUE, or KEY-")
    if not is_label_key(key):
        raise ValueError(f"{quoted(key)} is not the key of a label; allowed: NAME or DOMAIN/NAME")
    if not key.startswith(_READ_BY_POLICY[kind]) and (kind, key) != ("label", keys.QUEUE_LABEL):
        near = "".join(f"; the nearest prefix is {prefix}" for _, prefix in near_prefixes([key]))
        raise ValueError(f"the {kind} {shorten(key)} has no effect{near}")
    if kind == "label" and not is_label_value(value):
        allowed = "a-z, A-Z, 0-9, -, _ and . in at most 63 characters, with a letter or digit first and last"
        raise ValueError(f"{quoted(value)} is not the value of a label; allowed: {allowed}")
    return key, value if equals else None


def _edited(metadata: PolicyMetadata, arguments: argparse.Namespace) -> PolicyMetadata:
    """Return the labels and annotations of a namespace after the edits of the command line."""
    pairs = (metadata.labels, arguments.label), (metadata.annotations, arguments.annotation)
    edited = ({**before, **dict(edits)}.items() for before, edits in pairs)
    return PolicyMetadata.select(*({k: v for k, v in each if v is not None} for each in edited))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `explain`."""
    parser.description = "Shows what the webhook would do to pods; changes nothing in a cluster."
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    repeated: dict[str, Any] = {"action": "append", "default": []}
    flag = partial(parser.add_argument, action="store_true")
    manifests = "manifests; - reads standard input; may be repeated"
    parser.add_argument("-f", "--filename", **repeated, metavar="FILE|DIR|-", help=manifests)
    flag("-R", "--recursive", help="also read the directories below (default: the files in it only)")
    flag("--live", help="read a cluster's workloads instead of manifests: what would a new pod of each get?")
    flag("--server", help="also create each pod by dry run: what do the API server and all webhooks say?")
    flag("-A", "--all-namespaces", help="with --live: the workloads of all namespaces")
    add_namespace(
        parser,
        "namespace of manifests that name none, of --label and --annotation, and of --live"
        " (default: the context's namespace with a cluster, else default)",
    )
    policies = (
        "source of the policies: the cluster's namespaces, or a file or directory of Namespace objects"
        " (default: the cluster of the kubeconfig; none with --label and --annotation)"
    )
    parser.add_argument("--policies", metavar="cluster|FILE|DIR", help=policies)
    for kind, what in (
        ("label", "a label of the namespace"),
        ("annotation", "an annotation of the namespace, the selector of a size"),
    ):
        tried = f"preview {what}; KEY- removes one; may be repeated (default: none)"
        read = read_by(partial(read_edit, kind))
        parser.add_argument(f"--{kind}", **repeated, type=read, metavar="KEY=VALUE", help=tried)
    add_cluster_options(parser)
    add_settings_namespace(parser)
    add_decision_options(parser, default="the webhook's, with a cluster")
    output = (
        f"output format: {', '.join(OUTPUTS)}; table has a line for each pod, wide the same with whole names"
        " (default: text; table for more than four pods)"
    )
    parser.add_argument("-o", "--output", choices=OUTPUTS, metavar="FORMAT", help=output)


def run(arguments: argparse.Namespace) -> int:
    """Print what the webhooks would do; return 1 for a refusal, 2 without an answer, else 0."""
    asks_cluster = _asks_cluster(arguments)
    answer = asyncio.run(_from_cluster(arguments)) if asks_cluster else _from_files(arguments)
    pods = [item for item in answer.items if isinstance(item, ExplainedPod)]
    try:
        _print(arguments, answer, pods)
    except RecursionError:
        raise DocumentError("a manifest is nested too deep for YAML") from None
    answers = [pod.server for pod in pods if pod.server is not None]
    if any(each.problem for each in answers):
        return UNUSABLE
    is_refused = any(pod.is_refused for pod in pods) or any(each.is_admitted is False for each in answers)
    return int(is_refused or any(invalid.is_refused for invalid in answer.problems.values()))


def _has_edits(arguments: argparse.Namespace) -> bool:
    return bool(arguments.label or arguments.annotation)


def _asks_cluster(arguments: argparse.Namespace) -> bool:
    """Whether to read a cluster's policies: the default with a kubeconfig and nothing to try."""
    live, server, policies = arguments.live, arguments.server, arguments.policies
    edits, needs_cluster = _has_edits(arguments), server or live
    names_cluster = arguments.kubeconfig is not None or arguments.context is not None
    is_default = policies is None and (names_cluster or (not edits and has_kubeconfig()))
    has_files = policies not in (None, CLUSTER)
    for is_wrong, problem in (
        (needs_cluster and has_files, "--server and --live use the cluster's policies: leave out --policies"),
        (live and arguments.filename, "--live reads the cluster's workloads: leave out -f"),
        (live and server, "--server needs manifests: leave out --live"),
        (server and edits, "--server asks the cluster as it is: leave out --label and --annotation"),
        (not live and not arguments.filename, "give -f, or --live for the workloads of a cluster"),
        (arguments.all_namespaces and not live, "--all-namespaces needs --live"),
        (arguments.all_namespaces and arguments.namespace, "give -n or --all-namespaces, not both"),
        (
            policies is None and not (edits or needs_cluster or is_default),
            "there is no kubeconfig here: give --policies, --label or --annotation",
        ),
        (
            arguments.context is not None and has_files,
            "--context needs --policies cluster, --server or --live",
        ),
    ):
        if is_wrong:
            raise UsageError(problem)
    return needs_cluster or is_default or policies == CLUSTER


class Answer(NamedTuple):
    """The decisions about all pods, and what they rest on."""

    items: Sequence[Item]
    problems: Mapping[str, LabelProblems]  # of the namespaces of the pods and of the command line, by name
    notes: Sequence[str] = ()  # sentences about what is not known, and about namespaces that are not managed


def _problems(
    items: Iterable[Item], named: Iterable[str], metadata: Mapping[str, PolicyMetadata], mode: Mode
) -> dict[str, LabelProblems]:
    """Return what the webhook for namespaces says about the namespaces of the pods, and of those named."""
    names = dict.fromkeys((*named, *(item.namespace for item in items if isinstance(item, ExplainedPod))))
    return {name: label_problems(metadata.get(name, NO_METADATA), default_mode=mode) for name in names}


def _managed(metadata: Mapping[str, PolicyMetadata], mode: Mode) -> dict[str, NamespacePolicy]:
    policies = ((name, own.policy(name, mode)) for name, own in metadata.items())
    return {name: policy for name, policy in policies if policy is not None}


def _from_files(arguments: argparse.Namespace) -> Answer:
    namespace, named = arguments.namespace or "default", list[str]()
    rules = parse_decision_options(arguments).rules
    metadata = dict(read_namespaces(Path(arguments.policies)) if arguments.policies else {})
    if _has_edits(arguments):
        metadata[namespace] = _edited(metadata.get(namespace, NO_METADATA), arguments)
        named = [namespace]
    manifests = read_manifests(arguments.filename, recursive=arguments.recursive)
    items = list(explain(manifests, Explainer(namespace, _managed(metadata, rules.default_mode), rules)))
    return Answer(items, _problems(items, named, metadata, rules.default_mode))


async def _from_cluster(arguments: argparse.Namespace) -> Answer:
    # Imported here, because a preview from files needs no HTTP client.
    from console.explain.cluster_facts import read_facts  # noqa: PLC0415
    from console.explain.live_workloads import live_workloads  # noqa: PLC0415
    from console.explain.server_dry_runs import ask_server  # noqa: PLC0415
    from kube.access import AccessError  # noqa: PLC0415
    from kube.client import KubeClient  # noqa: PLC0415
    from service.log_writer import discard_library_logs  # noqa: PLC0415

    discard_library_logs()
    try:
        access = await cluster_access(arguments)
        namespace = arguments.namespace or access.namespace
    except AccessError as error:
        raise UsageError(f"no cluster: {error}") from None
    is_everywhere, has_edits = arguments.all_namespaces, _has_edits(arguments)
    files = arguments.filename
    manifests = read_manifests(files, recursive=arguments.recursive) if files else []
    used, created = _namespaces_of(manifests, namespace)
    named = [namespace] if arguments.namespace is not None or has_edits else []
    async with KubeClient(access) as client:
        facts = await read_facts(
            client,
            parse_decision_options(arguments),
            names=None if is_everywhere else used.union(named, [namespace] if arguments.live else ()),
            created=created,
            settings_namespace=arguments.settings_namespace,
            accepts_unread=arguments.server,
        )
        metadata, mode = {**created, **facts.namespaces}, facts.rules.default_mode
        if has_edits:
            edited = {*metadata, namespace} if is_everywhere else [namespace]
            metadata |= {name: _edited(metadata.get(name, NO_METADATA), arguments) for name in edited}
        policies = _managed(metadata, mode)
        explainer = Explainer(namespace, policies, facts.rules, facts.defaults, facts.unread, arguments.live)
        notes = list(facts.notes)
        if arguments.namespace is not None and namespace not in policies:
            notes.append(f"namespace {namespace} is not managed: it has no label {keys.QUEUE_LABEL}")
        if arguments.live:
            items, more = await live_workloads(client, explainer, None if is_everywhere else [namespace])
            notes += more
        else:
            items = list(explain(manifests, explainer))
            if arguments.server:
                items = await ask_server(client, items)
    return Answer(items, _problems(items, named, metadata, mode), notes)


def _namespaces_of(
    objects: Iterable[SourceObject], namespace: str
) -> tuple[set[str], dict[str, PolicyMetadata]]:
    """Return the namespaces of objects that may have pods, and those that the manifests create, by name."""
    used, created = set(), {}
    for value, _ in objects:
        metadata = as_map(value).get("metadata")
        if not isinstance(metadata, dict):
            continue
        if not makes_no_pods(str(value.get("apiVersion") or ""), str(value.get("kind") or "")):
            used.add(str(metadata.get("namespace") or namespace))
        if value.get("kind") == "Namespace":
            labels, annotations = texts(metadata.get("labels")), texts(metadata.get("annotations"))
            created[str(metadata.get("name"))] = PolicyMetadata.select(labels, annotations)
    return used, created


def _print(arguments: argparse.Namespace, answer: Answer, pods: Sequence[ExplainedPod]) -> None:
    output = arguments.output or ("text" if len(pods) <= _MOST_AS_TEXT else "table")
    unadmitted = list(dict.fromkeys(filter(None, map(unadmitted_sentence, pods))))
    if output == "json":
        for sentence in (*namespace_sentences(answer.problems), *unadmitted, *answer.notes):
            write_warning(f"{arguments.program}: {sentence}")
        write_document(as_json_text(answer.items, answer.problems))
        return
    columns = columns_of(sys.stdout)
    lines = [
        paint(line, "-")
        for sentence in namespace_sentences(answer.problems)
        for line in fold(f"policy: {sentence}", columns, indent="  ")
    ]
    if output == "text":
        lines += as_text(answer.items, is_live=arguments.live, columns=columns)
    else:
        lines += as_table(answer.items, columns=columns, is_whole=output == "wide")
    remarks = [*(unadmitted if output != "text" else ()), *(f"note: {note}" for note in answer.notes)]
    lines += [line for remark in remarks for line in fold(remark, columns, indent="  ")]
    write_lines([*lines, *sums(answer.items, columns=columns)])
