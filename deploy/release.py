"""Prepares a release: its notes from CHANGELOG.md, and a chart that names the published images.

Usage: python deploy/release.py notes VERSION
       python deploy/release.py chart FOLDER --registry PREFIX --source URL --webhook DIGEST --agent DIGEST

It needs the standard library only, because the release's jobs run it before packages are installed.
"""

import argparse
import re
import shutil
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CHART: Final = Path("deploy/helm/kaishare")
DOCKERFILES: Final = ("Dockerfile.webhook", "Dockerfile.agent")

_VERSION: Final = re.compile(r"^version: (\S+)$", re.MULTILINE)
_APP_VERSION: Final = re.compile(r"^appVersion: (\S+)$", re.MULTILINE)
_ARGUMENT: Final = re.compile(r"^ARG VERSION=(\S+)$", re.MULTILINE)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_SOURCE: Final = re.compile(r"https://[a-zA-Z0-9./_-]+[a-zA-Z0-9_-]")
_PREFIX: Final = re.compile(r"[a-z0-9.-]+(?::[0-9]+)?(?:/[a-z0-9._-]+)*")


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run a subcommand; return 2 with one line on standard error if the release is not possible."""
    parser = argparse.ArgumentParser(description="Prepares a release.")
    commands = parser.add_subparsers(dest="command", required=True)
    notes = commands.add_parser("notes", help="print the release notes")
    notes.add_argument("version", help="version such as 0.2.0, without v")
    chart = commands.add_parser("chart", help="write a chart that names the published images by digest")
    chart.add_argument("folder", type=Path, help="new folder; the chart becomes FOLDER/kaishare")
    chart.add_argument(
        "--registry", required=True, help="registry and owner, such as registry.example.com/team"
    )
    chart.add_argument("--source", required=True, help="address of the repository, https://…")
    chart.add_argument("--webhook", required=True, help="digest of the webhook's image, sha256:…")
    chart.add_argument("--agent", required=True, help="digest of the agent's image, sha256:…")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "notes":
            check_versions(root, arguments.version)
            sys.stdout.write(release_notes((root / "CHANGELOG.md").read_text("utf-8"), arguments.version))
        else:
            digests = {"webhook": arguments.webhook, "agent": arguments.agent}
            write_chart(root, arguments.folder, arguments.registry, arguments.source, digests)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"release: {error}\n")
        return 2
    return 0


def versions(root: Path) -> dict[str, str]:
    """Return the version that each file of the repository names."""
    chart = (root / CHART / "Chart.yaml").read_text("utf-8")
    named = {
        f"{CHART}/Chart.yaml version": _VERSION.search(chart),
        f"{CHART}/Chart.yaml appVersion": _APP_VERSION.search(chart),
    } | {name: _ARGUMENT.search((root / name).read_text("utf-8")) for name in DOCKERFILES}
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return {"pyproject.toml": project} | {name: match[1] if match else "" for name, match in named.items()}


def check_versions(root: Path, version: str) -> None:
    """Compare the version of a release with that of each file.

    Raises:
        ValueError: a file names another version.
    """
    others = [f"{name} has {other or 'none'}" for name, other in versions(root).items() if other != version]
    if others:
        raise ValueError(f"the release is {version}, but {', '.join(others)}")


def release_notes(changelog: str, version: str) -> str:
    """Return the section of a version, whose heading is `## VERSION` with or without a date after it.

    Raises:
        ValueError: there is no such section, or it is empty.
    """
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    for section in sections:
        heading, _, text = section.partition("\n")
        if heading.split()[:1] == [version]:
            if not text.strip():
                raise ValueError(f"the section {version} of CHANGELOG.md is empty")
            return f"{text.strip()}\n"
    raise ValueError(f"CHANGELOG.md has no section ## {version}")


def write_chart(root: Path, folder: Path, prefix: str, source: str, digests: dict[str, str]) -> None:
    """Copy the chart, and name in the copy both images by digest, and the repository.

    values.yaml gets repository and digest of each image. Chart.yaml gets the address of the repository, and
    the images as Artifact Hub reads them.

    Args:
        root: the repository.
        folder: folder of the copy.
        prefix: registry and path before the images' names.
        source: address of the repository for people.
        digests: digest of each service's image.

    Raises:
        ValueError: the prefix, the address or a digest is malformed, or values.yaml has another form.
        FileExistsError: the copy exists already.
    """
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"expected a registry and a path in lower case: {prefix!r}")
    if not _SOURCE.fullmatch(source):
        raise ValueError(f"expected an address https://… of the repository: {source!r}")
    values = (root / CHART / "values.yaml").read_text("utf-8")
    images = ""
    for service, digest in digests.items():
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"expected a digest sha256:… of the {service}'s image: {digest!r}")
        repository = f"    repository: kaishare-{service}\n"
        before, name, after = values.partition(repository)
        between, empty, rest = after.partition('    digest: ""\n')
        if not name or not empty or "repository:" in between:
            raise ValueError(f"values.yaml does not name the {service}'s image as expected")
        published = f"    repository: {prefix}/kaishare-{service}\n"
        values = f'{before}{published}{between}    digest: "{digest}"\n{rest}'
        images += f"    - {{name: {service}, image: {prefix}/kaishare-{service}@{digest}}}\n"
    about = (root / CHART / "Chart.yaml").read_text("utf-8")
    if not about.rstrip().rpartition("\nannotations:\n")[2].startswith("  artifacthub.io/"):
        raise ValueError("Chart.yaml does not end with its annotations")
    about = f"home: {source}\nsources: [{source}]\n{about}  artifacthub.io/images: |\n{images}"
    copy = folder / CHART.name
    shutil.copytree(root / CHART, copy)
    (copy / "values.yaml").write_text(values, "utf-8")
    (copy / "Chart.yaml").write_text(about, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
