"""Hours of bad luck: the right alert fires within 15 minutes, stays while the cause does, and ends within an hour."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.support.markers import nightly, scaled
from tests.support.promtool import default_rules, promtool

SCRAPE: Final = 30
HOURS: Final = min(scaled(3), 10)
BEGIN: Final = 3600
"""The cause begins here, in seconds; it lasts for `HOURS`."""
END: Final = BEGIN + HOURS * 3600
AGENT: Final = 'job="kaishare-agent", instance="10.0.0.1:9445"'
GPU: Final = 'gpu_uuid="GPU-1", gpu="0", model="NVIDIA H100", node="node-1"'
POD: Final = f'namespace="team-a", pod="train", uid="u-1", queue="vision", {GPU}'
GIB: Final = 2**30

Value = float | None
History = Callable[[int], Value]
"""The value of a series at a time in seconds; None where a scrape does not have it."""


def during(cause: Value, otherwise: Value) -> History:
    return lambda now: cause if BEGIN <= now < END else otherwise


def alternating(first: int, second: int, value: Value, other: Value) -> History:
    """While the cause lasts: `value` for the first seconds, `other` for the second, again and again."""
    return lambda now: other if BEGIN <= now < END and (now - BEGIN) % (first + second) >= first else value


def present(alive: History, value: History) -> History:
    return lambda now: value(now) if alive(now) else None


def written(history: History) -> str:
    """Promtool's notation of a history, equal values in a row as one."""
    values = [history(now) for now in range(0, END + 2 * 3600, SCRAPE)]
    runs: list[tuple[Value, int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1] = (value, runs[-1][1] + 1)
        else:
            runs.append((value, 1))
    words = []
    for value, count in runs:
        if value is None:
            words += ["stale", *([f"_x{count - 1}"] if count > 1 else [])]
        else:
            words.append(f"{value:g}+0x{count - 1}" if count > 1 else f"{value:g}")
    return " ".join(words)


def agent(up: History, *, ok: History = lambda _: 1, gpus: History = lambda _: 1) -> dict[str, History]:
    """The series of one agent that is seen by Prometheus while it is up; it starts again when it comes back."""

    def started(now: int) -> Value:
        begin = now
        while begin > 0 and up(begin - SCRAPE):
            begin -= SCRAPE
        return begin

    return {
        f"up{{{AGENT}}}": up,
        f"process_start_time_seconds{{{AGENT}}}": present(up, started),
        f"kaishare_agent_attribution_ok{{{AGENT}}}": present(up, ok),
        f"kaishare_agent_last_sample_timestamp_seconds{{{AGENT}}}": present(up, float),
        f"kaishare_gpu_memory_total_bytes{{{GPU}, {AGENT}}}": present(up, lambda now: gpus(now) and 80 * GIB),
        f"kaishare_gpu_memory_promised_bytes{{{GPU}, {AGENT}}}": present(up, lambda now: gpus(now) and 0),
        # Of another node.
        'up{job="kaishare-agent", instance="10.0.1.1:9445"}': lambda _: 1,
        'kaishare_agent_last_sample_timestamp_seconds{job="kaishare-agent", instance="10.0.1.1:9445"}': float,
        'kube_node_info{node="node-1", job="kube-state-metrics"}': lambda _: 1,
        'kube_node_status_capacity{node="node-1", resource="nvidia_com_gpu", job="kube-state-metrics"}': lambda _: 1,
        'kube_daemonset_status_desired_number_scheduled{namespace="kaishare-agent", daemonset="kaishare-agent"}': lambda _: 1,
    }  # fmt: skip


def flickering(alive: int, dead: int) -> dict[str, History]:
    return agent(alternating(alive, dead, 1, 0))


WELL: Final = agent(lambda _: 1)


def of_gpu(figure: str) -> str:
    return f"kaishare_{figure}_bytes{{{GPU}, {AGENT}}}"


def problem(reason: str, uuid: str = "GPU-1") -> str:
    return f'kaishare_agent_attribution_problem{{reason="{reason}", gpu_uuid="{uuid}", {AGENT}}}'


UNWATCHED, DOWN, RESTARTS = "KaishareNodeUnwatched", "KaishareAgentDown", "KaishareAgentRestarts"
BLIND, PARTLY_BLIND, OUTSIDE = ("KaishareAgentBlind", "KaishareAgentPartlyBlind", "KaishareGPUMemoryOutsidePods")  # fmt: skip
CASES = {
    "agent-lives-1-s": (agent(during(0, 1)), {DOWN, UNWATCHED}),
    "agent-lives-30-s": (flickering(30, 300), {DOWN, UNWATCHED, RESTARTS}),
    "agent-lives-60-s": (flickering(60, 300), {DOWN, UNWATCHED, RESTARTS}),
    "agent-lives-100-s": (flickering(90, 30), {RESTARTS}),
    "agent-lives-300-s": (flickering(300, 300), {DOWN, UNWATCHED, RESTARTS}),
    "agent-is-gone": (agent(during(None, 1)), {UNWATCHED}),
    "all-gpus-lost": (agent(alternating(60, 300, 1, 0), ok=during(0, 1), gpus=during(None, 1)), {UNWATCHED, DOWN, RESTARTS}),
    "no-driver": (agent(lambda _: 1, ok=during(0, 1), gpus=during(None, 1)), {UNWATCHED, BLIND}),
    "blind-2-of-4-minutes": (agent(lambda _: 1, ok=alternating(120, 120, 1, 0)), {BLIND}),
    "one-gpu-alternates": (WELL | {problem("nvml"): alternating(120, 120, None, 1)}, {PARTLY_BLIND}),
    "gpu-missing": (WELL | {problem("gpu-missing", ""): during(1, None)}, {PARTLY_BLIND}),
    "unattributed": (WELL | {of_gpu("gpu_memory_unattributed"): during(30 * GIB, 0)}, {OUTSIDE}),
    "held-by-the-host-and-by-an-ended-pod": (
        WELL | {of_gpu("gpu_memory_host"): during(3 * GIB, 0), of_gpu("gpu_memory_ended_pods"): during(3 * GIB, 0)}, {OUTSIDE},
    ),
    "at-risk": (WELL | {of_gpu("gpu_at_risk"): during(GIB, 0)}, {"KaishareGPUMemoryAtRisk"}),
    "flagged-while-the-agent-lives-90-s": (
        flickering(90, 30)
        | {f'kaishare_pod_flagged{{reason="over-share", {POD}, {AGENT}}}': present(alternating(90, 30, 1, 0), during(1, 0))},
        {RESTARTS, "KaisharePodOverShare"},
    ),
}  # fmt: skip
"""By name: the series, and the alerts that their cause must raise, and no others."""


def within(first: int, last: int, now: int) -> Value:
    return 1 if first <= now < last else None


def updates() -> dict[str, History]:
    """Every two hours the agent's pod is replaced, away for two minutes; Prometheus starts again in between."""
    series: dict[str, History] = {}
    for number in range(END // 7200 + 2):
        first, last = number * 7200 + 120, (number + 1) * 7200
        pod = agent(functools.partial(within, first, last))
        series |= {name.replace("10.0.0.1", f"10.0.0.{number + 1}"): each for name, each in pod.items()}
    pause = range(BEGIN + 5400, BEGIN + 5700)
    return {name: present(lambda now: now not in pause, value) for name, value in series.items()}


def seconds_over(part: float) -> History:
    """A counter that grows by a part of the time."""
    return lambda now: part * max(0, min(now, END) - BEGIN)


def twice(series: dict[str, History]) -> dict[str, History]:
    """The same agent, scraped by a second job that the selector matches."""
    other = 'job="kaishare-agent/kaishare-agent", instance="node-1"'
    return series | {name.replace(AGENT, other): value for name, value in series.items() if AGENT in name}


OVER: Final = f"kaishare_pod_over_share_seconds_total{{{POD}, {AGENT}}}"
INFO: Final = f'kaishare_pod_info{{namespace="team-a", pod="train", uid="u-1", workload="train", node="node-1", {AGENT}}}'
KNOWN: Final = WELL | {
    INFO: lambda _: 1,
    f'kaishare_pod_gpu_memory_share_bytes{{source="annotation", {POD}, {AGENT}}}': lambda _: 8 * GIB,
}
FORGED: Final = 'job="team-b/exporter", instance="10.9.9.9:80"'

CASES |= {
    "updates": (updates(), set()),
    "seven-minutes-an-hour-seen-twice": (twice(KNOWN | {OVER: seconds_over(7 / 60)}), set()),
    "fifteen-minutes-an-hour-seen-twice": (twice(KNOWN | {OVER: seconds_over(15 / 60)}), {"KaisharePodOverShareRepeatedly"}),
    "a-tenant-forges-an-alert": (
        WELL
        | {
            f'kaishare_pod_flagged{{reason="over-share", namespace="victim", pod="innocent", uid="u-9", {FORGED}}}': during(1, 0),
            f"kaishare_gpu_at_risk_bytes{{{GPU}, {FORGED}}}": during(GIB, 0),
            f"kaishare_agent_attribution_ok{{{FORGED}}}": during(0, 1),
            f"kaishare_webhook_order_ok{{{FORGED}}}": during(0, 1),
        },
        set(),
    ),
    "a-tenant-forges-silence": (agent(during(None, 1)) | {f"kaishare_gpu_memory_total_bytes{{{GPU}, {FORGED}}}": lambda _: 1}, {UNWATCHED}),
}  # fmt: skip

SLOWER: Final = {
    "agent-lives-300-s": {RESTARTS},
    "fifteen-minutes-an-hour-seen-twice": {"KaisharePodOverShareRepeatedly"},
}
"""Alerts that take up to an hour, since they count starts or minutes of an hour."""


_APART: Final = {
    "kaishare-slo", "kaishare-webhook-slo", "kaishare-gpu-forecast", "kaishare-figures", "kaishare-usage",
}  # fmt: skip
"""Groups that these series do not concern; promtool's time grows with the number of rules."""
_DAILY: Final = {"agent-lives-60-s", "blind-2-of-4-minutes", "updates", "a-tenant-forges-silence"}  # fmt: skip


@pytest.mark.parametrize("name", [name if name in _DAILY else nightly(name) for name in CASES])
def test_alerts_last_as_long_as_their_cause(name: str, tmp_path: Path) -> None:
    series, alerts = CASES[name]
    early = alerts - SLOWER.get(name, set())
    looks = {BEGIN - 60: set(), BEGIN + 15 * 60: early, END - 60: alerts, END + 3600: set()}
    looks |= dict.fromkeys(range(BEGIN + 75 * 60, END, 29 * 60), alerts)
    test = {
        "interval": f"{SCRAPE}s",
        "input_series": [{"series": each, "values": written(history)} for each, history in series.items()],
        "promql_expr_test": [
            {
                "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{look}s",
                "exp_samples": [
                    {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(expected)
                ],
            }
            for look, expected in sorted(looks.items())
        ],
    }
    rules = {"groups": [group for group in default_rules()["groups"] if group["name"] not in _APART]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    proof = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "group_eval_order": [group["name"] for group in rules["groups"]],
        "tests": [test],
    }
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(proof))
    promtool("test", "rules", tmp_path / "night.yaml")
