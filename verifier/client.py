"""The one client of the API: reads a service that nobody has to trust, over HTTP.

Answers are bounded in bytes, time and depth. The key is sent only to the service's own address and
only with calls that need it, and is never printed. Besides this package, the commands of `service`
that call a service use it.
"""

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx2

from verifier.report import VerifyError, format_one_line

API_PATH = "/api/v1"
MCP_PATH = API_PATH + "/mcp"
OAUTH_MCP_PATH = "/mcp"
PAGE_ROWS = 200
TIMEOUT = httpx2.Timeout(60.0, connect=10.0)
MAX_ANSWER_BYTES = 16_000_000
DEADLINE_S = 60.0
MAX_DEPTH = 64
MAX_RETRY_AFTER_S = 3600
TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
NO_KEY = (
    "SIGNALS_API_KEY is not set: set it to your API key. The operator of a service creates one "
    "with `signals keys create --label me`"
)
# From 1900 on, so that a duration can be subtracted.
SERVED_TIME = re.compile(
    r"(?:19|[2-9][0-9])[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z"
)

Json = dict[str, Any]


class ServiceError(VerifyError):
    """A call that was refused or failed; `status` is that of the answer, 0 if there was none."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class TransientError(ServiceError):
    """A failure that may pass; `retry_after_s` is the least pause that the other side asks for."""

    def __init__(self, text: str, retry_after_s: int = 0, status: int = 0) -> None:
        super().__init__(text, status)
        self.retry_after_s = retry_after_s


class Answer(NamedTuple):
    """The body of a response, its text as sent, and when it was sent in epoch ms, if it says so."""

    body: Json
    text: str
    sent_at: int | None


def parse_served_time(text: object) -> datetime:
    """Parse a time as the service writes it; ValueError if it is written differently.

    Texts of this form compare like the times, so they are compared without parsing.
    """
    if not isinstance(text, str) or SERVED_TIME.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a time such as 2026-01-31T00:03:00.000Z")
    return datetime.fromisoformat(text)


def format_time(time: datetime) -> str:
    """Format a time as the service does."""
    text = time.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def open_transport(address: str, proxy: tuple[str, str] | None) -> httpx2.AsyncHTTPTransport:
    """Return a transport to an address, through a proxy if there is one (variable and address)."""
    # Loading the trusted certificates takes longer than the call, and http needs none.
    needs_tls = address.startswith("https:") or (proxy is not None and "s://" in proxy[1])
    return httpx2.AsyncHTTPTransport(verify=needs_tls, proxy=None if proxy is None else proxy[1])


async def fetch(
    client: httpx2.AsyncClient,
    method: str,
    url: str,
    deadline_s: float = DEADLINE_S,
    *,
    needs_body: bool = True,
    **sent: Any,
) -> httpx2.Response:
    """Send a request and return its answer, whole and unpacked; `sent` is as for the client.

    An answer that is too large, too slow or not packed as asked for raises httpx2.HTTPError, or
    unless `needs_body`, comes without its body.
    """
    request = client.build_request(method, url, **sent)
    request.headers["Accept-Encoding"] = "gzip"
    response, content = None, b""
    try:
        async with asyncio.timeout(deadline_s):
            response = await client.send(request, stream=True)
            try:
                content = await _read(response)
            finally:
                await response.aclose()
    except (TimeoutError, httpx2.HTTPError) as error:
        if response is None or needs_body:
            if isinstance(error, httpx2.HTTPError):
                raise
            reason = f"no whole answer within {deadline_s:g} seconds"
            raise httpx2.ReadTimeout(reason, request=request) from None
    headers = [
        (name, value)
        for name, value in response.headers.multi_items()
        if name not in ("content-encoding", "content-length", "transfer-encoding")
    ]
    return httpx2.Response(response.status_code, headers=headers, content=content, request=request)


async def _read(response: httpx2.Response) -> bytes:
    """Return the unpacked body of a response."""
    packing = response.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("identity", "gzip", ""):
        raise httpx2.DecodingError("the answer has a Content-Encoding that was not asked for")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16) if packing == "gzip" else None
    body = bytearray()
    async for chunk in response.aiter_raw():
        left = MAX_ANSWER_BYTES + 1 - len(body)
        try:
            body += chunk if unpacker is None else unpacker.decompress(chunk, left)
        except zlib.error:
            raise httpx2.DecodingError("the answer is no gzip") from None
        if len(body) > MAX_ANSWER_BYTES:
            raise httpx2.ReadError(f"the answer exceeds {MAX_ANSWER_BYTES // 1_000_000} MB")
    return bytes(body)


def parse_object(content: bytes) -> Json | None:
    """Return the JSON object in the body of an answer, None if there is none.

    One that is nested too deeply, or has text that is not Unicode, counts as none.
    """
    try:
        body = json.loads(content.decode())
        # An escape such as \ud800 can be half a character, which cannot be encoded or printed.
        if b"\\ud" in content.lower():
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    level = [body]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return body if isinstance(body, dict) else None
    return None


def parse_retry_after(response: httpx2.Response) -> int:
    """Return the seconds of a Retry-After header, at most an hour; 0 if there is none."""
    value = response.headers.get("retry-after", "")
    is_number = value.isascii() and value.isdecimal()
    return min(int(value[:10]), MAX_RETRY_AFTER_S) if is_number else 0


class ServiceClient:
    """Calls one service; a failure that may pass raises TransientError, any other ServiceError.

    `calls` counts the calls with the key that were answered, which its quota counts.
    """

    def __init__(
        self,
        address: str,
        api_key: str,
        user_agent: str = "signals",
        proxy: tuple[str, str] | None = None,
    ) -> None:
        """`address` is the base address of the service; the key is only needed by some calls.

        `proxy` is the variable that names a proxy, and its address.
        """
        self.address = address
        self._proxy_variable = None if proxy is None else proxy[0]
        self.calls = 0
        self._api_key = api_key
        self._http = httpx2.AsyncClient(
            base_url=address,
            headers={"User-Agent": user_agent, "Accept": "application/json"},
            follow_redirects=False,
            timeout=TIMEOUT,
            transport=open_transport(address, proxy),
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

    async def read_view(
        self, view: str, arguments: Mapping[str, Any] | None = None, *, is_open: bool = False
    ) -> Answer:
        """Return the answer of a view such as `state`; an open one is called without the key."""
        response = await self.read(f"{API_PATH}/{view}", arguments, is_open=is_open)
        body = parse_object(response.content)
        if body is None:
            raise self.describe_refusal(response)
        try:
            sent_at = int(parsedate_to_datetime(response.headers["date"]).timestamp() * 1000)
        except (KeyError, ValueError, OverflowError):
            sent_at = None
        return Answer(body, response.content.decode(), sent_at)

    async def read(
        self, path: str, arguments: Mapping[str, Any] | None = None, *, is_open: bool = False
    ) -> httpx2.Response:
        """Return the answer of a path if its status is 200."""
        if not (is_open or self._api_key):
            raise ServiceError(NO_KEY)
        response = await self.send("GET", path, is_open=is_open, params=arguments)
        self.calls += not is_open
        if response.status_code != 200:
            raise self.describe_refusal(response)
        return response

    async def send(
        self,
        method: str,
        path: str,
        *,
        is_open: bool = False,
        headers: Mapping[str, str] | None = None,
        **sent: Any,
    ) -> httpx2.Response:
        """Return the answer to a request, whatever its status; the key is sent if there is one."""
        key = {} if is_open or not self._api_key else {"Authorization": f"Bearer {self._api_key}"}
        try:
            return await fetch(self._http, method, path, headers={**(headers or {}), **key}, **sent)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = f"{type(error).__name__} {error}".strip()
            advice = (
                "Start the service there (`signals serve`), or set --url to the address of a "
                "service"
            )
            if self._proxy_variable is not None:
                reason += f", through the proxy that {self._proxy_variable} names"
                advice = f"Check that proxy, unset {self._proxy_variable}, or set NO_PROXY"
            text = f"{self.address}{path} did not answer: {reason}. {advice}"
            raise TransientError(self.format_line(text)) from None

    def describe_refusal(self, response: httpx2.Response) -> ServiceError:
        """Return an answer that is none of the API's, or one of its errors, as an error."""
        status = response.status_code
        text = f"{str(response.request.url).partition('?')[0]} answered {status}"
        message = (parse_object(response.content) or {}).get("message")
        advice = "; is --url the address of a signal service?"
        if status in (401, 403):
            advice = ". Check the key in SIGNALS_API_KEY."
        if response.has_redirect_location:
            text += (
                f", a redirect to {response.headers['location']}, which is not followed, to keep "
                "the API key private. If you trust that address, set --url to it"
            )
        elif isinstance(message, str):
            text += f": {message}" + (advice.removeprefix(".") if status in (401, 403) else "")
        else:
            kind = response.headers.get("content-type", "without a content type")
            text += f" without an answer of the API ({kind}){advice}"
        line = self.format_line(text)
        if status in TRANSIENT_STATUSES:
            return TransientError(line, parse_retry_after(response), status)
        return ServiceError(line, status)

    def format_line(self, text: str) -> str:
        """Return text that quotes the service as one printable line, without the key."""
        return format_one_line(text, self._api_key)


async def walk_feed(
    read_page: Callable[[Json], Awaitable[Answer]], since: str, filters: Mapping[str, Any]
) -> AsyncIterator[Answer]:
    """Yield the pages of the feed after a time, oldest first, up to the first without more rows.

    A page in another form raises a LookupError, TypeError or ValueError; a service that does not
    come to an end, or repeats rows, a ServiceError.
    """
    last = since if SERVED_TIME.fullmatch(since) else ""
    while True:
        page = await read_page({**filters, "since": since, "order": "oldest", "limit": PAGE_ROWS})
        rows = page.body["signals"]
        for row in rows:
            since = row["created_at"]
            parse_served_time(since)
            if since <= last:
                raise ServiceError(f"the service sent a row of {since} after one of {last}")
            last = since
        # Read before a caller may rely on it.
        has_more = page.body["pagination"]["has_more"]
        yield page
        if not has_more:
            return
        if not rows:
            raise ServiceError("the service claims more rows and sends none: report it")
