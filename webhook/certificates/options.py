"""The options of `serve` that select the source of its certificate."""

import argparse
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from service.command import UsageError, read_by
from service.units import parse_duration
from webhook.registration.configurations import CONFIGURATION_NAME

if TYPE_CHECKING:
    from webhook.certificates.cluster import SelfSignedSettings
    from webhook.certificates.files import FileSettings

SELF: Final = "self"
"""The value of --certs for a self-signed certificate. A directory of that name must be given as `./self`."""


def add_certificate_options(parser: argparse.ArgumentParser) -> None:
    """Add the certificate options to a parser."""
    duration = read_by(parse_duration)
    parser.add_argument(
        "--certs",
        metavar="self|DIR",
        help="self: issue certificates from a CA in a Secret, which is rotated automatically; DIR: use"
        " tls.crt and tls.key in that directory, created there if it has none (default self)",
    )
    parser.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="certificate to serve, instead of --certs"
    )
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="private key of --tls-cert")
    parser.add_argument(
        "--host-name",
        action="append",
        metavar="NAME",
        help="DNS name or IP address for the certificate, in addition to the Service's names with --certs"
        " self; may be repeated (default with --certs DIR: localhost and 127.0.0.1)",
    )
    own = parser.add_argument_group("with --certs self")
    own.add_argument(
        "--certs-secret",
        default="kaishare-webhook-ca",
        metavar="NAME",
        help="Secret that stores the CA; it must exist and may be empty (default %(default)s)",
    )
    own.add_argument(
        "--namespace",
        metavar="NAMESPACE",
        help="namespace of Secret and Service (default: the service account's, or the kubeconfig context's)",
    )
    own.add_argument(
        "--service",
        default="kaishare-webhook",
        metavar="NAME",
        help="Service in front of this webhook (default %(default)s)",
    )
    own.add_argument(
        "--webhook-configuration",
        default=CONFIGURATION_NAME,
        metavar="NAME",
        help="name of kaishare's webhook configurations, whose caBundle is maintained and whose call order is"
        " watched (default %(default)s)",
    )
    own.add_argument(
        "--ca-lifetime",
        type=duration,
        default="2160h",
        metavar="DURATION",
        help="lifetime of a CA; its successor is created after two thirds of it (default %(default)s)",
    )
    own.add_argument(
        "--leaf-lifetime",
        type=duration,
        default="168h",
        metavar="DURATION",
        help="lifetime of a serving certificate; it is renewed after two thirds (default %(default)s)",
    )
    own.add_argument(
        "--bundle-wait",
        type=duration,
        default="2m",
        metavar="DURATION",
        help="time between the addition of a new CA to the caBundle and its use (default %(default)s)",
    )


def parse_certificate_options(arguments: argparse.Namespace) -> "FileSettings | SelfSignedSettings":
    """Convert the parsed options into settings.

    Raises:
        UsageError: the options contradict each other.
    """
    # Imported here, because explain needs no cryptography.
    from certs.rotation import Lifetimes  # noqa: PLC0415
    from webhook.certificates.cluster import SelfSignedSettings  # noqa: PLC0415
    from webhook.certificates.files import LOCAL_NAMES, FileSettings  # noqa: PLC0415

    given = (arguments.tls_cert, arguments.tls_key)
    if any(given) and not all(given):
        raise UsageError("--tls-cert and --tls-key must be given together")
    if arguments.certs is not None and all(given):
        raise UsageError("give either --certs, or --tls-cert and --tls-key")
    host_names = tuple(arguments.host_name or ())
    if all(given):
        return FileSettings(certificate=arguments.tls_cert, key=arguments.tls_key)
    if arguments.certs not in (None, SELF):
        return FileSettings.in_directory(Path(arguments.certs), host_names or LOCAL_NAMES)
    try:
        lifetimes = Lifetimes(
            ca=timedelta(seconds=arguments.ca_lifetime),
            leaf=timedelta(seconds=arguments.leaf_lifetime),
            bundle_wait=timedelta(seconds=arguments.bundle_wait),
        )
    except ValueError as error:
        raise UsageError(f"--ca-lifetime, --leaf-lifetime, --bundle-wait: {error}") from None
    return SelfSignedSettings(
        configuration=arguments.webhook_configuration,
        secret=arguments.certs_secret,
        namespace=arguments.namespace or "",
        service=arguments.service,
        host_names=host_names,
        lifetimes=lifetimes,
    )
