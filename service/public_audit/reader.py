"""Reads the public REST API as a customer's program would, with one key.

The key is sent only to the given address, and never printed.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import httpx2

from schemas.operator_error import OperatorError
from service.commands.service_address import parse_base_address
from service.public_audit.answers import Json
from verifier.client import API_PATH, TIMEOUT, fetch, parse_object
from verifier.report import format_one_line

KEYLESS_VIEWS = frozenset({"catalog", "stats", "openapi.json"})
DAILY_QUOTA = 10_000

OnProgress = Callable[[int, int], None]


class PublicAuditError(OperatorError):
    """The reason why a service could not be audited, in one line."""


class Reader:
    """Reads the views of one service; all failures are PublicAuditErrors.

    `expected_calls` is the estimated number of calls, for the progress bar.
    """

    def __init__(self, url: str, api_key: str, on_progress: OnProgress) -> None:
        if not api_key:
            raise PublicAuditError("SIGNALS_API_KEY is not set: set it to your API key")
        self._api_key = api_key
        self.address = parse_base_address(url, "--public")
        self.calls = 0
        self.counted_calls = 0
        self.expected_calls = 1
        self._on_progress = on_progress
        self._client = httpx2.AsyncClient(
            base_url=self.address + API_PATH,
            headers={"User-Agent": "signals-audit", "Accept": "application/json"},
            follow_redirects=False,
            timeout=TIMEOUT,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def read_view(self, view: str, **arguments: Any) -> Json:
        """Return the response body of a view; the key is sent only if the view needs it."""
        is_open = view in KEYLESS_VIEWS
        headers = {} if is_open else {"Authorization": f"Bearer {self._api_key}"}
        # A service whose pages never end would otherwise keep the audit reading forever.
        if self.counted_calls >= DAILY_QUOTA:
            raise self.build_error(
                f"the audit used {DAILY_QUOTA:,} calls, the daily quota: use fewer --days"
            )
        try:
            response = await fetch(
                self._client, "GET", f"/{view}", params=arguments, headers=headers
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = f"{type(error).__name__} {error}".strip()
            raise self.build_error(
                f"{self.address} did not answer {API_PATH}/{view}: {reason}"
            ) from None
        self.calls += 1
        self.counted_calls += not is_open
        self._on_progress(self.calls, max(self.calls, self.expected_calls))
        return self._parse_response(view, response)

    def format_line(self, text: str) -> str:
        """Return text that quotes responses as one printable line, without the key."""
        return format_one_line(text, self._api_key)

    def build_error(self, text: str) -> PublicAuditError:
        """Return an error with this text in one line."""
        return PublicAuditError(self.format_line(text))

    def _parse_response(self, view: str, response: httpx2.Response) -> Json:
        if 300 <= response.status_code < 400:
            target = response.headers.get("location", "nowhere")
            raise self.build_error(
                f"{self.address} redirects {API_PATH}/{view} to {target}; redirects are not "
                "followed, to keep the API key private. "
                "If you trust that address, audit it instead."
            )
        body = parse_object(response.content)
        if response.status_code != 200:
            raise self.build_error(self._describe_refusal(view, response, body or {}))
        if body is None:
            kind = response.headers.get("content-type", "without a content type")
            raise self.build_error(
                f"{self.address} answered {API_PATH}/{view} without a JSON object ({kind}); "
                "is it the base address of a signal service?"
            )
        return body

    def _describe_refusal(self, view: str, response: httpx2.Response, body: Json) -> str:
        status = response.status_code
        code, message = body.get("error", "no error code"), body.get("message", "no message")
        text = f"{self.address} refused {API_PATH}/{view} with {status} ({code})"
        if "retry-after" in response.headers:
            text += f"; retry after {_format_retry_after(response.headers['retry-after'])}"
        if status in (401, 403):
            text += "; check the key in SIGNALS_API_KEY"
        return f"{text}: {message}"


def _format_retry_after(retry_after: str) -> str:
    return f"{retry_after} seconds" if retry_after.isdecimal() else retry_after
