"""Everything that is known of one line of the table, with what to do first on top. Pure.

What an agent sent is shown by the names of its fields, and a figure that is unknown is left out. A node that
was taken over can send anything, so the length of texts and the number of entries are bounded.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Final

import msgspec
from msgspec import Struct

from console.top.fleet import AgentState, Fleet, GroupLine, Line
from console.top.gpu_rows import (
    IMPLAUSIBLE,
    LONGEST_DETAIL,
    LONGEST_NAME,
    UNKNOWN,
    act_of,
    percent,
    plain,
    runbook_link,
)
from console.top.pod_rows import MAX_SECONDS, NO_TABLE, NodeTable, PodRow, Tier
from service.names import is_dns_label, is_dns_subdomain
from service.text import first_few, shorten
from service.units import duration, size

_MOST: Final = 64  # entries of one kind
_UNIT: Final = re.compile(r"_?(bytes|seconds|ratio|timestamp)$")
_OF_LIMITS: Final = ("promised", "soft", "hard")  # bytes, in fields of `ApiContainerLimit`


def details_of(line: Line, fleet: Fleet, now: float) -> list[str]:
    """Return everything known about a line; `now` are seconds on the clock of the agents' state."""
    if isinstance(line, GroupLine):
        return [line.text(now)]
    agent = line if isinstance(line, AgentState) else fleet.agents.get(line.key[0])
    of_agent = _agent(agent, now) if agent is not None else ()
    if isinstance(line, AgentState):
        return [*of_agent]
    return [*summary_of(line, fleet), "", *_figures(line.api_pod), "", *of_agent]


def summary_of(line: Line, fleet: Fleet) -> Iterator[str]:
    """Yield what to know of a pod first: its state, and in trouble the cause, what to do, the command."""
    if not isinstance(line, PodRow):
        return
    yield f"{line.cells['name']}: {line.cells['state']}"
    agent = fleet.agents.get(line.key[0])
    table = agent.table if agent is not None else NO_TABLE
    if line.tier is Tier.AT_RISK and (causes := _other_causes(line, table)):
        yield f"caused by {first_few(causes, 3)}"
    if line.tier is not Tier.CALM:
        of_gpu = (gpu.act for gpu in table.gpus if gpu.uuid == line.key[2])
        acts = filter(None, chain(map(act_of, line.verdicts), of_gpu))
        yield from (f"do first: {act}" for act in islice(acts, 1))
    pod = line.api_pod
    if is_dns_label(pod.namespace) and is_dns_subdomain(pod.name):  # the command is for a shell
        yield f"kaishare why -n {pod.namespace} {pod.name}"


def _other_causes(row: PodRow, table: NodeTable) -> list[str]:
    """Return the other pods above their share on the GPU of a row, the largest first."""
    causes = [each for each in table.rows if each.key[2] == row.key[2] and each.risk.excess]
    causes.sort(key=lambda each: -each.risk.excess)
    return [f"{each.cells['name']}: {each.risk.text}" for each in causes if each.key != row.key]


def _agent(agent: AgentState, now: float) -> Iterator[str]:
    yield f"agent {plain(agent.pod.name, LONGEST_NAME)} on {agent.node}"
    if agent.failure or agent.received is None:
        yield agent.text(now).strip(" ?")
    if agent.received is not None:
        age = agent.received.age_at(now)
        yield f"sample {f'{duration(age)} old' if age is not None else 'none'}"
        yield from _figures(msgspec.structs.replace(agent.received.answer, pods=[]))


def _figures(item: Struct) -> Iterator[str]:
    """Yield a line for each field of an object, and for each entry of a list."""
    for field in msgspec.structs.fields(item):
        value = getattr(item, field.name)
        for entry in islice(value, _MOST) if isinstance(value, (list, tuple)) else [value]:
            if entry != field.default and (text := _text(field.name, entry)):
                yield f"{_label(field.name):<18} {shorten(text, 2 * LONGEST_DETAIL)}"


def _label(name: str) -> str:
    return _UNIT.sub("", name).replace("_", " ")


def _text(name: str, value: object) -> str:
    """Return the value of a field on one line; empty if it is unknown."""
    if isinstance(value, Struct):
        known = [
            (each.name, getattr(value, each.name), each.default) for each in msgspec.structs.fields(value)
        ]
        texts = [(_label(key), _text(key, part)) for key, part, default in known if part != default]
        return ", ".join(f"{label} {text}".strip() for label, text in texts if text)
    if isinstance(value, dict):
        entries = ((plain(key, 64), _text(name, part)) for key, part in islice(value.items(), _MOST))
        return ", ".join(f"{key} {text}".strip() for key, text in entries)
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(name, part) for part in islice(value, _MOST))
    if isinstance(value, str):
        return runbook_link(value) if name == "runbook" else plain(value, LONGEST_DETAIL)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _amount(name, value) if isinstance(value, (int, float)) else ""


def _amount(name: str, value: float) -> str:
    """Return a figure in the unit of its name; implausible ones are unknown."""
    if not -IMPLAUSIBLE < value < IMPLAUSIBLE:
        return UNKNOWN
    if "bytes" in name or name in _OF_LIMITS:
        return size(int(value))
    if name.endswith("_seconds"):
        return duration(min(value, MAX_SECONDS))
    if name.endswith("_ratio"):
        return percent(value)
    if name.endswith(("time", "timestamp")):
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S} UTC" if 0 <= value < 1e11 else UNKNOWN
    return f"{value:g}" if isinstance(value, float) else str(value)
