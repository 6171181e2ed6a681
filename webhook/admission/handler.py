"""What the three webhooks have in common: a review in, one answer out, counted and logged."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, Protocol

from msgspec import Struct

from service.log import ERROR, INFO, JsonLog
from webhook.admission.deadlines import Deadline
from webhook.admission.review import BadReview, Review, decode
from webhook.metrics import Metrics
from webhook.namespaces.source import PolicyUnknown
from webhook.policy.reasons import Action, Finding, Reason


class Outcome(Struct, frozen=True, kw_only=True):
    """What to tell the API server, and what to say of it elsewhere."""

    action: Action
    finding: Finding
    body: bytes
    pod: str = ""
    """The pod's name, or the start of one that is still to be made, where the review has none."""
    fields: dict[str, Any] = {}
    """More for the log; never a value from a pod's containers."""


class AdmissionWebhook(Protocol):
    """One webhook's own part."""

    @property
    def name(self) -> str:
        """The `webhook` label of metrics, and the `stage` of its errors."""

    def review(self, review: Review) -> Awaitable[Outcome]:
        """Answer a review.

        Raises:
            BadReview: its object cannot be read, and no answer would be right.
            webhook.namespaces.source.PolicyUnknown: its namespace's policy cannot be had now.
        """

    def on_error(self, review: Review, finding: Finding) -> Outcome | None:
        """Answer after an error of ours; None leaves it to the failurePolicy."""


class LeaveToFailurePolicy(Exception):
    """An error of ours in a webhook that may leave the answer to its failurePolicy.

    It is already logged; the message says as much as its caller may know.
    """


class ReviewHandler:
    """Answers reviews on one path."""

    def __init__(self, judge: AdmissionWebhook, *, metrics: Metrics, log: JsonLog) -> None:
        self._judge = judge
        self._metrics = metrics
        self._log = log

    async def answer(self, body: bytes, request_id: str, deadline: Deadline | None = None) -> bytes:
        """Answer an AdmissionReview.

        Args:
            body: the review.
            request_id: what the log calls this request.
            deadline: until when the API server waits; None: nobody said.

        Raises:
            BadReview: the body cannot be answered at all.
            Unanswered: an error of ours, which the failurePolicy is to settle.
        """
        started = time.perf_counter()
        judge = self._judge
        try:
            review = decode(body)
        except BadReview:
            self._metrics.failed("decode")
            raise
        try:
            answer = await judge.review(review)
        except BadReview:
            self._metrics.failed("decode")
            raise
        except asyncio.CancelledError as error:
            if deadline is None or not deadline.caused():
                raise
            answer = self._failed("timeout", error, review, request_id)
        except PolicyUnknown as error:
            self._metrics.failed("policies")
            self._log("policy unknown", ERROR, request=request_id, problem=str(error), **_names(review, ""))
            answer = self._settled(review, Finding(Reason.POLICY_UNKNOWN, {"problem": error}))
        except Exception as error:  # noqa: BLE001 - whatever it is, the judge knows what is safe
            answer = self._failed(judge.name, error, review, request_id)
        took = time.perf_counter() - started
        self._metrics.answered(judge.name, answer.action, answer.finding.reason, took)
        self._log(
            "decision",
            ERROR if answer.action is Action.ERROR else INFO,
            webhook=judge.name,
            request=request_id,
            **_names(review, answer.pod),
            action=answer.action.value,
            reason=answer.finding.reason.code,
            detail=answer.finding.sentence,
            **answer.fields,
            milliseconds=round(took * 1000, 3),
        )
        return answer.body

    def _failed(self, stage: str, error: BaseException, review: Review, request_id: str) -> Outcome:
        """Count and log an error of ours; return the answer that is safe, if there is one."""
        self._metrics.failed(stage)
        self._log.failure("internal error", error, request=request_id, stage=stage, **_names(review, ""))
        return self._settled(review, Finding(Reason.INTERNAL_ERROR))

    def _settled(self, review: Review, finding: Finding) -> Outcome:
        """Return the answer that is safe after an error of ours, if there is one."""
        settled = self._judge.on_error(review, finding)
        if settled is None:
            raise LeaveToFailurePolicy(finding.sentence) from None
        return settled


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
