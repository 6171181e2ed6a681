"""The images that buildah made of the Dockerfiles: their files, and the time that a service takes to start."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.image_files import check_image, start_image
from tests.support.real_node.release import print_figure

SERVICES = ("webhook", "agent")


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    subprocess.run(["tar", "--extract", f"--file={archive}", f"--directory={folder}"], check=True)


def unpacked(archive: Path, folder: Path) -> tuple[Path, dict[str, object]]:
    _unpack(archive, folder / "oci")

    def blob(descriptor: dict[str, str]) -> Path:
        return folder / "oci" / "blobs" / descriptor["digest"].replace(":", "/")

    (manifest,) = json.loads((folder / "oci" / "index.json").read_text())["manifests"]
    content = json.loads(blob(manifest).read_text())
    for layer in content["layers"]:
        _unpack(blob(layer), folder / "root")
    config: dict[str, object] = json.loads(blob(content["config"]).read_text())["config"]
    return folder / "root", config


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_holds_its_service_and_starts(service: str, images: Path, scratch: Path) -> None:
    folder = scratch / f"image-{service}"
    folder.mkdir()
    root, config = unpacked(images / f"kaishare-{service}.tar", folder)
    print_figure(check_image(root, service))
    assert config["User"] == "65532:65532"
    assert (config["Entrypoint"], config["Cmd"]) == ([f"kaishare-{service}"], ["serve"])
    began = time.monotonic()
    assert "0.2.0" in start_image(root, service)
    took = time.monotonic() - began
    print_figure(f"{service} --version: {took:.2f} s")
    assert took < 10
