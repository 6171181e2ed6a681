"""Which series `report` reads, and which it refuses, with a Prometheus that answers from a table."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import pytest

from console.prometheus.prometheus_options import PrometheusOptions
from console.prometheus.query_api import Prometheus, PrometheusError, Response
from console.report.gpu_hours import read_sums
from console.report.report_rows import build_report, row_labels
from console.report.text import as_json, as_text

HOUR = 3600.0
Looks = Mapping[tuple[str, str], Sequence[int]]
"""By cluster and job: the looks, of a hundred, at which there is something. 0 is the latest."""
ALL = range(100)


class Answers:
    """A transport with records and series at some looks; hours of records are 1, those of series 2."""

    def __init__(
        self, records: Looks, series: Looks, *, has_hours: bool = True, values: Sequence[str] = ()
    ) -> None:
        self._values = values
        self.queries: list[str] = []
        self._records = records
        self._series = series
        self._has_hours = has_hours

    async def post(self, path: str, form: bytes, _seconds: float) -> Response:
        values = {key: own for key, (own,) in parse_qs(form.decode()).items()}
        query = values["query"]
        self.queries.append(query)
        result: list[dict[str, Any]]
        if path.endswith("query_range"):
            end, step = float(values["end"]), float(values["step"])
            kind, result = (
                "matrix",
                [
                    {
                        "metric": labels(*origin),
                        "values": [[end - look * step, "1"] for look in sorted(looks, reverse=True)],
                    }
                    for origin, looks in self._records.items()
                ],
            )
        elif "!~" in query or query.startswith("group by"):
            kind, result = "vector", []  # origins that no look has seen
        elif "seen:timestamp" in query:
            kind, result = "vector", []  # gaps before the time
        elif query.startswith("label_replace"):
            in_query = set(re.findall(r'"look", "([0-9]+)"', query))
            kind, result = (
                "vector",
                [
                    {"metric": labels(*origin) | {"look": look}, "value": [0, "1"]}
                    for origin, looks in self._series.items()
                    for look in in_query.intersection(map(str, looks))
                ],
            )
        else:
            own = self._values or ["1" if "usage:" in query else "2"]
            hours = [{"metric": TEAM, "value": [0, value]} for value in own]
            kind, result = "vector", hours if self._has_hours else []
        answer = {"status": "success", "data": {"resultType": kind, "result": result}}
        return Response(200, "OK", json.dumps(answer).encode())


def labels(cluster: str, job: str) -> dict[str, str]:
    return {name: value for name, value in (("cluster", cluster), ("job", job)) if value}


async def read(answers: Answers, *, seconds: float = 24 * HOUR) -> tuple[Any, tuple[str, ...]]:
    options = PrometheusOptions(url="http://p", selector='job=~".+"')
    prometheus = Prometheus(answers, options, address="http://p")
    return await read_sums(prometheus, ("namespace",), start=0, end=seconds)


TEAM = {"namespace": "vision", "model": "Tesla T4"}
AGENT = ("", "kaishare-agent")


async def test_records_of_the_whole_time_are_read() -> None:
    sums, remarks = await read(Answers({AGENT: ALL}, {AGENT: ALL}))
    assert sums["promised"] == [(TEAM, 1.0)]
    assert remarks == ()


async def test_without_records_of_hours_the_series_of_the_agents_are_read() -> None:
    sums, (remark,) = await read(Answers({}, {AGENT: ALL}))
    assert remark.startswith(
        "The recording rules have no data in this time: the agents' own series were read"
    )
    assert sums["promised"] == [(TEAM, 2.0)]


@pytest.mark.parametrize(
    ("recorded", "present", "source"),
    {
        "records of the last half of the time": (range(50), ALL, 2.0),
        "pods in the last half of the time": (range(50), range(50), 1.0),
        "records end before the pods": (range(10, 100), ALL, 2.0),
        "a short gap": ([look for look in ALL if look not in (40, 41)], ALL, 1.0),
    }.values(),
    ids=lambda value: "",
)
async def test_records_are_read_where_they_cover_the_time_with_pods(
    recorded: Sequence[int], present: Sequence[int], source: float
) -> None:
    sums, remarks = await read(Answers({AGENT: recorded}, {AGENT: present}))
    assert sums["promised"] == [(TEAM, source)]
    assert len(remarks) == int(source == 2.0)


async def test_each_cluster_is_judged_for_itself() -> None:
    """A small cluster without the rules is not hidden by a large one with them."""
    ruled, unruled = ("a", "kaishare-agent"), ("b", "kaishare-agent")
    answers = Answers({ruled: ALL}, {ruled: ALL, unruled: ALL})
    sums, (added_up, remark) = await read(answers)
    assert added_up == 'Rows add up 2 clusters: a, b. --selector with cluster="NAME" selects one.'
    assert remark.startswith("The recording rules have no data in this time for cluster b: ")
    assert sums["promised"] == [(TEAM, 1.0), (TEAM, 2.0)]
    hours = [query for query in answers.queries if "hours" in query and "group by" not in query]
    assert hours
    assert all('{job=~".+",cluster=~"a"}' in query for query in hours)
    raw = [query for query in answers.queries if "time()" in query]
    assert raw
    assert all('{job=~".+",cluster=~"b"}' in query for query in raw)


async def test_a_job_without_records_does_not_count_beside_one_with_them() -> None:
    sums, remarks = await read(Answers({AGENT: ALL}, {AGENT: ALL, ("", "tenant"): ALL}))
    assert (sums["promised"], remarks) == ([(TEAM, 1.0)], ())


async def test_a_time_shorter_than_the_step_of_the_records_is_read_from_the_agents() -> None:
    sums, _ = await read(Answers({AGENT: ALL}, {AGENT: ALL}), seconds=600)
    assert sums["promised"] == [(TEAM, 2.0)]


@pytest.mark.parametrize("looks", [{}, {AGENT: ALL}], ids=["no presence", "presence only"])
async def test_no_row_at_all_is_an_error(looks: Looks) -> None:
    with pytest.raises(
        PrometheusError, match=r"^http://p: no pod with a share in this time; check --selector"
    ):
        await read(Answers(looks, looks, has_hours=False))


@pytest.mark.parametrize("job", ["tenant", "a\x1b[31m\nb"])
async def test_several_jobs_of_a_cluster_are_refused(job: str) -> None:
    """A pod that two jobs scrape would count twice."""
    jobs = {("a", "kaishare-agent"): ALL, ("a", job): ALL}
    with pytest.raises(PrometheusError, match="several jobs match") as refused:
        await read(Answers(jobs, jobs))
    assert str(refused.value).isprintable()
    assert str(refused.value).endswith("; select one, such as --selector 'job=\"NAME\"'")


async def test_each_cluster_may_have_its_own_job() -> None:
    jobs = {("a", "kaishare-agent"): ALL, ("b", "monitoring/kaishare-agent"): ALL}
    sums, _ = await read(Answers(jobs, jobs))
    assert sums["promised"] == [(TEAM, 1.0)]


@pytest.mark.parametrize(
    "value", ["-5", "-1e-3", "NaN", "+Inf", "-Inf", "1.5e308", "9007199254740994", "1e9"]
)
async def test_values_that_no_hours_have_are_left_out_and_counted(value: str) -> None:
    """Figures of a row and a day: at most a million GPUs have 2.4e7 hours."""
    sums, (remark,) = await read(Answers({AGENT: ALL}, {AGENT: ALL}, values=["3", value]))
    assert all(own == [(TEAM, 3.0)] for own in sums.values())
    assert remark == "Left out: 9 values of series that are negative, not finite or too large."
    report = build_report(sums, row_labels(["namespace"]), prices={}, remarks=[remark])
    assert remark in as_text(report, columns=200)
    document = json.loads(as_json(report))
    assert (document["totals"]["promised"], document["remarks"]) == (3.0, [remark])
