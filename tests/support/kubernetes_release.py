"""The release of the API server that the tests start, and the marker of tests that need a newer one."""

import re
import subprocess
from functools import cache

import pytest

from tests.support.control_plane import assets_folder

MARKER = "kubernetes"


@cache
def kubernetes_release() -> tuple[int, int]:
    """Return the release of the program, such as (1, 36)."""
    folder = assets_folder()
    assert folder is not None, "tests/cluster has an API server"
    program = subprocess.run(
        [folder / "kube-apiserver", "--version"], capture_output=True, text=True, check=True
    )
    match = re.match(r"Kubernetes v([0-9]+)\.([0-9]+)\.", program.stdout)
    assert match is not None, program.stdout
    return int(match[1]), int(match[2])


def skip_on_older(item: pytest.Item) -> None:
    for marker in item.iter_markers(MARKER):
        if assets_folder() is not None and kubernetes_release() < marker.args:
            needed, present = ("{}.{}".format(*release) for release in (marker.args, kubernetes_release()))
            pytest.skip(f"NOT VERIFIED: needs Kubernetes {needed}; the API server is {present}")
