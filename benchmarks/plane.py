"""A control plane for benchmarks."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

from tests.support.control_plane import ControlPlane, assets_folder, control_plane


def on_a_control_plane(
    parser: argparse.ArgumentParser, measure: Callable[[ControlPlane, Path], Coroutine[Any, Any, int]]
) -> NoReturn:
    """Run a measurement on a new control plane with a temporary folder; exit with its status."""
    assets = assets_folder()
    if assets is None:
        parser.error("KUBEBUILDER_ASSETS must name a folder with the programs etcd and kube-apiserver")
    with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
        folder = Path(name) / "files"
        folder.mkdir()
        with control_plane(assets, Path(name)) as plane:
            sys.exit(asyncio.run(measure(plane, folder)))
