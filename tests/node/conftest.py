"""Fixtures: the images from their Dockerfiles, and one node for all tests of the session."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_node.images import build_all, missing_for_images
from tests.support.real_node.node import RealNode, missing_for_a_node, real_node


@pytest.fixture(scope="session")
def needs() -> None:
    missing = missing_for_a_node()
    if missing:
        pytest.skip(f"NOT VERIFIED: a real node needs {missing}")


@pytest.fixture(scope="session")
def scratch(needs: None) -> Iterator[Path]:
    """A folder on a disk, since overlayfs and images need one; other users may enter it."""
    folder = Path(tempfile.mkdtemp(prefix="kaishare-node-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def images(scratch: Path) -> Path:
    """A folder with the images' archives: that of NODE_IMAGES, or built now."""
    built = os.environ.get("NODE_IMAGES")
    if built:
        return Path(built)
    missing = missing_for_images()
    if missing:
        pytest.skip(f"NOT VERIFIED: images need {missing}")
    build_all(scratch / "images")
    return scratch / "images"


@pytest.fixture(scope="session")
def node(scratch: Path, images: Path) -> Iterator[RealNode]:
    folder = scratch / "node"
    folder.mkdir()
    with real_node(folder) as running:
        running.import_images(images)
        yield running
