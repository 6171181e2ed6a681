"""Compares what the product answers with the records, or writes them again: `python -m tests.golden [--write] [GROUP …]`."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tests.golden import agents, clusters, records, reviews, usage
from tests.golden.api_server import api_server
from tests.support import why_states
from tests.support.api_server import ObjectServer

Group = Callable[[Path, ObjectServer], Iterator[tuple[str, Any]]]
MOST_SHOWN: Final = 20


def _alone(cases: Callable[[Path], Iterator[tuple[str, Any]]]) -> Group:
    return lambda folder, _server: cases(folder)


def _of_cluster(cases: Callable[[ObjectServer], Iterator[tuple[str, Any]]]) -> Group:
    return lambda _folder, server: cases(server)


GROUPS: Final[Mapping[str, Group]] = {
    "reviews-odd": _alone(reviews.odd_cases),
    "reviews-usual": _alone(reviews.usual_cases),
    "reviews-examples": _alone(reviews.example_cases),
    "agent": _alone(agents.scenario_cases),
    "evictions": _alone(agents.eviction_cases),
    "explain": _alone(clusters.explain_cases),
    "corpus": _alone(clusters.corpus_cases),
    "commands": _of_cluster(clusters.command_cases),
    "doctor": _of_cluster(clusters.doctor_cases),
    "usage": usage.cases,
    **{f"why-{each}": _of_cluster(partial(usage.why_cases, release=each)) for each in why_states.RELEASES},
}


def missing(group: str) -> str:
    """Return what a group needs and this machine lacks; empty if there is nothing."""
    if group.startswith("why-") and why_states.folder() is None:
        return "set KAISHARE_FIXTURES to the recorded objects"
    if group == "corpus" and not clusters.corpus():
        return "set KAISHARE_CORPUS to the manifests of other projects"
    if (
        group in ("commands", "doctor")
        and not Path(os.environ.get("KUBEBUILDER_ASSETS", "/nowhere"), "helm").exists()
    ):
        return "set KUBEBUILDER_ASSETS to a folder with helm"
    if group == "usage" and not all(map(shutil.which, ("prometheus", "promtool"))):
        return "apt-get install prometheus"
    return ""


@contextmanager
def surroundings() -> Iterator[tuple[Path, ObjectServer]]:
    with (
        tempfile.TemporaryDirectory(prefix="kaishare-golden-", dir="/tmp") as name,
        api_server(Path(name)) as server,
    ):
        yield Path(name), server


def compared(group: str) -> list[str]:
    with surroundings() as (folder, server):
        return list(records.differences(records.stored(group), dict(GROUPS[group](folder, server))))


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the records again")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)} (default: all)")
    arguments = parser.parse_args()
    differences: list[str] = []
    for group in arguments.groups or GROUPS:
        lack, began = missing(group), time.monotonic()
        if lack:
            _print(f"{group}: left out: {lack}")
            continue
        if arguments.write:
            with surroundings() as (folder, server):
                records.store(group, dict(GROUPS[group](folder, server)))
            differing: list[str] = []
        else:
            differing = compared(group)
        cases, seconds = len(records.stored(group)), time.monotonic() - began
        _print(f"{group}: {cases} cases, {len(differing)} differ, {seconds:.1f} s")
        differences += [f"{group}: {each}" for each in differing]
    for text in islice(differences, MOST_SHOWN):
        _print(f"\n{text}")
    if len(differences) > MOST_SHOWN:
        _print(f"\nand {len(differences) - MOST_SHOWN} more")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
