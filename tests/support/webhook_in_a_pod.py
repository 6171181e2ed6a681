"""Runs `kaishare-webhook` or `kaishare` as in a pod, with another folder for the mounted credentials."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.control_plane import ControlPlane
from tests.support.hostile_api_server import HostileApiServer

_PROGRAM = """
import atexit, importlib, sys
from pathlib import Path
from kube.access import InCluster
folder, loaded = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
InCluster.__init__.__kwdefaults__["folder"] = folder
atexit.register(lambda: loaded.write_text(" ".join(sys.modules)))
main = importlib.import_module(f"{sys.argv.pop(1)}.cli").main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, kw_only=True)
class InAPod:
    program: tuple[str, ...]
    environment: dict[str, str]
    loaded: Path
    """File to which the process writes its loaded modules at the end."""


def in_a_pod(
    server: ControlPlane | HostileApiServer, token: str, folder: Path, package: str = "webhook"
) -> InAPod:
    """Prepare a pod with this token and the program of a package; its API server may be hostile."""
    loaded = folder / "loaded"
    return InAPod(
        program=("-c", _PROGRAM, str(server.account(token)), str(loaded), package),
        environment={**os.environ, **server.environment},
        loaded=loaded,
    )
