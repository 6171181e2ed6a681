"""Reads Namespace objects from files, in this process or in a subprocess.

Parsing YAML of 1,000 namespaces takes a third of a second and holds Python's interpreter lock for up to 60 ms
at a time. A running server therefore reads in a subprocess: `python -m webhook.namespaces.documents PATH`.
"""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from service.documents import DocumentError, document_files, flatten_lists, load_file
from service.tasks import LoopYield
from service.text import LONGEST_VALUE, one_line, quoted
from webhook.policy.labels import own_labels

Labels = Mapping[str, str]

LONGEST_READING_SECONDS: Final = 120.0
_NAMESPACES_PER_LINE = 50  # a line takes some 50 µs to decode
_UNUSABLE = 2


class PoliciesError(ValueError):
    """Policies cannot be read; the message is one line that names the input and the problem."""


def read_namespaces(path: Path) -> dict[str, Labels]:
    """Read the labels of every namespace in a file or directory.

    Raises:
        PoliciesError: a document is not a valid Namespace, or a namespace occurs twice.
    """
    labels: dict[str, Labels] = {}
    seen: dict[str, Path] = {}
    for file in _files(path):
        for name, namespace_labels in _namespaces(file):
            if name in seen:
                also = "twice" if seen[name] == file else f"also in {seen[name]}"
                raise PoliciesError(f"{file}: namespace {quoted(name)} is {also}; name it once")
            seen[name] = file
            labels[name] = namespace_labels
    return labels


async def read_in_subprocess(path: Path) -> dict[str, Labels]:
    """Read the policy labels of every namespace in a file or directory, in a subprocess.

    Raises:
        PoliciesError: as `read_namespaces`.
        OSError: the subprocess cannot be started.
        TimeoutError: the subprocess took longer than `LONGEST_READING_SECONDS`.
        RuntimeError: the subprocess failed or was killed.
    """
    modules = os.pathsep.join(entry or os.curdir for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": modules, "PYTHONSAFEPATH": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(path),
        stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environment,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LONGEST_READING_SECONDS):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        (*_, last_line) = errors.decode(errors="replace").strip().splitlines() or [""]
        if process.returncode == _UNUSABLE:
            raise PoliciesError(last_line)
        raise RuntimeError(f"the subprocess ended with status {process.returncode} {last_line}".rstrip())
    labels: dict[str, Labels] = {}
    loop_yield = LoopYield()
    for line in output.splitlines():
        labels |= orjson.loads(line)
        await loop_yield.maybe_yield()
    return labels


def main() -> None:
    """Write the policy labels of a file or directory to standard output, as lines of JSON."""
    os.nice(10)  # reviews have priority
    try:
        namespaces = read_namespaces(Path(sys.argv[1]))
    except PoliciesError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(_UNUSABLE)
    rest = iter(namespaces.items())
    while batch := {name: own_labels(labels) for name, labels in islice(rest, _NAMESPACES_PER_LINE)}:
        sys.stdout.buffer.write(orjson.dumps(batch, option=orjson.OPT_APPEND_NEWLINE))


def _files(path: Path) -> list[Path]:
    try:
        return document_files(path)
    except DocumentError as error:
        raise PoliciesError(str(error)) from None
    except OSError as error:
        raise PoliciesError(f"{path}: {error.strerror}") from None


def _namespaces(file: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    try:
        documents = list(flatten_lists(load_file(file)))
    except DocumentError as error:
        raise PoliciesError(str(error)) from None
    for document in documents:
        yield _namespace(file, document)


def _namespace(file: Path, document: Any) -> tuple[str, Mapping[str, str]]:
    if not isinstance(document, dict) or document.get("kind") != "Namespace":
        kind = document.get("kind") if isinstance(document, dict) else document
        raise PoliciesError(
            f"{file}: {quoted(kind)} is not a Namespace; a policies file may contain only Namespaces"
        )
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
        raise PoliciesError(f"{file}: a Namespace has no metadata.name")
    labels = metadata.get("labels") or {}
    if not isinstance(labels, dict):
        raise PoliciesError(f"{file}: namespace {quoted(name)}: metadata.labels must be a map")
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise PoliciesError(
                f"{file}: namespace {quoted(name)}: label {one_line(str(key), LONGEST_VALUE)}:"
                f" {one_line(str(value), LONGEST_VALUE)} must be a string; put it in quotes"
            )
    return name, labels


if __name__ == "__main__":
    main()
