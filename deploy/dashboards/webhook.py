"""The dashboard of the webhook: reviews, latency, errors, policies, certificates and watches."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import annotations, links, variables
from deploy.dashboards.board import Contents, Section
from deploy.dashboards.panels import (
    BYTES,
    RATE,
    RATIO,
    SECONDS,
    Column,
    Query,
    TableLayout,
    largest,
    lines,
    number,
    orange_from,
    red_below,
    red_from,
    rows,
)
from deploy.dashboards.queries import CLUSTER, WEBHOOK_UP, began_or_grew, join, known_or_zero, rate

_REQUESTS: Final = f"kaishare_webhook_requests_total{{{CLUSTER}}}"
_INFO: Final = f'kaishare_build_info{{{CLUSTER}, component="webhook"}}'
_TARGET: Final = "cluster, job, instance"
_API_SERVER: Final = join(CLUSTER, 'name=~".+\\\\.kaishare\\\\.dev"')
_FAIL_OPEN: Final = "apiserver_admission_webhook_fail_open_count"
_POLICY_CHECKS: Final = "apiserver_mutating_admission_policy_check_total"
_FAILED_CHECKS: Final = join(CLUSTER, 'policy="kaishare", error_type!="no_error"')
_DAY: Final = 86_400
_GOOD: Final = join(CLUSTER, 'action!="error"')
_OBSERVED: Final = join(CLUSTER, 'action="observed"')
_FAILED: Final = join(CLUSTER, 'stage=~"timeout|patch|policies|http|mutate|validate-.+"')
"""Stages of reviews; decode, slow-body and too-large are unusable requests of other clients."""


def contents() -> Contents:
    """Return the webhook's dashboard."""
    return Contents(
        name="webhook",
        title="kaishare / Webhook",
        description="Admission reviews of the webhook: how many, how fast, which failed; policies, "
        "certificates, watches.",
        variables=[
            variables.datasource(),
            variables.cluster(),
            variables.webhook_job(),
            variables.runbooks(),
        ],
        annotations=[annotations.versions("webhook")],
        overview=_overview(),
        sections=[
            Section(title="Reviews", panels=_reviews()),
            Section(title="Errors and load", panels=_errors()),
            Section(title="What the API server sees", panels=_api_server()),
            Section(title="Policies", panels=_policies()),
            Section(title="Certificates, watches and processes", panels=_processes()),
        ],
    )


def _of_webhook(metric: str) -> str:
    """Return a metric that both services have, of the webhook's replicas."""
    return f"({metric}{{{CLUSTER}}} and on ({_TARGET}) {_INFO})"


def _quantile(quantile: float, by: str, window: str) -> str:
    buckets = f"rate(kaishare_webhook_request_duration_seconds_bucket{{{CLUSTER}}}[{window}])"
    return f"histogram_quantile({quantile}, sum by (cluster, {by}le) ({buckets}))"


def _within(limit: str, window: str, by: str = "cluster") -> str:
    """Return the part of the reviews that were answered within a bucket's limit."""
    series = "kaishare_webhook_request_duration_seconds"
    fast = f'{series}_bucket{{{CLUSTER}, le="{limit}"}}'
    return (
        f"sum by ({by}) (rate({fast}[{window}])) / "
        f"(sum by ({by}) (rate({series}_count{{{CLUSTER}}}[{window}])) > 0)"
    )


def _answered(window: str, seconds: str) -> str:
    """Return the part of the reviews that were neither shed nor failed in the webhook.

    A failure is counted by its stage, because a failed review of an enforcing webhook has no answer and no
    action (webhook/admission/handler.py). A stage without a series has not failed.
    """

    def counted(metric: str, where: str) -> str:
        return f"sum by (cluster) {began_or_grew(metric, where, window, seconds)}"

    answered = counted("kaishare_webhook_requests_total", _GOOD)
    shed = f"sum by (cluster) (increase(kaishare_webhook_shed_total{{{CLUSTER}}}[{window}]))"
    failed = counted("kaishare_webhook_errors_total", _FAILED)
    bad = f"({shed} + ({failed} or 0 * {shed}))"
    good = f"({answered} or 0 * {shed})"
    return f"{good} / (({good} + {bad}) > 0)"


def _overview() -> list[model.Panel]:
    expiry = "kaishare_certificate_expiry_timestamp_seconds"
    return [
        number(
            "Replicas that answer",
            "How many replicas does Prometheus reach? Red at 0: new pods are probably admitted without "
            "queue and share; see KaishareWebhookDown in docs/runbooks.md. unknown: no target's job matches "
            "$webhook_job.",
            f"sum by (cluster) ({WEBHOOK_UP})",
            limits=red_below(1),
        ),
        number(
            "Reviews per second",
            "How many admission reviews does the webhook answer? No reviews for long, while pods are "
            "created: the webhook is not called; see the row What the API server sees.",
            f"sum by (cluster) ({rate('kaishare_webhook_requests_total')})",
            unit=RATE,
        ),
        number(
            "Answered without a failure",
            "Which part of the reviews in the selected time got an answer, and neither an error of the "
            "webhook nor a 503? Objective: 99.9 %. Red below: pods were admitted unchanged; see the row "
            "Errors and load. Reviews that never reached the webhook are in the row What the API server "
            "sees.",
            _answered("$__range", "$__range_s"),
            unit=RATIO,
            limits=red_below(0.999),
            no_value="no reviews, or unknown",
        ),
        number(
            "Answered within 100 ms",
            "Which part of the reviews in the selected time was answered within 100 ms? Objective: 99 %. "
            "Red below: creating pods is slow; see the row Reviews.",
            _within("0.1", "$__range"),
            unit=RATIO,
            limits=red_below(0.99),
            no_value="no reviews, or unknown",
        ),
        number(
            "Shed in the last hour",
            "How many reviews were answered with 503 because too many were in progress? Orange: see "
            "KaishareReviewsShed in docs/runbooks.md.",
            f"round(sum by (cluster) (increase(kaishare_webhook_shed_total{{{CLUSTER}}}[1h])))",
            limits=orange_from(1),
        ),
        number(
            "Reviews in progress",
            "How many reviews are in progress now, in all replicas? Many for long: the webhook is too slow "
            "or gets too much.",
            f"sum by (cluster) (kaishare_webhook_in_flight{{{CLUSTER}}})",
        ),
        number(
            "Errors since the start",
            "How many errors did the replicas count since they started, in reviews and elsewhere? No value: "
            "none. Orange: the row Errors and load shows the stage; see KaishareWebhookErrors in "
            "docs/runbooks.md.",
            f"sum by (cluster) (kaishare_webhook_errors_total{{{CLUSTER}}})",
            limits=orange_from(1),
            no_value="none, or unknown",
        ),
        number(
            "Admitted without the webhook, last hour",
            "How many requests did the API server admit because the webhook did not answer? Needs the API "
            "server's metrics. Red: pods have no queue and share; see KaishareFailedOpen in "
            "docs/runbooks.md. No value: none was counted since the API server started, or its metrics "
            "of the hour are missing.",
            known_or_zero(
                f"round(sum by (cluster) {began_or_grew(_FAIL_OPEN, _API_SERVER, '1h', '3600')})",
                f"{_FAIL_OPEN}{{{_API_SERVER}}} offset 1h",
            ),
            limits=red_from(1),
            no_value="none, or unknown",
        ),
        number(
            "Called before KAI",
            "Is the webhook called before KAI's? 1: yes. Red at 0: KAI does not see the shares; see "
            "KaishareOrderWrong in docs/runbooks.md. unknown: policies come from files.",
            f"min by (cluster) (kaishare_webhook_order_ok{{{CLUSTER}}})",
            limits=red_below(1),
        ),
        number(
            "Ignored labels",
            "How many policy labels have a value that is not allowed, and are ignored? Orange: the row "
            "Policies names them.",
            known_or_zero(
                "count by (cluster) (count by (cluster, namespace, label) "
                f"(kaishare_webhook_policy_invalid{{{CLUSTER}}}))",
                f"kaishare_webhook_policies{{{CLUSTER}}}",
            ),
            limits=orange_from(1),
        ),
        number(
            "First certificate ends in",
            "When does the first serving certificate or CA end? Red below 2 days: it was not renewed; see "
            "KaishareServingCertificateEnding and KaishareCAEnding in docs/runbooks.md.",
            f"min by (cluster) ({expiry}{{{CLUSTER}}} - time())",
            unit=SECONDS,
            limits=red_below(2 * _DAY),
        ),
        number(
            "Oldest contact with the API server",
            "How long has a watch been silent? A healthy watch restarts every 40 s. Red from 5 minutes: "
            "policies are out of date; see KaishareWatchStale in docs/runbooks.md. unknown: policies come "
            "from files.",
            f"max by (cluster) (time() - {_of_webhook('kaishare_watch_last_contact_timestamp_seconds')})",
            unit=SECONDS,
            limits=red_from(300),
        ),
        lines(
            "Reviews, by action",
            "What does the webhook do? docs/metrics.md explains each action. error: kaishare failed, and a "
            "pod was admitted unchanged.",
            Query(
                expr=f"sum by (cluster, webhook, action) ({rate('kaishare_webhook_requests_total')})",
                legend="{{cluster}} {{webhook}} {{action}}",
            ),
            unit=RATE,
        ),
        lines(
            "Time to answer",
            "How long do reviews take, from the complete request to the complete answer? The API server "
            "waits for the configured timeout, and then admits the pod unchanged.",
            *(
                Query(expr=_quantile(quantile, "", "$__rate_interval"), legend=f"{label} {{{{cluster}}}}")
                for quantile, label in ((0.5, "half"), (0.9, "90 %"), (0.99, "99 %"))
            ),
            unit=SECONDS,
            limits=orange_from(0.1),
        ),
        rows(
            "Alerts about the webhook",
            "Which alerts about the webhook are pending or firing? Each has a section in docs/runbooks.md.",
            TableLayout(
                labels=("cluster", "alertname", "alertstate", "severity", "namespace", "name", "runbook"),
                links=(links.to_runbook(),),
            ),
            Column(
                title="active",
                expr=links.with_runbook(
                    "sum by (cluster, alertname, alertstate, severity, namespace, name) "
                    f'(ALERTS{{{CLUSTER}, alertname=~"{_ALERTS}"}})'
                ),
            ),
            no_value="none",
            height=6,
        ),
    ]


def _reviews() -> list[model.Panel]:
    return [
        lines(
            "Reviews, by reason",
            "Why are pods changed, left alone or denied? The ten most frequent reasons of each cluster; "
            "docs/policy.md explains them.",
            Query(
                expr="topk by (cluster) "
                f"(10, sum by (cluster, reason) ({rate('kaishare_webhook_requests_total')}))",
                legend="{{cluster}} {{reason}}",
            ),
            unit=RATE,
            width=8,
        ),
        lines(
            "Time to answer, 99 %, by webhook",
            "Which of the three webhooks is slow?",
            Query(
                expr=_quantile(0.99, "webhook, ", "$__rate_interval"),
                legend="{{cluster}} {{webhook}}",
            ),
            unit=SECONDS,
            width=8,
        ),
        lines(
            "Answered within 100 ms and within 25 ms",
            "Is the objective of 99 % within 100 ms kept? Below the line it is not.",
            Query(expr=_within("0.1", "$__rate_interval"), legend="100 ms {{cluster}}"),
            Query(expr=_within("0.025", "$__rate_interval"), legend="25 ms {{cluster}}"),
            unit=RATIO,
            limits=red_below(0.99),
            width=8,
        ),
        rows(
            "Reviews since the start, by action and reason",
            "What has the webhook done since its replicas started?",
            TableLayout(labels=("cluster", "webhook", "action", "reason"), sort_by="reviews"),
            *largest(
                100,
                Column(title="reviews", expr=f"sum by (cluster, webhook, action, reason) ({_REQUESTS})"),
            ),
        ),
    ]


def _errors() -> list[model.Panel]:
    return [
        lines(
            "Errors, by stage",
            "Where does the webhook fail? docs/metrics.md explains each stage; decode, slow-body and "
            "too-large are unusable requests of other clients. No line: none since the start.",
            Query(
                expr=f"sum by (cluster, stage) ({rate('kaishare_webhook_errors_total')})",
                legend="{{cluster}} {{stage}}",
            ),
            unit=RATE,
            width=8,
        ),
        lines(
            "Shed reviews",
            "When were there too many reviews at once? Each was answered with 503; the API server retries.",
            Query(
                expr=f"sum by (cluster) ({rate('kaishare_webhook_shed_total')})", legend="shed {{cluster}}"
            ),
            unit=RATE,
            width=8,
        ),
        lines(
            "Reviews in progress, by replica",
            "Is the load spread over the replicas?",
            Query(
                expr=f"max by (cluster, instance) (kaishare_webhook_in_flight{{{CLUSTER}}})",
                legend="{{cluster}} {{instance}}",
            ),
            width=8,
        ),
    ]


def _api_server() -> list[model.Panel]:
    prefix = "apiserver_admission_webhook"
    return [
        lines(
            "Admitted without the webhook",
            "Which requests passed because the webhook gave no usable answer in time? Only the API server "
            "knows; needs its metrics, and for webhooks in vClusters those of the vClusters.",
            Query(
                expr=f"sum by (cluster, name) ({rate(f'{prefix}_fail_open_count', _API_SERVER)})",
                legend="{{cluster}} {{name}}",
            ),
            unit=RATE,
            width=6,
        ),
        lines(
            "Failures of the admission policy",
            "How often did kaishare's MutatingAdmissionPolicy fail, so that the API server admitted a pod "
            "unchanged? No line: never since its start, or the webhook decides about pods.",
            Query(
                expr=f"sum by (cluster, error_type) ({rate(_POLICY_CHECKS, _FAILED_CHECKS)})",
                legend="{{cluster}} {{error_type}}",
            ),
            unit=RATE,
            width=6,
        ),
        lines(
            "Refused, by cause",
            "Which requests were refused? no_error: a denial of the webhook. calling_webhook_error: no "
            "usable answer under failurePolicy Fail. apiserver_internal_error: a patch that does not apply, "
            "a defect of kaishare.",
            Query(
                expr=f"sum by (cluster, name, error_type) ({rate(f'{prefix}_rejection_count', _API_SERVER)})",
                legend="{{cluster}} {{name}} {{error_type}}",
            ),
            unit=RATE,
            width=6,
        ),
        lines(
            "Time the API server waits, 99 %",
            "How much time do reviews take with the network, as the API server measures it? Far above Time "
            "to answer: the network or TLS is slow.",
            Query(
                expr="histogram_quantile(0.99, sum by (cluster, name, le) "
                f"({rate(f'{prefix}_admission_duration_seconds_bucket', _API_SERVER)}))",
                legend="{{cluster}} {{name}}",
            ),
            unit=SECONDS,
            width=6,
        ),
    ]


def _policies() -> list[model.Panel]:
    return [
        lines(
            "Pods in mode observe, by reason",
            "What would the webhook change in namespaces with mode observe? It counts these pods and changes "
            "none; docs/start/cluster-in-use.md says how to go on. No line: no such pod since the start.",
            Query(
                expr=f"sum by (cluster, reason) ({rate('kaishare_webhook_requests_total', _OBSERVED)})",
                legend="{{cluster}} {{reason}}",
            ),
            unit=RATE,
        ),
        lines(
            "Managed namespaces, by state of their policy",
            "How many namespaces have a policy, and how many policies are invalid or off?",
            Query(
                expr=f"max by (cluster, state) (kaishare_webhook_policies{{{CLUSTER}}})",
                legend="{{cluster}} {{state}}",
            ),
        ),
        rows(
            "Invalid labels",
            "Which labels of which namespaces are ignored? docs/policy.md has the allowed values; the owner "
            "of the namespace also has an Event PolicyInvalid.",
            TableLayout(labels=("cluster", "namespace", "label"), links=(links.to_namespace(),)),
            Column(
                title="ignored",
                expr=f"max by (cluster, namespace, label) (kaishare_webhook_policy_invalid{{{CLUSTER}}})",
            ),
            width=12,
        ),
    ]


def _processes() -> list[model.Panel]:
    return [
        rows(
            "Certificates",
            "When do the certificates end? serving: the first of all replicas, renewed with more than 2 "
            "days left. ca: absent if the webhook does not manage it. Red below 2 days.",
            TableLayout(labels=("cluster", "kind")),
            Column(
                title="ends in",
                expr="min by (cluster, kind) "
                f"(kaishare_certificate_expiry_timestamp_seconds{{{CLUSTER}}}) - time()",
                unit=SECONDS,
                limits=red_below(2 * _DAY),
            ),
            width=8,
        ),
        rows(
            "Changes of certificates since the start",
            "What did the replicas do about certificates? failed: see KaishareCertificateRotationFailing in "
            "docs/runbooks.md.",
            TableLayout(labels=("cluster", "result"), sort_by="changes"),
            Column(
                title="changes",
                expr=f"sum by (cluster, result) (kaishare_certificate_rotations_total{{{CLUSTER}}})",
            ),
            no_value="none, or certificates are given",
            width=8,
        ),
        rows(
            "Replicas",
            "Which replicas run, and in which version?",
            TableLayout(labels=("cluster", "instance", "version")),
            Column(title="runs", expr=f"max by (cluster, instance, version) ({_INFO})"),
            width=8,
        ),
        lines(
            "Time since the last contact, by watch",
            "Does each replica hear from the API server? A healthy watch restarts every 40 s.",
            Query(
                expr="max by (cluster, instance, resource) (time() - "
                f"{_of_webhook('kaishare_watch_last_contact_timestamp_seconds')})",
                legend="{{cluster}} {{instance}} {{resource}}",
            ),
            unit=SECONDS,
            limits=red_from(300),
            width=8,
        ),
        lines(
            "Watch restarts, by cause",
            "Why do watches restart? closed is the normal timeout.",
            Query(
                expr="sum by (cluster, resource, cause) (rate(kaishare_watch_restarts_total"
                f"{{{CLUSTER}}}[$__rate_interval]) and on ({_TARGET}) {_INFO})",
                legend="{{cluster}} {{resource}} {{cause}}",
            ),
            unit=RATE,
            width=8,
        ),
        lines(
            "Lost log lines",
            "Does the log have gaps? Lines that a replica dropped because standard error was full or closed.",
            Query(
                expr=f"max by (cluster, instance) {_of_webhook('kaishare_log_lines_lost_total')}",
                legend="{{cluster}} {{instance}}",
            ),
            width=8,
        ),
        lines(
            "Memory, by replica",
            "Does a replica grow? Resident memory.",
            Query(
                expr=f"max by (cluster, instance) {_of_webhook('process_resident_memory_bytes')}",
                legend="{{cluster}} {{instance}}",
            ),
            unit=BYTES,
        ),
        lines(
            "CPU, by replica",
            "How much CPU do the replicas take? 1 is one core.",
            Query(
                expr="max by (cluster, instance) (rate(process_cpu_seconds_total"
                f"{{{CLUSTER}}}[$__rate_interval]) and on ({_TARGET}) {_INFO})",
                legend="{{cluster}} {{instance}}",
            ),
        ),
    ]


_ALERTS: Final = (
    "Kaishare(Webhook|FailedOpen|Patch|Enforce|Order|Policy|Serving|CA|Certificate|Reviews|Watch).*"
)
