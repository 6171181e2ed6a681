"""The command `kaishare-webhook`.

Exit status: 0 for success, 1 for a negative result or an internal error, 2 for unusable input or output.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from kai.own_labels import EXCLUDED_NAMESPACES
from kai.version import Version
from service.command import (
    TOKENS,
    Parser,
    UsageError,
    add_authentication,
    add_log_level,
    namespace_names,
    read_by,
    run_command,
)
from service.documents import DocumentError
from service.text import quoted
from service.units import parse_duration
from service.version import version
from webhook.certificates.options import add_certificate_options, parse_certificate_options
from webhook.explain.command import OUTPUTS, ExplainSettings
from webhook.explain.command import run as explain
from webhook.explain.namespaces import CLUSTER, NamespaceEdits, read_annotation_edit, read_label_edit
from webhook.namespaces.documents import PoliciesError
from webhook.policy.decide import Rules
from webhook.policy.labels import Mode, read_default_mode
from webhook.policy.values import is_object_name
from webhook.registration.configurations import CONFIGURATION_NAME

_SERVICE_ACCESS: Final = "the pod's service account, else $KUBECONFIG, else ~/.kube/config"


class _Command(Protocol):
    def __call__(self, arguments: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_command("kaishare-webhook", lambda: _run(argv), unusable=(PoliciesError, DocumentError))


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    run: _Command = arguments.run
    return run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kaishare-webhook", description="Gives pods their KAI queue and GPU share from namespace labels."
    )
    parser.add_argument("--version", action="version", version=f"kaishare-webhook {version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    serving = commands.add_parser(
        "serve", parents=[policy_options(serves=True)], help="run the admission webhook"
    )
    serving.add_argument(
        "--listen",
        default="127.0.0.1:8443",
        metavar="HOST:PORT",
        help="address of the admission port, TLS (default %(default)s)",
    )
    serving.add_argument(
        "--ops-listen",
        default="127.0.0.1:8080",
        metavar="HOST:PORT",
        help="address of the port for metrics, health and policies (default %(default)s)",
    )
    add_authentication(serving)
    serving.add_argument(
        "--ops-certs",
        type=Path,
        metavar="DIR",
        help="serve TLS on that port with tls.crt and tls.key of this directory, which are read again when"
        " they change (default: no TLS)",
    )
    add_certificate_options(serving)
    serving.add_argument(
        "--drain",
        type=read_by(parse_duration),
        default="5s",
        metavar="DURATION",
        help="time to keep serving, not ready, after SIGTERM; up to three times as long while clients still"
        " connect (default %(default)s)",
    )
    serving.add_argument(
        "--max-in-flight",
        type=read_by(_positive),
        default=512,
        metavar="N",
        help="maximum number of concurrent reviews; others get 503 and Retry-After (default %(default)s)",
    )
    add_log_level(serving)
    serving.set_defaults(run=_serve)

    add_explain(commands)

    examining = commands.add_parser(
        "doctor", help="check the cluster for problems that keep policies from taking effect"
    )
    add_doctor_options(examining)
    examining.set_defaults(run=_doctor)
    return parser


def policy_options(*, serves: bool, default_access: str = _SERVICE_ACCESS) -> Parser:
    """Return the options of `serve` and `explain` that decide about pods, as a parent parser.

    Args:
        serves: whether the options are for `serve`, whose defaults differ.
        default_access: the access to a cluster without `--kubeconfig`.
    """
    rules = Parser(add_help=False)
    rules.add_argument(
        "--policies",
        metavar="cluster|FILE|DIR",
        help="source of the policies: the cluster's namespaces, or a file or directory of Namespace objects"
        f" (YAML or JSON) (default: {'the cluster' if serves else 'none'})",
    )
    rules.add_argument(
        "--kubeconfig", metavar="FILE", help=f"kubeconfig of the cluster (default: {default_access})"
    )
    rules.add_argument(
        "--kai-version",
        type=read_by(Version.parse),
        metavar="X.Y.Z",
        help="KAI's release (default: unknown; only shares that every release supports are injected)",
    )
    rules.add_argument(
        "--inject-shares",
        type=read_by(_boolean),
        nargs="?",
        const=True,
        default=True,
        metavar="true|false",
        help="whether to inject default shares; false for a KAI with gpuSharing off (default true)",
    )
    rules.add_argument(
        "--default-mode",
        type=read_by(read_default_mode),
        default=Mode.DEFAULT.value,
        metavar="default|observe|off",
        help="mode of managed namespaces without the label kaishare.dev/mode (default %(default)s)",
    )
    rules.add_argument(
        "--exclude-namespaces",
        type=read_by(namespace_names),
        default=EXCLUDED_NAMESPACES,
        metavar="A,B",
        help="namespaces whose pods are never changed; replaces the default list "
        + ",".join(sorted(EXCLUDED_NAMESPACES)),
    )

    rules.add_argument(
        "--default-priority-class",
        type=read_by(_class_name),
        metavar="NAME",
        help="the cluster's default PriorityClass (globalDefault)"
        f" (default: {'read from the cluster if the policies come from there' if serves else 'none'})",
    )
    return rules


def add_running_default_mode(command: argparse.ArgumentParser) -> None:
    """Add the option `--default-mode` to a command that reads it from the running webhook otherwise."""
    command.add_argument(
        "--default-mode",
        type=read_by(read_default_mode),
        metavar="default|observe|off",
        help="the webhook's --default-mode (default: read from the webhook's Deployment)",
    )


def add_doctor_options(examining: argparse.ArgumentParser, *, default_access: str = _SERVICE_ACCESS) -> None:
    """Add the options of `doctor` to its parser.

    Args:
        examining: the parser of `doctor`.
        default_access: the access to a cluster without `--kubeconfig`.
    """
    examining.add_argument(
        "--kubeconfig", metavar="FILE", help=f"kubeconfig of the cluster (default: {default_access})"
    )
    examining.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig (default: the current context)"
    )
    examining.add_argument(
        "--webhook-configuration",
        default=CONFIGURATION_NAME,
        metavar="NAME",
        help="name of kaishare's webhook configurations (default %(default)s)",
    )
    add_running_default_mode(examining)
    examining.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format (default %(default)s)"
    )


def add_explain(commands: Any, *, default_access: str = _SERVICE_ACCESS) -> None:
    """Add the command `explain` to the subparsers of a program.

    Args:
        commands: the result of `add_subparsers`.
        default_access: the access to a cluster without `--kubeconfig`.
    """
    explaining = commands.add_parser(
        "explain",
        parents=[policy_options(serves=False, default_access=default_access)],
        help="show what the webhook would do to the pods of a manifest",
        description="Shows what the webhook would do to the pods of manifests; changes nothing in a cluster.",
        epilog=_EXPLAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    explaining.add_argument(
        "-f",
        "--filename",
        action="append",
        required=True,
        metavar="FILE|DIR|-",
        help="manifests; - reads standard input; may be repeated",
    )
    explaining.add_argument(
        "-R",
        "--recursive",
        action="store_true",
        help="also read the directories below (default: only the .yaml, .yml and .json files in it)",
    )
    explaining.add_argument(
        "-n",
        "--namespace",
        default="default",
        metavar="NAMESPACE",
        help="namespace of manifests that name none, and of --label and --annotation (default %(default)s)",
    )
    explaining.add_argument(
        "--label",
        action="append",
        default=[],
        type=read_by(read_label_edit),
        metavar="KEY=VALUE",
        help="preview a label of the namespace; KEY- removes one; may be repeated (default: none)",
    )
    explaining.add_argument(
        "--annotation",
        action="append",
        default=[],
        type=read_by(read_annotation_edit),
        metavar="KEY=VALUE",
        help="preview an annotation of the namespace, the selector of a size; KEY- removes one;"
        " may be repeated"
        " (default: none)",
    )
    explaining.add_argument(
        "--context",
        metavar="NAME",
        help="context of the kubeconfig, with --policies cluster (default: the current context)",
    )
    explaining.add_argument(
        "-o",
        "--output",
        choices=OUTPUTS,
        default="text",
        help="output format; patch writes one JSON Patch per line, manifest the manifests with their pods"
        " changed (default %(default)s)",
    )
    explaining.set_defaults(run=_explain, program=explaining.prog.rpartition(" ")[0])


_EXPLAIN_EXAMPLES = """examples:
  %(prog)s --policies cluster -n vision -f deployment.yaml
  %(prog)s --label kai.scheduler/queue=vision --label kaishare.dev/gpu-fraction=0.5 -f .
  kubectl kustomize overlays/prod | %(prog)s --policies namespaces/ -o manifest -f -

exit status: 0 if nothing would be refused, 1 if a pod or a label would be, 2 for unusable input or output
"""


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text)):
        raise ValueError(f"{quoted(text)} is not allowed; allowed: an integer from 1 to 999999")
    return int(text)


def _class_name(text: str) -> str:
    if not is_object_name(text):
        raise ValueError(f"{quoted(text)} is not allowed; allowed: the name of a PriorityClass")
    return text


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f'"{text}" is not allowed; allowed: true, false')
    return text == "true"


def _rules(arguments: argparse.Namespace) -> Rules:
    return Rules(
        kai_version=arguments.kai_version,
        inject_shares=arguments.inject_shares,
        excluded_namespaces=arguments.exclude_namespaces,
        default_priority_class=arguments.default_priority_class,
        default_mode=arguments.default_mode,
    )


def _explain(arguments: argparse.Namespace) -> int:
    edits = NamespaceEdits(labels=arguments.label, annotations=arguments.annotation)
    if arguments.policies is None and not edits:
        raise UsageError("give --policies, --label, --annotation, or several of them")
    if arguments.context is not None and arguments.policies != CLUSTER:
        raise UsageError("--context needs --policies cluster")
    settings = ExplainSettings(
        program=arguments.program,
        filenames=arguments.filename,
        recursive=arguments.recursive,
        namespace=arguments.namespace,
        policies=arguments.policies,
        kubeconfig=arguments.kubeconfig,
        context=arguments.context,
        edits=edits,
        output=arguments.output,
    )
    return explain(settings, _rules(arguments))


def _serve(arguments: argparse.Namespace) -> int:
    # Imported here, because explain needs neither a server nor cryptography and starts three times as fast.
    from certs.directory import CertificateError  # noqa: PLC0415
    from kube.access import AccessError  # noqa: PLC0415
    from service.http.listeners import Address  # noqa: PLC0415
    from service.http.tls_files import TlsFilesError  # noqa: PLC0415
    from service.log_capture import standard_error_log  # noqa: PLC0415
    from webhook.serve import Settings, serve  # noqa: PLC0415

    certificates = parse_certificate_options(arguments)
    addresses = []
    for option, text in (("--listen", arguments.listen), ("--ops-listen", arguments.ops_listen)):
        try:
            addresses.append(Address.parse(text))
        except ValueError as error:
            raise UsageError(f"{option}: {error}") from None
    listen, ops_listen = addresses
    policies = None if arguments.policies in (None, CLUSTER) else Path(arguments.policies)
    settings = Settings(
        policies=policies,
        kubeconfig=arguments.kubeconfig,
        rules=_rules(arguments),
        certificates=certificates,
        listen=listen,
        ops_listen=ops_listen,
        webhook_configuration=arguments.webhook_configuration,
        authenticates=arguments.authentication == TOKENS,
        ops_certificate_directory=arguments.ops_certs,
        drain_seconds=arguments.drain,
        max_in_flight=arguments.max_in_flight,
    )
    with standard_error_log(arguments.log_level) as log:
        try:
            asyncio.run(serve(settings, log))
        except AccessError as error:
            if arguments.authentication == TOKENS:
                raise UsageError(f"{error}; --authentication=tokens needs an API server") from None
            raise UsageError(
                f"{error}; to run without a cluster, give --policies a file or directory"
                " and --certs a directory"
            ) from None
        except CertificateError as error:
            raise UsageError(str(error)) from None
        except TlsFilesError as error:
            raise UsageError(f"--ops-certs: {error}") from None
        except OSError as error:
            raise UsageError(f"cannot listen on {error.filename}: {error.strerror or error}") from None
        except (PoliciesError, DocumentError):
            raise
        except Exception as error:  # noqa: BLE001 - the traceback belongs in the log
            log.failure("internal error", error)
            return 1
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from webhook.doctor.command import DoctorSettings, run  # noqa: PLC0415

    return run(
        DoctorSettings(
            kubeconfig=arguments.kubeconfig,
            context=arguments.context,
            configuration=arguments.webhook_configuration,
            output=arguments.output,
            default_mode=arguments.default_mode,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
