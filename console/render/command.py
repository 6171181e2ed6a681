"""The command `render`: prints kaishare's rules as admission policies of the API server."""

import argparse
import re
from collections.abc import Mapping
from typing import Final

from console.render.policy_manifests import MUTATING, OLDEST_KUBERNETES, VALIDATING, text_of
from service.command import UsageError, read_by, write_document
from service.text import quoted
from webhook.settings.decision_options import add_decision_options, parse_decision_options

KINDS: Final[Mapping[str, str]] = {
    "mutatingadmissionpolicy": MUTATING,
    "validatingadmissionpolicy": VALIDATING,
}
"""The file of policies/ for each value of `--as`."""
_KUBERNETES: Final = re.compile(r"v?1\.([0-9]{1,3})(?:\.[0-9]{1,4})?(?:[-+][0-9A-Za-z.+-]{1,60})?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `render`."""
    parser.description = "Prints kaishare's rules as admission policies, for kubectl apply; reads no cluster."
    parser.add_argument(
        "--as",
        dest="kind",
        required=True,
        choices=tuple(KINDS),
        metavar="KIND",
        help=f"kind of the objects: {', '.join(KINDS)}",
    )
    parser.add_argument(
        "--kube-version",
        type=read_by(_minor_version),
        metavar="1.N",
        help="the API server's release, to refuse one that lacks the kind (default: not checked)",
    )
    add_decision_options(parser)


def _minor_version(text: str) -> int:
    match = _KUBERNETES.fullmatch(text)
    if match is None:
        raise ValueError(f"{quoted(text)} is not a release of Kubernetes; allowed: such as 1.36")
    return int(match[1])


def run(arguments: argparse.Namespace) -> int:
    """Print the objects.

    Raises:
        UsageError: the API server does not serve the kind.
    """
    file = KINDS[arguments.kind]
    oldest = OLDEST_KUBERNETES[file]
    if arguments.kube_version is not None and arguments.kube_version < oldest:
        raise UsageError(
            f"Kubernetes 1.{arguments.kube_version} does not serve these policies; they need 1.{oldest}"
        )
    write_document(text_of(file, parse_decision_options(arguments).rules))
    return 0
