"""Loads a scenario from its file, with all checks that prevent later failures."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuagent.simulation.scenario import (
    MOST_PROCESSES,
    FaultKind,
    Scenario,
    SimulatedFault,
    SimulatedGpu,
    SimulatedMig,
    SimulatedNode,
    SimulatedPod,
    SimulatedProcess,
    decode_value,
)
from gpuagent.simulation.simulated_objects import PodIdentity, node_objects, pod_identities
from gpuagent.simulation.simulated_processes import Contradiction, lives
from service.documents import DocumentError, load_file
from service.text import one_line

_PLACES: Final[dict[str, type[msgspec.Struct]]] = {
    "": Scenario,
    "node": SimulatedNode,
    "gpus": SimulatedGpu,
    "gpus.mig": SimulatedMig,
    "pods": SimulatedPod,
    "processes": SimulatedProcess,
    "faults": SimulatedFault,
}


class ScenarioError(DocumentError):
    """An invalid scenario; the message is one line with file, place, error and allowed values."""


class _Named(msgspec.Struct):
    name: str


class _Metadata(_Named):
    """`metadata` in a scenario; stricter than the API server's, where labels and annotations may be null."""

    namespace: str = "default"
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Named] = []
    init_containers: list[_Named] = []


class _ContainerStatus(_Named, rename="camel"):
    container_id: str = msgspec.field(name="containerID", default="")


class _PodStatus(msgspec.Struct, rename="camel"):
    container_statuses: list[_ContainerStatus] = []
    init_container_statuses: list[_ContainerStatus] = []
    ephemeral_container_statuses: list[_ContainerStatus] = []


class _Object(msgspec.Struct):
    """Checked fields of a Kubernetes object in a scenario."""

    kind: str
    metadata: _Metadata
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class _PodObject(msgspec.Struct):
    metadata: _Metadata
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


def load_scenario(path: Path) -> Scenario:
    """Load a scenario from a file.

    Raises:
        DocumentError: the file is not readable, or is not YAML.
        ScenarioError: the scenario is malformed or contradicts itself.
    """
    documents = load_file(path)
    if len(documents) != 1:
        raise ScenarioError(f"{path}: {len(documents)} documents; a scenario is one")
    return parse_scenario(documents[0], str(path))


def parse_scenario(document: Any, source: str) -> Scenario:
    """Convert a decoded YAML document to a scenario.

    Raises:
        ScenarioError: the scenario is malformed or contradicts itself; the message begins with the source.
    """
    try:
        scenario = msgspec.convert(document, Scenario, dec_hook=decode_value)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{source}: {one_line(_in_words(error))}") from None
    for place, wrong in _contradictions(scenario):
        raise ScenarioError(f"{source}: {one_line(f'{place}: {wrong}')}")
    return scenario


def _in_words(error: msgspec.ValidationError) -> str:
    """Format a msgspec error with the place first, and with the known fields after an unknown one."""
    wrong, _, at = str(error).partition(" - at `")
    place = at.removesuffix("`").removeprefix("$").removeprefix(".")
    if "unknown field" in wrong:
        part = _PLACES.get(re.sub(r"\[[^][]*\]", "", place))
        if part is not None:
            wrong += f"; allowed: {', '.join(field.encode_name for field in msgspec.structs.fields(part))}"
    if wrong.startswith("Invalid enum value") and place.endswith(".fault"):
        wrong += f"; allowed: {', '.join(FaultKind)}"
    return f"{place}: {wrong}" if place else wrong


def _contradictions(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield the place and description of each error; every check relies on the previous ones."""
    yield from _wrong_gpus(scenario)
    yield from _wrong_objects(scenario)
    try:
        pods = pod_identities(node_objects(scenario))
    except ValueError as error:
        yield "pods", str(error)
        return
    yield from _wrong_references(scenario, pods)
    if sum(process.count for process in scenario.processes) > MOST_PROCESSES:
        yield "processes", f"more than {MOST_PROCESSES}"
    try:
        lives(scenario)
    except Contradiction as error:
        yield "processes", str(error)
    yield from _overfull(scenario)


def _wrong_gpus(scenario: Scenario) -> Iterator[tuple[str, str]]:
    if not scenario.gpus:
        yield "gpus", "a node needs at least one"
    uuids = [uuid for gpu in scenario.gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig))]
    if len(set(uuids)) < len(uuids):
        yield "gpus", "two have the same `uuid`"
    for number, pod in enumerate(scenario.pods):
        if not set(pod.gpus) <= set(range(len(scenario.gpus))):
            yield f"pods[{number}].gpu", f"there is no such GPU; {_allowed(scenario)}"
    for number, fault in enumerate(scenario.faults):
        if fault.gpu is not None and fault.gpu not in range(len(scenario.gpus)):
            yield f"faults[{number}].gpu", f"there is no such GPU; {_allowed(scenario)}"


def _allowed(scenario: Scenario) -> str:
    return f"allowed: 0 to {len(scenario.gpus) - 1}"


def _wrong_objects(scenario: Scenario) -> Iterator[tuple[str, str]]:
    for number, object_ in enumerate(scenario.objects):
        try:
            if msgspec.convert(object_, _Object).kind == "Pod":
                msgspec.convert(object_, _PodObject)
        except msgspec.ValidationError as error:
            place, _, wrong = _in_words(error).rpartition(": ")
            yield f"objects[{number}]{'.' if place else ''}{place}", wrong
        try:
            json.dumps(object_)
        except (TypeError, ValueError):
            yield f"objects[{number}]", "a value does not exist in JSON; put dates in quotes"
    names = [pod.name for pod in scenario.pods]
    names += [
        f"{object_['metadata'].get('namespace', 'default')}/{object_['metadata']['name']}"
        for object_ in scenario.objects
        if object_["kind"] == "Pod"
    ]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        yield "pods", f"{min(twice)} is there twice"


def _wrong_references(scenario: Scenario, pods: dict[str, PodIdentity]) -> Iterator[tuple[str, str]]:
    indices = range(len(scenario.gpus))
    migs = {mig.uuid for gpu in scenario.gpus for mig in gpu.mig}
    for number, process in enumerate(scenario.processes):
        place = f"processes[{number}]"
        if process.gpu not in indices and process.gpu not in migs:
            yield (
                f"{place}.gpu",
                f'"{process.gpu}" is not there; {_allowed(scenario)}, or the `uuid` of a `mig`',
            )
        if process.pod and process.pod not in pods:
            yield f"{place}.pod", f'"{process.pod}" is not there; allowed: one of `pods` or `objects`'
        elif process.container and not process.pod:
            yield place, "`container` needs `pod`"
        elif process.container and process.container not in pods[process.pod].containers:
            yield f"{place}.container", f'{process.pod} has no container "{process.container}"'


def _overfull(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield an error for each device whose processes use more than it has."""
    devices: dict[int | str, int] = {
        index: gpu.memory - gpu.reserved - gpu.unaccounted for index, gpu in enumerate(scenario.gpus)
    }
    devices.update((mig.uuid, mig.memory) for gpu in scenario.gpus for mig in gpu.mig)
    changes: dict[int | str, dict[float, int]] = defaultdict(lambda: defaultdict(int))
    for process in scenario.processes:
        at = changes[process.gpu]
        used = 0
        moments = {process.start, *(moment for moment, _ in process.memory if moment > process.start)}
        for moment in sorted(moments):
            if process.is_at(moment):
                now = process.memory.at(moment) * process.count
                at[moment] += now - used
                used = now
        if process.until is not None:
            at[process.until] -= used
    for device, total in devices.items():
        used = 0
        for moment, change in sorted({0.0: 0, **changes[device]}.items()):
            used += change
            if used > total:
                yield "gpus", f"{device} holds {used} bytes at second {moment:g}, and has room for {total}"
                break
