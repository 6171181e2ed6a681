"""The webhook's metrics; docs/metrics.md describes each. Every server has a registry of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from kube.watch import Watch
from service.version import version
from webhook.policy.labels import NamespacePolicy
from webhook.policy.reasons import Action, Reason

BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds. The API server's own first bucket is 5 ms; ours resolve what lies below it."""

STATES = ("valid", "invalid", "off")


class Metrics:
    """Everything the webhook counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "kaishare_webhook_requests",
            "Admission reviews answered, by what was done and why.",
            ["webhook", "action", "reason"],
            registry=self.registry,
        )
        self._duration = Histogram(
            "kaishare_webhook_request_duration_seconds",
            "Time from the whole body to the whole answer.",
            ["webhook"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.in_flight = 0
        """Admission reviews being answered now; a plain number, since one thread counts and reads it."""
        in_flight = Gauge(
            "kaishare_webhook_in_flight", "Admission reviews being answered now.", registry=self.registry
        )
        in_flight.set_function(lambda: self.in_flight)
        self._children: dict[tuple[str, Action, Reason], tuple[Counter, Histogram]] = {}
        self._errors = Counter(
            "kaishare_webhook_errors",
            "Reviews that could not be answered as meant, and changes that could not be taken up, by stage.",
            ["stage"],
            registry=self.registry,
        )
        self.shed = Counter(
            "kaishare_webhook_shed",
            "Reviews answered 503 because too many were being answered.",
            registry=self.registry,
        )
        self.certificate_expiry = Gauge(
            "kaishare_certificate_expiry_timestamp_seconds",
            "When a certificate in use ends.",
            ["kind"],
            registry=self.registry,
        )
        self.certificate_rotations = Counter(
            "kaishare_certificate_rotations",
            "What this replica did to certificates, by result.",
            ["result"],
            registry=self.registry,
        )
        build = Info("kaishare_build", "What is running.", registry=self.registry)
        build.info({"version": version(), "component": "webhook"})
        self._watches: list[Watch[Any]] = []

    def show_log(self, lines_lost: Callable[[], int]) -> None:
        """Show how many log lines were lost, which may be read from any thread."""
        self.registry.register(_Log(lines_lost))

    def show_policies(self, policies: Callable[[], Mapping[str, NamespacePolicy] | None]) -> None:
        """Show managed namespaces, which may be read from any thread; nothing while there is None."""
        self.registry.register(_Policies(policies))

    def show_order(self, is_ok: Callable[[], bool | None]) -> None:
        """Show whether KAI is called after us; nothing while that is not known."""
        self.registry.register(_Order(is_ok))

    def show_watch(self, watch: Watch[Any]) -> None:
        """Show how a watch fares."""
        if not self._watches:
            self.registry.register(_Watches(self._watches))
        self._watches.append(watch)

    def answered(self, webhook: str, action: Action, reason: Reason, seconds: float) -> None:
        """Count one answer."""
        key = (webhook, action, reason)
        children = self._children.get(key)
        if children is None:  # a bounded set: both enums are
            children = self._children[key] = (
                self._requests.labels(webhook, action.value, reason.code),
                self._duration.labels(webhook),
            )
        children[0].inc()
        children[1].observe(seconds)

    def failed(self, stage: str) -> None:
        """Count one failure of ours, or one body that could not be read (stage `decode`)."""
        self._errors.labels(stage).inc()

    def text(self) -> bytes:
        """Render everything in Prometheus' text format."""
        return generate_latest(self.registry)


class _Policies(Collector):
    """Policies by state, built fresh at every scrape: a namespace that is gone leaves no series behind."""

    def __init__(self, policies: Callable[[], Mapping[str, NamespacePolicy] | None]) -> None:
        self._read = policies

    def collect(self) -> Iterable[Metric]:
        by_state = GaugeMetricFamily(
            "kaishare_webhook_policies", "Managed namespaces, by the state of their policy.", labels=["state"]
        )
        invalid = GaugeMetricFamily(
            "kaishare_webhook_policy_invalid",
            "1 for each policy label whose value is ignored because it is not allowed.",
            labels=["namespace", "label"],
        )
        policies = self._read()
        if policies is not None:
            counts = dict.fromkeys(STATES, 0)
            for name, policy in policies.items():
                counts[policy.state] += 1
                for label in sorted({problem.label for problem in policy.problems}):
                    invalid.add_metric([name, label], 1)
            for state, count in counts.items():
                by_state.add_metric([state], count)
        yield by_state
        yield invalid


class _Log(Collector):
    """The log's own losses."""

    def __init__(self, lines_lost: Callable[[], int]) -> None:
        self._lines_lost = lines_lost

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(
            "kaishare_log_lines_lost",
            "Log lines dropped because standard error was full, closed or not read.",
            value=self._lines_lost(),
        )


class _Order(Collector):
    """The order of mutating webhooks."""

    def __init__(self, is_ok: Callable[[], bool | None]) -> None:
        self._is_ok = is_ok

    def collect(self) -> Iterable[Metric]:
        order = GaugeMetricFamily(
            "kaishare_webhook_order_ok",
            "0 while a webhook that looks at schedulerName is called before ours and so misses our pods.",
        )
        is_ok = self._is_ok()
        if is_ok is not None:
            order.add_metric([], float(is_ok))
        yield order


class _Watches(Collector):
    """What the API server was last heard to say of what is watched."""

    def __init__(self, watches: Sequence[Watch[Any]]) -> None:
        self._watches = watches

    def collect(self) -> Iterable[Metric]:
        contact = GaugeMetricFamily(
            "kaishare_watch_last_contact_timestamp_seconds",
            "When the API server was last heard on this watch.",
            labels=["resource"],
        )
        restarts = CounterMetricFamily(
            "kaishare_watch_restarts",
            "How often the watch began anew; cause closed is the ordinary end of one.",
            labels=["resource", "cause"],
        )
        for watch in self._watches:
            if watch.last_contact is not None:
                contact.add_metric([watch.resource.name], watch.last_contact)
            for cause, count in sorted(dict(watch.restarts).items()):
                restarts.add_metric([watch.resource.name, cause], count)
        yield contact
        yield restarts
