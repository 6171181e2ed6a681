"""The webhook's Prometheus metrics; docs/metrics.md describes each of them."""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from kube.watch import Watch
from service.log import JsonLog
from service.tasks import restart_on_error
from service.version import version
from webhook.policy.labels import NamespacePolicy, with_queue_problem
from webhook.policy.reasons import Action, Reason

BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Upper bounds in seconds.

The API server's smallest bucket is 5 ms, so the lower ones resolve shorter times.
"""

STATES = ("valid", "invalid", "off")


class _Families(Collector):
    """Exports the families of a function, which is called at every scrape."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


class Metrics:
    """All metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "kaishare_webhook_requests",
            "Admission reviews answered, by action and reason.",
            ["webhook", "action", "reason"],
            registry=self.registry,
        )
        self.framework_options = Counter(
            "kaishare_webhook_framework_options",
            "Memory options of frameworks set in pods, by framework.",
            ["framework"],
            registry=self.registry,
        )
        self._duration = Histogram(
            "kaishare_webhook_request_duration_seconds",
            "Time from the complete request body to the complete answer.",
            ["webhook"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.in_flight = 0
        """Number of admission reviews in progress; a plain integer, because only one thread uses it."""
        in_flight = Gauge(
            "kaishare_webhook_in_flight",
            "Admission reviews that wait for their turn or are being answered.",
            registry=self.registry,
        )
        in_flight.set_function(lambda: self.in_flight)
        self._children: dict[tuple[str, Action, Reason], tuple[Counter, Histogram]] = {}
        self._errors = Counter(
            "kaishare_webhook_errors",
            "Failed reviews and failed updates of policies, certificates and cluster facts, by stage.",
            ["stage"],
            registry=self.registry,
        )
        self.shed = Counter(
            "kaishare_webhook_shed",
            "Reviews answered with 503 because too many were in progress, or they waited too long.",
            registry=self.registry,
        )
        self.certificate_expiry = Gauge(
            "kaishare_certificate_expiry_timestamp_seconds",
            "Expiry time of each certificate in use.",
            ["kind"],
            registry=self.registry,
        )
        self.certificate_rotations = Counter(
            "kaishare_certificate_rotations",
            "Certificate and CA changes made by this replica, by result.",
            ["result"],
            registry=self.registry,
        )
        build = Info("kaishare_build", "Version of the running program.", registry=self.registry)
        build.info({"version": version(), "component": "webhook"})
        self._watches: list[Watch[Any]] = []

    def show_log(self, lines_lost: Callable[[], int]) -> None:
        """Export the number of lost log lines; `lines_lost` must be safe to call from any thread."""

        def families() -> Iterator[Metric]:
            text = "Log lines dropped because standard error was full, closed or not read."
            yield CounterMetricFamily("kaishare_log_lines_lost", text, value=lines_lost())

        self.registry.register(_Families(families))

    def show_policies(
        self,
        policies: Callable[[], Mapping[str, NamespacePolicy] | None],
        queues: Callable[[], frozenset[str] | None] = lambda: None,
    ) -> None:
        """Export the state of policies; both must be thread-safe, and policies of None export nothing."""
        self.registry.register(_Families(partial(_policies, policies, queues)))

    def show_order(self, is_ok: Callable[[], bool | None]) -> None:
        """Export whether KAI's webhooks are called after kaishare's; None (unknown) exports nothing."""

        def families() -> Iterator[Metric]:
            order = GaugeMetricFamily(
                "kaishare_webhook_order_ok",
                "1 if webhooks that match on schedulerName are called after kaishare's, else 0.",
            )
            state = is_ok()
            if state is not None:
                order.add_metric([], float(state))
            yield order

        self.registry.register(_Families(families))

    def show_watch(self, watch: Watch[Any]) -> None:
        """Export the last contact and the restarts of a watch."""
        if not self._watches:
            self.registry.register(_Families(partial(_watch_contacts, self._watches)))
        self._watches.append(watch)

    def answered(self, webhook: str, action: Action, reason: Reason, seconds: float) -> None:
        """Count one answer."""
        key = (webhook, action, reason)
        children = self._children.get(key)
        if children is None:  # bounded, because actions and reasons are enums
            children = self._children[key] = (
                self._requests.labels(webhook, action.value, reason.code),
                self._duration.labels(webhook),
            )
        children[0].inc()
        children[1].observe(seconds)

    def failed(self, stage: str) -> None:
        """Count one internal failure, or one unreadable request body (stage `decode`)."""
        self._errors.labels(stage).inc()

    def supervised(
        self, work: Callable[[], Awaitable[None]], *, stage: str, log: JsonLog
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return a task that restarts `work` after each unexpected error, which is counted and logged."""

        def failed(error: Exception) -> None:
            self.failed(stage)
            log.failure("internal error", error, stage=stage)

        return partial(restart_on_error, work, on_error=failed)

    def text(self) -> bytes:
        """Render all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def _policies(
    policies: Callable[[], Mapping[str, NamespacePolicy] | None],
    queues: Callable[[], frozenset[str] | None],
) -> Iterator[Metric]:
    """Yield policies by state, rebuilt at every scrape so that no series of a deleted namespace stays."""
    by_state = GaugeMetricFamily(
        "kaishare_webhook_policies", "Managed namespaces by policy state.", labels=["state"]
    )
    invalid = GaugeMetricFamily(
        "kaishare_webhook_policy_invalid",
        "1 for each policy label that is invalid, or names a queue that KAI does not have for pods.",
        labels=["namespace", "label"],
    )
    managed = policies()
    if managed is not None:
        counts = dict.fromkeys(STATES, 0)
        known = queues()
        for name, policy in ((name, with_queue_problem(each, known)) for name, each in managed.items()):
            counts[policy.state] += 1
            for label in sorted({problem.label for problem in policy.problems}):
                invalid.add_metric([name, label], 1)
        for state, count in counts.items():
            by_state.add_metric([state], count)
    yield by_state
    yield invalid


def _watch_contacts(watches: Sequence[Watch[Any]]) -> Iterator[Metric]:
    """Yield the last contact and the restarts of every watch."""
    contact = GaugeMetricFamily(
        "kaishare_watch_last_contact_timestamp_seconds",
        "Time of the last message from the API server on this watch.",
        labels=["resource"],
    )
    restarts = CounterMetricFamily(
        "kaishare_watch_restarts",
        "Watch restarts by cause; closed is the normal timeout.",
        labels=["resource", "cause"],
    )
    for watch in watches:
        if watch.last_contact is not None:
            contact.add_metric([watch.resource.name], watch.last_contact)
        for cause, count in sorted(dict(watch.restarts).items()):
            restarts.add_metric([watch.resource.name, cause], count)
    yield contact
    yield restarts
