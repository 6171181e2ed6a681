"""The common part of the three webhooks: decodes a review, calls the webhook, counts and logs the answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from service.log import ERROR, INFO, JsonLog
from webhook.admission.review import BadReview, Review, allow, decode
from webhook.metrics import Metrics
from webhook.namespaces.policy_source import PolicyUnknown
from webhook.policy.reasons import Action, Finding, Reason


class Outcome(Struct, frozen=True, kw_only=True):
    """The answer to a review, and its description for metrics and log."""

    action: Action
    finding: Finding
    body: bytes
    pod: str = ""
    """The pod's name or its generateName, for reviews that carry no name."""
    fields: Callable[[], dict[str, Any]] = dict
    """Returns additional log fields. They never contain a value from a pod's containers."""

    @classmethod
    def admit(
        cls, review: Review, action: Action, finding: Finding, *, pod: str = "", warnings: Sequence[str] = ()
    ) -> "Outcome":
        """Return the answer that admits the object as it is."""
        return cls(action=action, finding=finding, body=allow(review.uid, warnings=warnings), pod=pod)


class AdmissionWebhook(Protocol):
    """One of the three webhooks."""

    @property
    def name(self) -> str:
        """The `webhook` label of metrics, and the `stage` of its errors."""

    def review(self, review: Review, peer: str) -> Awaitable[Outcome]:
        """Decide about a review that a peer sent, and encode the answer.

        Raises:
            BadReview: the object of the review cannot be read.
            webhook.namespaces.policy_source.PolicyUnknown: the policy of the namespace is not available now.
        """

    def on_error(self, review: Review, finding: Finding) -> Outcome | None:
        """Return the answer after an internal error; None leaves the answer to the failurePolicy."""


class ReviewFailed(Exception):
    """An internal error whose answer is left to the webhook's failurePolicy.

    The error is already logged. The message is safe to send to the API server.
    """


class ReviewHandler:
    """Answers the reviews of one path."""

    def __init__(self, webhook: AdmissionWebhook, *, metrics: Metrics, log: JsonLog) -> None:
        self._webhook = webhook
        self._metrics = metrics
        self._log = log

    async def answer(
        self, body: bytes, request_id: str, deadline: float | None = None, peer: str = ""
    ) -> bytes:
        """Answer an AdmissionReview that a peer sent; the API server waits until `deadline` (loop's clock).

        Raises:
            BadReview: the body is not a review that can be answered.
            ReviewFailed: an internal error, whose answer is left to the failurePolicy.
        """
        started = time.perf_counter()
        webhook = self._webhook
        try:
            review = decode(body)
        except BadReview:
            self._metrics.failed("decode")
            raise
        timeout = asyncio.timeout_at(deadline)
        try:
            async with timeout:
                answer = await webhook.review(review, peer)
        except BadReview:
            self._metrics.failed("decode")
            raise
        except PolicyUnknown as error:
            self._metrics.failed("policies")
            self._log("policy unknown", ERROR, request=request_id, problem=str(error), **_names(review, ""))
            answer = self._safe_outcome(review, Finding(Reason.POLICY_UNKNOWN, {"problem": error}))
        except Exception as error:  # noqa: BLE001 - after any error the webhook returns its safe answer
            stage = "timeout" if timeout.expired() else webhook.name
            answer = self._failed(stage, error, review, request_id)
        seconds = time.perf_counter() - started
        # The server sends the answer before the event loop's next turn, so the pod does not wait for the log.
        asyncio.get_running_loop().call_soon(self._record, review, answer, request_id, seconds)
        return answer.body

    def _record(self, review: Review, answer: Outcome, request_id: str, seconds: float) -> None:
        """Count and log an answer that took some seconds."""
        self._metrics.answered(self._webhook.name, answer.action, answer.finding.reason, seconds)
        try:
            fields = {"detail": answer.finding.sentence, **answer.fields()}
        except Exception as error:  # noqa: BLE001 - the answer is sent, and the log keeps its line
            self._metrics.failed("log")
            self._log.failure("internal error", error, request=request_id, stage="log")
            fields = {}
        self._log(
            "decision",
            ERROR if answer.action is Action.ERROR else INFO,
            webhook=self._webhook.name,
            request=request_id,
            **_names(review, answer.pod),
            action=answer.action.value,
            reason=answer.finding.reason.code,
            **fields,
            milliseconds=round(seconds * 1000, 3),
        )

    def _failed(self, stage: str, error: BaseException, review: Review, request_id: str) -> Outcome:
        """Count and log an internal error; return the webhook's safe answer."""
        self._metrics.failed(stage)
        self._log.failure("internal error", error, request=request_id, stage=stage, **_names(review, ""))
        return self._safe_outcome(review, Finding(Reason.INTERNAL_ERROR))

    def _safe_outcome(self, review: Review, finding: Finding) -> Outcome:
        """Return the webhook's safe answer after an internal error.

        Raises:
            ReviewFailed: the webhook leaves the answer to its failurePolicy.
        """
        outcome = self._webhook.on_error(review, finding)
        if outcome is None:
            raise ReviewFailed(finding.sentence) from None
        return outcome


def _names(review: Review, pod: str) -> dict[str, Any]:
    names: dict[str, Any] = {
        "uid": review.uid,
        "namespace": review.namespace,
        "name": review.name or pod,
        "user": review.username,
    }
    if review.dryRun:
        names["dry_run"] = True
    return names
