"""The command `kaishare-webhook`.

Exit status: 0 for success, 1 for an internal error, 2 for unusable input or output.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from service.command import (
    TOKENS,
    Parser,
    UsageError,
    add_authentication,
    add_kubeconfig,
    add_log_level,
    namespace_name,
    read_by,
    run_chosen,
    run_command,
)
from service.documents import DocumentError
from service.text import quoted
from service.units import parse_duration
from service.version import version
from webhook.certificates import add_certificate_options, parse_certificate_options
from webhook.namespaces.file_policies import PoliciesError
from webhook.settings.decision_options import add_decision_options, parse_decision_options

_CLUSTER: Final = "cluster"
"""The value of --policies for the namespaces of the cluster."""
_SERVICE_ACCESS: Final = "the pod's service account, else $KUBECONFIG, else ~/.kube/config"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_command(
        "kaishare-webhook",
        lambda: run_chosen(_parser().parse_args(argv)),
        unusable=(PoliciesError, DocumentError),
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kaishare-webhook", description="Gives pods their KAI queue and GPU share from namespace labels."
    )
    parser.add_argument("--version", action="version", version=f"kaishare-webhook {version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    serving = commands.add_parser("serve", help="run the admission webhook")
    serving.add_argument(
        "--policies",
        metavar="cluster|FILE|DIR",
        help="source of the policies: the cluster's namespaces, or a file or directory of Namespace objects"
        " (YAML or JSON) (default: the cluster)",
    )
    add_kubeconfig(serving, default=_SERVICE_ACCESS, has_context=False)
    add_decision_options(serving)
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
        "--settings-namespace",
        type=read_by(namespace_name),
        metavar="NAMESPACE",
        help="namespace of the ConfigMap kaishare-settings, which the webhook keeps equal to its settings"
        " (default: not written)",
    )
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

    return parser


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text)):
        raise ValueError(f"{quoted(text)} is not allowed; allowed: an integer from 1 to 999999")
    return int(text)


def _serve(arguments: argparse.Namespace) -> int:
    # Imported here: --help and a mistyped option need no server.
    from kube.access import AccessError  # noqa: PLC0415
    from service.http.limits import Address  # noqa: PLC0415
    from service.http.tls_files import TlsFilesError  # noqa: PLC0415
    from service.log_writer import standard_error_log  # noqa: PLC0415
    from webhook.certificates import CertificateError  # noqa: PLC0415
    from webhook.serve import Settings, serve  # noqa: PLC0415

    certificates = parse_certificate_options(arguments)
    addresses = []
    for option, text in (("--listen", arguments.listen), ("--ops-listen", arguments.ops_listen)):
        try:
            addresses.append(Address.parse(text))
        except ValueError as error:
            raise UsageError(f"{option}: {error}") from None
    listen, ops_listen = addresses
    policies = None if arguments.policies in (None, _CLUSTER) else Path(arguments.policies)
    settings = Settings(
        policies=policies,
        kubeconfig=arguments.kubeconfig,
        rules=parse_decision_options(arguments).rules,
        certificates=certificates,
        listen=listen,
        ops_listen=ops_listen,
        webhook_configuration=arguments.webhook_configuration,
        authenticates=arguments.authentication == TOKENS,
        ops_certificate_directory=arguments.ops_certs,
        settings_namespace=arguments.settings_namespace,
        drain_seconds=arguments.drain,
        max_in_flight=arguments.max_in_flight,
    )
    with standard_error_log(arguments.log_level) as log:
        try:
            asyncio.run(serve(settings, log))
        except AccessError as error:
            if arguments.authentication == TOKENS:
                raise UsageError(f"{error}; --authentication=tokens needs an API server") from None
            if arguments.settings_namespace is not None and arguments.policies not in (None, _CLUSTER):
                raise UsageError(f"{error}; --settings-namespace needs an API server") from None
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


if __name__ == "__main__":
    sys.exit(main())
