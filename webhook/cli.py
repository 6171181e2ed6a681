"""The command `kaishare-webhook`.

Exit status: 0 for success, 1 for a negative result or an internal error, 2 for unusable input or output.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kai.own_labels import EXCLUDED_NAMESPACES
from kai.version import Version
from service.command import Parser, UsageError, names, output_has_colour, read_by, run_command, write_output
from service.documents import DocumentError, load_path, load_text
from service.text import quoted
from service.units import parse_duration
from service.version import version
from webhook.certificates.options import add_certificate_options, parse_certificate_options
from webhook.explain.explain import explain
from webhook.explain.report import as_json, as_patch, as_text, as_yaml
from webhook.namespaces.documents import PoliciesError, read_namespaces
from webhook.policy.decide import Rules
from webhook.policy.labels import NO_METADATA, PolicyMetadata
from webhook.policy.values import is_object_name
from webhook.registration.configurations import CONFIGURATION_NAME

_CLUSTER = "cluster"
"""The value of --policies that selects the cluster. A file of that name must be given as `./cluster`."""
_NO_PODS = "The manifests contain no pods."


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
    parser.add_argument("--version", action="version", version=f"kaishare {version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    rules = policy_options()
    serving = commands.add_parser("serve", parents=[rules], help="run the admission webhook")
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
        help="address of the plain HTTP port for metrics, health and policies (default %(default)s)",
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
    serving.set_defaults(run=_serve)

    add_explain(commands, rules)

    examining = commands.add_parser(
        "doctor", help="check the cluster for problems that keep policies from taking effect"
    )
    add_doctor_options(examining)
    examining.set_defaults(run=_doctor)
    return parser


def policy_options() -> Parser:
    """Return the options of `serve` and `explain` that decide about pods, as a parent parser."""
    rules = Parser(add_help=False)
    rules.add_argument(
        "--policies",
        metavar="cluster|FILE|DIR",
        help="source of the policies: the cluster's namespaces, or a file or directory of Namespace objects"
        " (YAML or JSON); serve: cluster if unset, explain: none if unset",
    )
    rules.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig of the cluster (default: the pod's service account, else $KUBECONFIG, else"
        " ~/.kube/config)",
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
        "--exclude-namespaces",
        type=names,
        default=EXCLUDED_NAMESPACES,
        metavar="A,B",
        help="namespaces whose pods are never changed; replaces the default list "
        + ",".join(sorted(EXCLUDED_NAMESPACES)),
    )

    rules.add_argument(
        "--default-priority-class",
        type=read_by(_class_name),
        metavar="NAME",
        help="the cluster's default PriorityClass (globalDefault); serve reads it from the cluster if its"
        " policies come from there",
    )
    return rules


def add_explain(commands: Any, rules: Parser) -> None:
    """Add the command `explain` to the subparsers of a program.

    Args:
        commands: the result of `add_subparsers`.
        rules: the result of `policy_options`.
    """
    explaining = commands.add_parser(
        "explain", parents=[rules], help="show what the webhook would do to the pods of a manifest"
    )
    explaining.add_argument(
        "-f", "--filename", required=True, metavar="FILE|DIR|-", help="manifests; - reads standard input"
    )
    explaining.add_argument(
        "-n",
        "--namespace",
        default="default",
        metavar="NAMESPACE",
        help="namespace of manifests that name none (default %(default)s)",
    )
    explaining.add_argument(
        "--label",
        action="append",
        default=[],
        type=read_by(_label),
        metavar="KEY=VALUE",
        help="preview a namespace label without setting it; KEY- removes one; may be repeated",
    )
    explaining.add_argument(
        "--annotation",
        action="append",
        default=[],
        type=read_by(_label),
        metavar="KEY=VALUE",
        help="preview a namespace annotation, the selector of a size; KEY- removes one; may be repeated",
    )
    explaining.add_argument(
        "-o",
        "--output",
        choices=sorted(_OUTPUTS),
        default="text",
        help="output format; patch writes one JSON Patch per line (default %(default)s)",
    )
    explaining.set_defaults(run=_explain)


def add_doctor_options(examining: argparse.ArgumentParser) -> None:
    """Add the options of `doctor` to its parser."""
    examining.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig of the cluster (default: the pod's service account, else $KUBECONFIG, else"
        " ~/.kube/config)",
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
    examining.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format (default %(default)s)"
    )


_OUTPUTS = {"json": as_json, "yaml": as_yaml, "patch": as_patch}


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text)):
        raise ValueError(f"{quoted(text)} is not allowed; allowed: an integer from 1 to 999999")
    return int(text)


def _label(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    if not equals and key.endswith("-"):
        return key[:-1], None
    if not equals or not key:
        raise ValueError(f'"{text}" is not allowed; allowed: KEY=VALUE, or KEY-')
    return key, value


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
    )


def _explain(arguments: argparse.Namespace) -> int:
    if arguments.policies is None and not (arguments.label or arguments.annotation):
        raise UsageError("give --policies, --label, --annotation, or several of them")
    namespaces = _namespaces(arguments)
    if arguments.label or arguments.annotation:
        metadata = namespaces.get(arguments.namespace, NO_METADATA)
        namespaces[arguments.namespace] = PolicyMetadata.select(
            _edited(metadata.labels, arguments.label), _edited(metadata.annotations, arguments.annotation)
        )
    parsed = {name: metadata.policy(name) for name, metadata in namespaces.items()}
    policies = {name: policy for name, policy in parsed.items() if policy is not None}
    documents = _documents(arguments.filename)
    explained = list(
        explain(documents, namespace=arguments.namespace, policies=policies, rules=_rules(arguments))
    )
    if arguments.output == "text":
        lines = as_text(explained, colour=output_has_colour()) if explained else [_NO_PODS]
    else:
        lines = _OUTPUTS[arguments.output](explained)
    write_output("".join(f"{line}\n" for line in lines))
    return 1 if any(item.is_denied for item in explained) else 0


def _edited(texts: Mapping[str, str], edits: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Return labels or annotations after edits; the value None removes a key."""
    edited = dict(texts)
    for key, value in edits:
        edited.pop(key, None)
        if value is not None:
            edited[key] = value
    return edited


def _namespaces(arguments: argparse.Namespace) -> dict[str, PolicyMetadata]:
    if arguments.policies is None:
        return {}
    if arguments.policies != _CLUSTER:
        return dict(read_namespaces(Path(arguments.policies)))
    from webhook.namespaces.listing import list_namespaces  # noqa: PLC0415 - files need no HTTP client

    return asyncio.run(list_namespaces(arguments.kubeconfig))


def _documents(filename: str) -> list[object]:
    if filename == "-":
        try:
            documents = load_text(sys.stdin.buffer.read().decode(), "standard input")
        except UnicodeDecodeError as error:
            raise DocumentError(f"standard input: not UTF-8 at byte {error.start}") from None
        except OSError as error:
            raise DocumentError(f"standard input: {error.strerror or error}") from None
    else:
        documents = load_path(Path(filename))
    if not documents:
        raise DocumentError(f"{filename}: contains no document")
    return documents


def _serve(arguments: argparse.Namespace) -> int:
    # Imported here, because explain needs neither a server nor cryptography and starts three times as fast.
    from certs.directory import CertificateError  # noqa: PLC0415
    from kube.access import AccessError  # noqa: PLC0415
    from service.http.listeners import Address  # noqa: PLC0415
    from service.log_capture import standard_error_log  # noqa: PLC0415
    from webhook.serve import Settings, serve  # noqa: PLC0415

    certificates = parse_certificate_options(arguments)
    try:
        listen, ops_listen = Address.parse(arguments.listen), Address.parse(arguments.ops_listen)
    except ValueError as error:
        raise UsageError(str(error)) from None
    policies = None if arguments.policies in (None, _CLUSTER) else Path(arguments.policies)
    settings = Settings(
        policies=policies,
        kubeconfig=arguments.kubeconfig,
        rules=_rules(arguments),
        certificates=certificates,
        listen=listen,
        ops_listen=ops_listen,
        webhook_configuration=arguments.webhook_configuration,
        drain_seconds=arguments.drain,
        max_in_flight=arguments.max_in_flight,
    )
    with standard_error_log() as log:
        try:
            asyncio.run(serve(settings, log))
        except AccessError as error:
            raise UsageError(
                f"{error}; to run without a cluster, give --policies a file or directory"
                " and --certs a directory"
            ) from None
        except CertificateError as error:
            raise UsageError(str(error)) from None
        except OSError as error:
            raise UsageError(f"cannot listen: {error.strerror or error}") from None
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
        )
    )


if __name__ == "__main__":
    sys.exit(main())
