"""The command-line options of `explain`."""

import argparse
from typing import Final

from console.caller import add_cluster_options, default_kubeconfig
from console.explain.command import OUTPUTS, ExplainSettings, write_explanations
from console.explain.policy_edits import CLUSTER, NamespaceEdits, read_annotation_edit, read_label_edit
from service.command import UsageError, add_namespace, namespace_name, read_by
from webhook.settings.decision_options import NAMESPACE, add_decision_options, parse_decision_options

_EXAMPLES: Final = """examples:
  %(prog)s --policies cluster -n vision -f deployment.yaml
  %(prog)s --label kai.scheduler/queue=vision \\
      --label kaishare.dev/gpu-fraction=0.5 -f .
  %(prog)s --server -n vision -f deployment.yaml
  %(prog)s --live -A --label kaishare.dev/gpu-fraction=0.5
  kubectl kustomize overlays/prod | \\
      %(prog)s --policies namespaces/ -f -

exit status:
  0  nothing would be refused
  1  a pod or a label would be refused
  2  unusable input or output, or no answer of the cluster
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `explain`."""
    parser.description = "Shows what the webhook would do to pods; changes nothing in a cluster."
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_inputs(parser)
    _add_policies(parser)
    _add_cluster(parser)
    add_decision_options(parser, default="the webhook's, with a cluster")
    parser.add_argument(
        "-o",
        "--output",
        choices=OUTPUTS,
        metavar="FORMAT",
        help=f"output format: {', '.join(OUTPUTS)}; table has a line for each pod, patch one JSON Patch for"
        " each (default: text; table for more than four pods)",
    )


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        metavar="FILE|DIR|-",
        help="manifests; - reads standard input; may be repeated",
    )
    parser.add_argument(
        "-R",
        "--recursive",
        action="store_true",
        help="also read the directories below (default: only the .yaml, .yml and .json files in it)",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="read the workloads of a cluster instead of manifests: what would a new pod of each get?",
    )
    add_namespace(
        parser,
        "namespace of manifests that name none, of --label and --annotation, and of --live"
        " (default: the context's namespace with a cluster, else default)",
    )
    parser.add_argument(
        "-A", "--all-namespaces", action="store_true", help="with --live: the workloads of all namespaces"
    )


def _add_policies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policies",
        metavar="cluster|FILE|DIR",
        help="source of the policies: the cluster's namespaces, or a file or directory of Namespace objects"
        " (YAML or JSON) (default: the cluster with --server and --live, else none)",
    )
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        type=read_by(read_label_edit),
        metavar="KEY=VALUE",
        help="preview a label of the namespace; KEY- removes one; may be repeated (default: none)",
    )
    parser.add_argument(
        "--annotation",
        action="append",
        default=[],
        type=read_by(read_annotation_edit),
        metavar="KEY=VALUE",
        help="preview an annotation of the namespace, the selector of a size; KEY- removes one;"
        " may be repeated (default: none)",
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        action="store_true",
        help="also create each pod by dry run, and show what the API server and every webhook make of it",
    )
    add_cluster_options(parser)
    parser.add_argument(
        "--settings-namespace",
        type=read_by(namespace_name),
        default=NAMESPACE,
        metavar="NAMESPACE",
        help="namespace of the ConfigMap kaishare-settings, from which the webhook's settings are read"
        " (default %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status, and raise as `write_explanations`."""
    edits = NamespaceEdits(labels=arguments.label, annotations=arguments.annotation)
    _check(arguments, has_edits=bool(edits))
    policies = arguments.policies
    if arguments.server or arguments.live:
        policies = CLUSTER
    settings = ExplainSettings(
        program=arguments.program,
        filenames=arguments.filename,
        recursive=arguments.recursive,
        namespace=arguments.namespace,
        all_namespaces=arguments.all_namespaces,
        policies=policies,
        kubeconfig=arguments.kubeconfig or default_kubeconfig(),
        context=arguments.context,
        settings_namespace=arguments.settings_namespace,
        is_live=arguments.live,
        asks_server=arguments.server,
        edits=edits,
        options=parse_decision_options(arguments),
        output=arguments.output,
    )
    return write_explanations(settings)


def _check(arguments: argparse.Namespace, *, has_edits: bool) -> None:
    """Refuse combinations of options that have no meaning.

    Raises:
        UsageError: the combination is not allowed.
    """
    uses_cluster = arguments.server or arguments.live
    if uses_cluster and arguments.policies not in (None, CLUSTER):
        raise UsageError("--server and --live use the cluster's policies: leave out --policies")
    if arguments.live and arguments.filename:
        raise UsageError("--live reads the cluster's workloads: leave out -f")
    if arguments.live and arguments.server:
        raise UsageError("--server needs manifests: leave out --live")
    if arguments.server and has_edits:
        raise UsageError("--server asks the cluster as it is: leave out --label and --annotation")
    if not arguments.live and not arguments.filename:
        raise UsageError("give -f, or --live for the workloads of a cluster")
    if arguments.all_namespaces and not arguments.live:
        raise UsageError("--all-namespaces needs --live")
    if arguments.all_namespaces and arguments.namespace is not None:
        raise UsageError("give -n or --all-namespaces, not both")
    if uses_cluster and arguments.output == "patch":
        option = "--live" if arguments.live else "--server"
        raise UsageError(f"{option} has no output patch; allowed: table, text, json")
    if arguments.policies is None and not has_edits and not uses_cluster:
        raise UsageError("give --policies, --label, --annotation, --server or --live")
    if arguments.context is not None and arguments.policies != CLUSTER and not uses_cluster:
        raise UsageError("--context needs --policies cluster, --server or --live")
