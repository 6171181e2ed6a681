"""Which series `report` reads, and which it refuses, with a Prometheus that answers from a table."""

import json
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

import pytest

from console.prometheus.client import Prometheus, PrometheusError
from console.prometheus.options import PrometheusOptions
from console.prometheus.transports import Response
from console.report.reading import Sums, read_sums

HOUR = 3600.0
Table = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]


class Answers:
    """A transport; a query gets the rows of the first text that it contains, else none."""

    def __init__(self, table: Table) -> None:
        self.queries: list[str] = []
        self._table = table

    async def post(self, _path: str, form: bytes, _seconds: float) -> Response:
        (query,) = parse_qs(form.decode())["query"]
        self.queries.append(query)
        rows = next((rows for text, rows in self._table.items() if text in query), ())
        result = [{"metric": dict(labels), "value": [0, str(value)]} for labels, value in rows]
        answer = {"status": "success", "data": {"resultType": "vector", "result": result}}
        return Response(200, "OK", json.dumps(answer).encode())


async def read(answers: Answers, *, seconds: float = 24 * HOUR) -> tuple[Sums, tuple[str, ...]]:
    options = PrometheusOptions(url="http://p", selector='job=~".+"')
    prometheus = Prometheus(answers, options, address="http://p")
    return await read_sums(prometheus, ("namespace",), start=0, end=seconds)


AGENT = {"job": "kaishare-agent"}
TEAM = {"namespace": "vision", "model": "Tesla T4"}
PRESENCE_OF_RECORDS = "group by (cluster, job) (last_over_time(usage:"
PRESENCE = "group by (cluster, job) (kaishare_"
BOTH = {PRESENCE_OF_RECORDS: [(AGENT, 100)], PRESENCE: [(AGENT, 100)]}
HOURS = {"usage:": [(TEAM, 1.0)], "kaishare_": [(TEAM, 2.0)]}


async def test_records_of_the_whole_time_are_read() -> None:
    sums, remarks = await read(Answers({**BOTH, **HOURS}))
    assert sums["promised"] == [(TEAM, 1.0)]
    assert remarks == ()


async def test_without_records_of_hours_the_series_of_the_agents_are_read() -> None:
    """The records of pods alone are no hours."""
    pods = {"pod:kaishare_gpu_seen": [({}, 100.0)]}
    sums, remarks = await read(
        Answers({**pods, PRESENCE: BOTH[PRESENCE], "usage:": [], "kaishare_": [(TEAM, 2.0)]})
    )
    assert "The recording rules do not cover this time" in remarks[0]
    assert sums["promised"] == [(TEAM, 2.0)]


async def test_a_time_shorter_than_the_step_of_the_records_is_read_from_the_agents() -> None:
    sums, _ = await read(Answers({**BOTH, **HOURS}), seconds=600)
    assert sums["promised"] == [(TEAM, 2.0)]


@pytest.mark.parametrize("presence", [{}, BOTH], ids=["no presence", "presence only"])
async def test_no_row_at_all_is_an_error(presence: Table) -> None:
    with pytest.raises(
        PrometheusError, match=r"^http://p: no pod with a share in this time; check --selector"
    ):
        await read(Answers({**presence, "": ()}))


@pytest.mark.parametrize("job", ["tenant", "a\x1b[31m\nb"])
async def test_several_jobs_of_a_cluster_are_refused(job: str) -> None:
    """A pod that two jobs scrape would count twice."""
    jobs = [({**AGENT, "cluster": "a"}, 100.0), ({"job": job, "cluster": "a"}, 1.0)]
    with pytest.raises(PrometheusError, match="several jobs match") as refused:
        await read(Answers({PRESENCE_OF_RECORDS: jobs, PRESENCE: jobs, **HOURS}))
    assert str(refused.value).isprintable()
    assert str(refused.value).endswith("; select one job")


async def test_each_cluster_may_have_its_own_job() -> None:
    jobs = [({**AGENT, "cluster": "a"}, 100.0), ({"job": "monitoring/kaishare-agent", "cluster": "b"}, 100.0)]
    sums, _ = await read(Answers({PRESENCE_OF_RECORDS: jobs, PRESENCE: jobs, **HOURS}))
    assert sums["promised"] == [(TEAM, 1.0)]
