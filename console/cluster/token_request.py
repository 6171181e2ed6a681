"""Short-lived tokens of a service account for one audience, made by the API server's TokenRequest."""

import asyncio
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from service.http.authentication import is_token
from service.text import MALFORMED

TOKEN_SECONDS: Final = 600
"""Requested lifetime: the shortest one that API servers accept (TokenRequestSpec), and none gives less:
--service-account-max-token-expiration is an hour or more."""
REQUEST_SECONDS: Final = 5.0  # time limit of one TokenRequest
RETRY_SECONDS: Final = 10.0  # shortest time between two requests after a failure
REPLACE_SECONDS: Final = 60.0
"""Age from which a token that a server refuses is replaced: a server that refuses each token must not cause
more requests than one in this time."""

_KIND: Final = "TokenRequest"


class _TokenStatus(Struct):
    token: str


class _TokenRequest(Struct):
    kind: str
    status: _TokenStatus


class NoAnswer(Exception):
    """No answer, or a refusal; the message is one line without a token."""

    def __init__(self, message: str, *, missing_right: str = "") -> None:
        super().__init__(message)
        self.missing_right = missing_right  # that of the caller; empty if the cause is another one


class TokenUnavailable(NoAnswer):
    """The API server issued no token."""


class ServiceAccountTokens:
    """Keeps one token of a service account, and renews it after half of its lifetime.

    Concurrent callers wait for one request, and the first one is sent when a token is needed. A failed
    request is repeated after `RETRY_SECONDS` or later. `audience` is the only one of the tokens, so that the
    API server itself does not accept them. `clock` has monotonic seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        account: str,
        audience: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._clock, self._audience = client, clock, audience
        self._namespace, self._account = namespace, account
        self._lock = asyncio.Lock()  # held during a request; concurrent callers wait for its result
        self._token, self._issued_at = "", 0.0
        self._failure: TokenUnavailable | None = None
        self._retry_at = -float("inf")  # monotonic seconds until which the last failure counts

    async def token(self, refused: str = "") -> str:
        """Return a token, and another one than a server has refused unless that is recent.

        The server refuses a recent one for another reason than its age. Raises TokenUnavailable if the API
        server issues none and the last one has expired.
        """
        async with self._lock:
            now, is_refused = self._clock(), self._token == refused
            age = now - self._issued_at
            if self._token and age < (REPLACE_SECONDS if is_refused else TOKEN_SECONDS / 2):
                return self._token
            try:
                if self._failure is not None and now < self._retry_at:
                    raise self._failure.with_traceback(None)
                self._token, self._issued_at, self._failure = await self._request(), now, None
            except TokenUnavailable as error:
                if error is not self._failure:
                    self._failure, self._retry_at = error, self._clock() + RETRY_SECONDS
                if not self._token or is_refused or age >= TOKEN_SECONDS:
                    raise
            return self._token

    async def _request(self) -> str:
        namespace, account = quote(self._namespace, safe=""), quote(self._account, safe="")
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        spec = {"audiences": [self._audience], "expirationSeconds": TOKEN_SECONDS}
        body = msgspec.json.encode({"apiVersion": "authentication.k8s.io/v1", "kind": _KIND, "spec": spec})
        try:
            answer = await self._client.request("POST", path, body=body, seconds=REQUEST_SECONDS)
            made = msgspec.json.decode(answer, type=_TokenRequest)
        except ApiError as error:
            message, right = str(error), ""
            if error.is_forbidden:
                right = f"create serviceaccounts/token of {self._account} in {self._namespace}"
                message = f"the caller may not {right}"
            elif error.is_not_found:
                message = f"the service account {self._account} does not exist in {self._namespace}"
            raise TokenUnavailable(message, missing_right=right) from None
        except (Unreachable, AccessError) as error:
            raise TokenUnavailable(str(error)) from None
        except MALFORMED:  # the error's text may quote the answer
            made = None
        if made is None or made.kind != _KIND or not is_token(made.status.token):
            raise TokenUnavailable(f"POST {path}: the answer is not a {_KIND}")
        return made.status.token
