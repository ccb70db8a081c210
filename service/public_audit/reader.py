"""The public REST interface as a customer's program calls it: one key, no redirects, plain errors.

The key goes to the address given and nowhere else, and stands in nothing that is printed.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import httpx2

from schemas.operator_error import OperatorError
from service.commands.service_address import FACE, TIMEOUT, base_address, one_line
from service.public_audit.answers import Json

OPEN_VIEWS = frozenset({"catalog", "stats"})
DAILY_QUOTA = 10_000

Progressed = Callable[[int, int], None]


class PublicAuditError(OperatorError):
    """Why a service could not be audited, told in one line."""


class Reader:
    """Reads views of one service; every failure is a PublicAuditError of one line.

    `expected` is how many calls are likely in all, for the progress bar.
    """

    def __init__(self, url: str, api_key: str, progressed: Progressed) -> None:
        if not api_key:
            raise PublicAuditError("SIGNALS_API_KEY is not set: put your API key into it")
        self._api_key = api_key
        self.address = base_address(url, "--public")
        self.calls = 0
        self.counted_calls = 0
        self.expected = 1
        self._progressed = progressed
        self._client = httpx2.AsyncClient(
            base_url=self.address + FACE,
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

    async def read(self, view: str, **arguments: Any) -> Json:
        """Return an answer as it came; the key is sent only where it is needed."""
        is_open = view in OPEN_VIEWS
        headers = {} if is_open else {"Authorization": f"Bearer {self._api_key}"}
        if self.counted_calls >= DAILY_QUOTA:
            raise self.failure(f"this took {DAILY_QUOTA:,} calls, a day's quota; lower --days")
        try:
            response = await self._client.get(f"/{view}", params=arguments, headers=headers)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = f"{type(error).__name__} {error}".strip()
            raise self.failure(f"{self.address} did not answer {FACE}/{view}: {reason}") from None
        self.calls += 1
        self.counted_calls += not is_open
        self._progressed(self.calls, max(self.calls, self.expected))
        return self._answer(view, response)

    def line(self, text: str) -> str:
        """Return text with pieces of answers in it as one line for a terminal, without the key."""
        return one_line(text, self._api_key)

    def failure(self, text: str) -> PublicAuditError:
        """Return the error of one line that ends the audit."""
        return PublicAuditError(self.line(text))

    def _answer(self, view: str, response: httpx2.Response) -> Json:
        if 300 <= response.status_code < 400:
            target = response.headers.get("location", "nowhere")
            raise self.failure(
                f"{self.address} redirects {FACE}/{view} to {target}; redirects are not followed, "
                "for the key would travel along. If you trust that address, give it instead."
            )
        answer = _parsed(response)
        if response.status_code != 200:
            raise self.failure(self._refusal(view, response, answer or {}))
        if answer is None:
            kind = response.headers.get("content-type", "without a content type")
            raise self.failure(
                f"{self.address} answered {FACE}/{view} with no JSON object ({kind}); "
                "is it the base address of a signal service?"
            )
        return answer

    def _refusal(self, view: str, response: httpx2.Response, body: Json) -> str:
        status = response.status_code
        code, message = body.get("error", "no error code"), body.get("message", "no message")
        said = f"{self.address} refused {FACE}/{view} with {status} ({code})"
        if "retry-after" in response.headers:
            said += f"; come back after {_seconds(response.headers['retry-after'])}"
        if status in (401, 403):
            said += "; see the key in SIGNALS_API_KEY"
        return f"{said}: {message}"


def _parsed(response: httpx2.Response) -> Json | None:
    """Return the JSON object of a body, None where it holds none."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _seconds(retry_after: str) -> str:
    return f"{retry_after} seconds" if retry_after.isdecimal() else retry_after
