"""`kaishare-webhook` run as in a pod, but for the folder where the kubelet would mount the credentials."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.control_plane import ControlPlane

_PROGRAM = """
import atexit, sys
from pathlib import Path
from kube.access import InCluster
folder, loaded = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
InCluster.__init__.__kwdefaults__["folder"] = folder
atexit.register(lambda: loaded.write_text(" ".join(sys.modules)))
from webhook.cli import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, kw_only=True)
class InAPod:
    """What Python is to run there, and with what environment."""

    program: tuple[str, ...]
    environment: dict[str, str]
    loaded: Path
    """Where it says at its end which modules it had loaded."""


def in_a_pod(plane: ControlPlane, token: str, folder: Path, *, port: int | None = None) -> InAPod:
    """Be in a pod with this token; the port is a proxy's."""
    plane.access(token)
    where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port or plane.port)}
    loaded = folder / "loaded"
    return InAPod(
        program=("-c", _PROGRAM, str(plane.accounts[token]), str(loaded)),
        environment={**os.environ, **where},
        loaded=loaded,
    )
