"""JSON API `/api/v1/processes`: the processes of the pods in the newest sample, made for each question."""

from typing import Final

import msgspec

from gpuagent.api_types import ApiDeviceProcesses, ApiPodProcesses, ApiProcess, ProcessesResponse
from gpuagent.ledger.pod_processes import SampleProcesses
from service.http.page_server import Page, Query, SharedText, text_page

MOST_PROCESSES: Final = 256
"""Processes of an answer, about 40 kB."""

_JSON: Final = {"Content-Type": "application/json"}
_USAGE: Final = "the query has at most one parameter: pod=UID\n"


class ProcessAnswers:
    """The answers of the newest sample. Not thread-safe: use it in the event loop.

    An answer reads no file and asks no driver. It is made once per sample and pod, so that many questions
    cost as much as a few. All answers together have each process twice at most.
    """

    def __init__(self) -> None:
        self._sample: tuple[float, float] | None = None
        """Monotonic and Unix time of the sample; a reference would keep it in memory."""
        self._texts: dict[str | None, SharedText] = {}
        """By pod UID; None for all pods."""

    def page(self, processes: SampleProcesses | None, query: Query) -> Page:
        """Return the answer; 400 to a malformed query.

        Args:
            processes: the processes of the newest sample; None without one that is fresh.
            query: empty, or a pod's UID.
        """
        uid = None
        if query:
            ((name, uid), *others) = query
            if others or name != "pod" or not uid:
                return text_page(_USAGE, status=400)
        return Page(body=self._text(processes, uid), headers=_JSON)

    def _text(self, processes: SampleProcesses | None, uid: str | None) -> SharedText:
        sample = (processes.sample.taken_at, processes.sample.wall_time) if processes else None
        if sample != self._sample:
            self._sample = sample
            self._texts.clear()
        text = self._texts.get(uid)
        if text is None:
            text = SharedText(msgspec.json.encode(response_of(processes, uid)))
            if processes is not None and (uid is None or uid in processes.by_pod):
                self._texts[uid] = text
        return text


def response_of(processes: SampleProcesses | None, uid: str | None = None) -> ProcessesResponse:
    """Return the largest processes of one pod, or of all, in the types of the API."""
    if processes is None:
        return ProcessesResponse(sample_timestamp=None, hidden=0, pods=[])
    largest, hidden = processes.largest(MOST_PROCESSES, uid)
    pods: dict[str, dict[str, list[ApiProcess]]] = {}
    for process in largest:
        entry = ApiProcess(process.pid, processes.name(process.pid), process.used_bytes)
        pods.setdefault(process.uid, {}).setdefault(process.device, []).append(entry)
    return ProcessesResponse(
        sample_timestamp=processes.sample.wall_time,
        hidden=hidden,
        pods=[
            ApiPodProcesses(pod, [ApiDeviceProcesses(device, entries) for device, entries in devices.items()])
            for pod, devices in pods.items()
        ],
    )
