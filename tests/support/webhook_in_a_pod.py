"""`kaishare-webhook` run as in a pod, but for the folder where the kubelet would mount the credentials."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.control_plane import ControlPlane
from tests.support.hostile_api_server import HostileApiServer

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


def in_a_pod(server: ControlPlane | HostileApiServer, token: str, folder: Path) -> InAPod:
    """Be in a pod with this token, whose API server may be a hostile one."""
    loaded = folder / "loaded"
    return InAPod(
        program=("-c", _PROGRAM, str(server.account(token)), str(loaded)),
        environment={**os.environ, **server.environment},
        loaded=loaded,
    )
