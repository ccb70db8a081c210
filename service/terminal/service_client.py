"""Reads the views of a service over REST, with one key; each failure is one line with a next step.

The key is sent only to the given address, and never printed.
"""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx2

from schemas.operator_error import OperatorError
from schemas.version import VERSION
from service.commands.service_address import (
    API_PATH,
    TIMEOUT,
)
from service.terminal.retry import TransientError, parse_retry_after
from verifier.bounded_answers import fetch, parse_object
from verifier.errors import format_one_line

USER_AGENT = f"signals/{VERSION}"
TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
NO_KEY = (
    "SIGNALS_API_KEY is not set: set it to your API key. The operator of a service creates one "
    "with `signals keys create --label me`"
)

Json = dict[str, Any]


class ServiceError(OperatorError):
    """A refused or failed call that would fail again."""


class Answer(NamedTuple):
    """The body of a response, its text as sent, and when it was sent in epoch ms, if it says so."""

    body: Json
    text: str
    sent_at: int | None


class ServiceClient:
    """Reads views. A call that may succeed later raises TransientError, any other ServiceError."""

    def __init__(self, address: str, api_key: str) -> None:
        """`address` is the base address of the service; ServiceError if the key is empty."""
        if not api_key:
            raise ServiceError(NO_KEY)
        self._address = address
        self._api_key = api_key
        self._http = httpx2.AsyncClient(
            base_url=address + API_PATH,
            headers={"User-Agent": USER_AGENT, "Authorization": f"Bearer {api_key}"},
            follow_redirects=False,
            timeout=TIMEOUT,
            # Loading the trusted certificates takes longer than the call, and http needs none.
            verify=address.startswith("https:"),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def read_view(self, view: str, arguments: Mapping[str, str]) -> Answer:
        """Return the answer of a view such as `state`."""
        try:
            response = await fetch(self._http, "GET", f"/{view}", params=arguments)
        except httpx2.HTTPError as error:
            reason = f"{type(error).__name__} {error}".strip()
            raise TransientError(
                self._format(
                    f"{self._address} did not answer: {reason}. Start the service there "
                    "(`signals serve`), or set --url to the address of a service"
                )
            ) from None
        return self._parse(response)

    def _parse(self, response: httpx2.Response) -> Answer:
        body = parse_object(response.content)
        if response.status_code == 200 and body is not None:
            return Answer(body, response.content.decode(), _find_send_time(response))
        text = self._format(self._describe_refusal(response, body or {}))
        if response.status_code in TRANSIENT_STATUSES:
            raise TransientError(text, parse_retry_after(response))
        raise ServiceError(text)

    def _describe_refusal(self, response: httpx2.Response, body: Json) -> str:
        status = response.status_code
        if response.has_redirect_location:
            return (
                f"{self._address} answered {status}, a redirect to "
                f"{response.headers['location']}, which is not followed, to keep the API key "
                "private. If you trust that address, set --url to it"
            )
        if isinstance(body.get("message"), str):
            hint = " Check the key in SIGNALS_API_KEY." if status in (401, 403) else ""
            return f"{self._address} answered {status}: {body['message']}{hint}"
        kind = response.headers.get("content-type", "without a content type")
        return (
            f"{self._address} answered {status} without an answer of the API ({kind}); is --url "
            "the address of a signal service?"
        )

    def _format(self, text: str) -> str:
        return format_one_line(text, self._api_key)


def _find_send_time(response: httpx2.Response) -> int | None:
    """Return when a response was sent, by the clock of the service; None if it does not say so."""
    try:
        sent_at = parsedate_to_datetime(response.headers["date"])
        return int(sent_at.timestamp() * 1000)
    except (KeyError, ValueError, OverflowError):
        return None
