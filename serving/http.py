"""HTTP basics of both transports: reading and checking a request, sending a response.

Every refusal is an ApiError.
"""

from collections.abc import Awaitable, Generator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from schemas.errors import ApiError
from schemas.usage import QuotaUsage
from serving.arguments import quote_value

HeaderMap = Mapping[bytes, bytes]
HeaderList = list[tuple[bytes, bytes]]

MAX_BODY_BYTES = 1 << 20
MAX_CACHED_VALUES = 256
CACHE_PRIVATE = "private, no-cache"
CACHE_ONE_MINUTE = "public, max-age=60"
CACHE_ONE_DAY = "public, max-age=86400"
CACHE_NO_STORE = "no-store"
JSON = "application/json"
JSON_TYPE = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")
CLOSE_CONNECTION = (b"connection", b"close")
# The ASGI scope's key of an `InlineExchange`, which the service's own server adds.
EXCHANGE_KEY = "signals.exchange"
# The key of the request id, plain ASCII, which every response has as a header.
REQUEST_ID_KEY = "signals.request_id"
# The key of the merged headers, kept for the next reader.
_HEADERS_KEY = "signals.fields"


class InlineExchange(Protocol):
    """Takes a request body and sends a response without ASGI events, if neither has to wait."""

    def take_body(self) -> bytes | None:
        """Return the whole body, once; None if it has not arrived yet."""

    def try_send(self, status: int, headers: HeaderList, parts: Sequence[bytes]) -> bool:
        """Send a whole response, its body in parts; return False if it would block."""


def read_headers(scope: Scope) -> HeaderMap:
    """Return the headers of a request by lower-case name, repeated ones joined by commas."""
    merged: HeaderMap | None = scope.get(_HEADERS_KEY)
    if merged is None:
        headers = scope["headers"]
        merged = dict(headers)
        if len(merged) < len(headers):
            merged = {name: b", ".join(list_header_values(scope, name)) for name in merged}
        scope[_HEADERS_KEY] = merged
    return merged


def list_header_values(scope: Scope, header_name: bytes) -> list[bytes]:
    """Return every header of one lower-case name."""
    return [value for name, value in scope["headers"] if name == header_name]


def respond(
    scope: Scope, send: Send, status: int, headers: HeaderList, *parts: bytes
) -> Awaitable[None]:
    """Send a whole response with its Content-Length, and no-store if it is an error."""
    headers.append((b"content-length", b"%d" % sum(map(len, parts))))
    if status >= 400:
        headers.append(NO_STORE)
    exchange: InlineExchange | None = scope.get(EXCHANGE_KEY)
    if exchange is not None and exchange.try_send(status, headers, parts):
        return _ALREADY_SENT
    return _send_events(send, status, headers, parts)


class _AlreadySent:
    """An awaitable that is done at once."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_ALREADY_SENT = _AlreadySent()


async def _send_events(
    send: Send, status: int, headers: HeaderList, parts: Sequence[bytes]
) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"".join(parts)})


def build_quota_headers(quota: QuotaUsage | None) -> HeaderList:
    """Return the headers that carry a quota; none without one."""
    if quota is None:
        return []
    return [
        (b"x-ratelimit-limit", b"%d" % quota.daily_limit),
        (b"x-ratelimit-remaining", b"%d" % quota.remaining_today),
        (b"x-ratelimit-reset", quota.resets_at.encode()),
    ]


def http_error(status: int, message: str) -> ApiError:
    """Return the refusal of a request that is wrong at the HTTP level."""
    return ApiError("invalid_parameter", message, status)


def check_media_types(headers: HeaderMap) -> None:
    """Refuse a body that is not JSON with 415 and a client that takes no JSON with 406."""
    content_type, accept = headers.get(b"content-type", b""), headers.get(b"accept", b"")
    if not is_json(content_type):
        quoted = quote_value(content_type.decode("latin-1"))
        raise http_error(415, f"Content-Type {quoted} is refused; send application/json.")
    if not accepts_json(accept):
        quoted = quote_value(accept.decode("latin-1"))
        raise http_error(406, f"Accept {quoted} excludes the answer; accept application/json.")


@lru_cache(MAX_CACHED_VALUES)
def accepts_json(accept: bytes) -> bool:
    """Tell whether an Accept header lets JSON pass: its most specific matching range decides.

    An empty one asks for nothing.
    """
    if not accept.strip():
        return True
    ranges = parse_qualities(accept)
    for media in ("application/json", "application/*", "*/*"):
        if media in ranges:
            return ranges[media] > 0
    return False


@lru_cache(MAX_CACHED_VALUES)
def accepts_gzip(accept_encoding: bytes) -> bool:
    """Tell whether Accept-Encoding takes gzip: by its name, else by `*`."""
    weights = parse_qualities(accept_encoding)
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def parse_qualities(header: bytes) -> dict[str, float]:
    """Return how much each item of an Accept or Accept-Encoding header is wanted, 0 for not."""
    quality_by_name: dict[str, float] = {}
    for part in header.decode("latin-1").lower().split(","):
        name, _, parameters = part.partition(";")
        quality_by_name[name.strip()] = max(
            quality_by_name.get(name.strip(), 0.0), _parse_quality(parameters)
        )
    return quality_by_name


def take_ready_body(scope: Scope) -> bytes | None:
    """Return the body if all of it has arrived, else None; 413 if it is longer than 1 MiB."""
    exchange: InlineExchange | None = scope.get(EXCHANGE_KEY)
    body = None if exchange is None else exchange.take_body()
    return None if body is None else _check_body_size(body)


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """Return the body, 413 as soon as it is known to be longer than 1 MiB, chunked or not."""
    declared = read_headers(scope).get(b"content-length", b"0")
    if declared.isdigit() and int(declared[:20]) > MAX_BODY_BYTES:
        raise _too_large_error()
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientDisconnect
        body += event.get("body", b"")
        if not event.get("more_body", False) or len(body) > MAX_BODY_BYTES:
            return _check_body_size(bytes(body))


@lru_cache(MAX_CACHED_VALUES)
def is_json(content_type: bytes) -> bool:
    """Tell whether a Content-Type is JSON; an empty one counts as such."""
    if not content_type.strip():
        return True
    media = content_type.partition(b";")[0].strip().lower()
    is_application = media.startswith(b"application/")
    return is_application and media.endswith((b"/json", b"+json"))


def _parse_quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 1.0
    return 1.0


def _check_body_size(body: bytes) -> bytes:
    if len(body) > MAX_BODY_BYTES:
        raise _too_large_error()
    return body


def _too_large_error() -> ApiError:
    return http_error(413, f"The body is over {MAX_BODY_BYTES} bytes; a call needs far fewer.")
