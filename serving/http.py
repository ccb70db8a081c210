"""HTTP basics of both transports: reading and checking a request, sending a response.

Every rejected request raises an ApiError.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from schemas.errors import ApiError, forget_frames
from schemas.usage import QuotaUsage
from serving.arguments import quote_value

HeaderMap = Mapping[bytes, bytes]
HeaderList = list[tuple[bytes, bytes]]

# Bounds of a request's head, checked before its target, Host or Origin is read; the server bounds
# the whole. The target has room for all tickers with encoded commas.
MAX_PATH_BYTES = 1024
MAX_TARGET_BYTES = 8 * 1024
# An authorization request has a `state` of up to 8 KiB.
LONG_TARGETS = {"/oauth/authorize": 12 * 1024}
# Reading thousands of empty fields takes longer than most answers; no query needs so many.
MAX_QUERY_FIELDS = 100
MAX_HEAD_BYTES = 16 * 1024
# A header takes about 150 bytes of memory besides its text.
MAX_HEADERS = 1000
# Of each header that is parsed or kept as the key of a cache, the repeated ones in sum.
MAX_HEADER_BYTES = 4 * 1024
BOUNDED_HEADERS = (
    *("Accept", "Accept-Encoding", "Authorization", "Content-Type", "Cookie", "Host"),
    *("If-None-Match", "Origin", "Stripe-Signature", "X-Forwarded-For"),
)
_BOUNDED_NAMES = {name.lower().encode(): name for name in BOUNDED_HEADERS}
MAX_BODY_BYTES = 64 * 1024
MAX_FORM_BYTES = 8 * 1024
# Stripe states no size for its notifications. Its own examples accept 64 KiB.
MAX_WEBHOOK_BYTES = 256 * 1024
MAX_CACHED_VALUES = 256
CACHE_PRIVATE = "private, no-cache"
CACHE_REVALIDATE = "no-cache"
CACHE_ONE_MINUTE = "public, max-age=60"
CACHE_ONE_HOUR = "public, max-age=3600"
CACHE_ONE_DAY = "public, max-age=86400"
CACHE_NO_STORE = "no-store"
JSON = "application/json"
JSON_TYPE = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")
CLOSE_CONNECTION = (b"connection", b"close")
# Probes of a container or a balancer ask under any name, or under none.
HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
# Keys of the ASGI scope.
# A callable without arguments; the server calls it if the client disconnects meanwhile.
ON_DISCONNECT_KEY = "signals.on_disconnect"
# The request id in plain ASCII, which every response repeats in a header.
REQUEST_ID_KEY = "signals.request_id"
# The name of the tool that a request called, and the exception that its response reports; the log
# has both.
TOOL_KEY = "signals.tool"
ERROR_KEY = "signals.error"
# The hash of the key that a request was identified by before its call, if its endpoint does that.
KEY_HASH_KEY = "signals.key_hash"
# The hash of the key that the headers of a request carry, if it was looked for before.
SENT_KEY_HASH = "signals.sent_key_hash"
# Set to True once a call has shown that the key of the request is live.
IS_KEY_LIVE = "signals.is_key_live"
# The merged headers, cached for the next reader of the same request.
_HEADERS_KEY = "signals.fields"


def read_headers(scope: Scope) -> HeaderMap:
    """Return the headers of a request by lower-case name, repeated ones joined by commas."""
    # Joining follows HTTP's rule for lists, so two keys in one header are an invalid key.
    merged: HeaderMap | None = scope.get(_HEADERS_KEY)
    if merged is None:
        headers = scope["headers"]
        merged = dict(headers)
        if len(merged) < len(headers):
            # Group first: joining name by name takes seconds for a head full of short headers.
            values: dict[bytes, list[bytes]] = {name: [] for name in merged}
            for name, value in headers:
                values[name].append(value)
            merged = {name: b", ".join(parts) for name, parts in values.items()}
        scope[_HEADERS_KEY] = merged
    return merged


def keep_error(scope: Scope, error: Exception) -> None:
    """Keep the error that the response to a request reports, for the log."""
    forget_frames(error)
    scope[ERROR_KEY] = error


def find_size_error(scope: Scope, headers: HeaderMap) -> ApiError | None:
    """Return the error of a path, query or header that is too long, None if there is none."""
    path_bytes, query, sent = len(scope["raw_path"]), scope["query_string"], scope["headers"]
    first_line = len(scope["method"]) + path_bytes + bool(query) + len(query) + 12
    head_bytes = first_line + sum(map(len, chain.from_iterable(sent))) + 4 * len(sent) + 2
    # In so short a head, nothing else than the fields of a query can be too long or too many.
    if head_bytes <= MAX_PATH_BYTES and query.count(b"&") < MAX_QUERY_FIELDS:
        return None
    if path_bytes > MAX_PATH_BYTES:
        return build_size_error(414, "path", MAX_PATH_BYTES)
    max_bytes = LONG_TARGETS.get(scope["path"], MAX_TARGET_BYTES)
    if path_bytes + 1 + len(query) > max_bytes:
        return build_size_error(414, "path with its query", max_bytes)
    if query.count(b"&") >= MAX_QUERY_FIELDS:
        return http_error(414, f"The query has more than {MAX_QUERY_FIELDS} fields; send fewer.")
    if len(sent) > MAX_HEADERS:
        return http_error(431, f"The request has more than {MAX_HEADERS} headers.")
    if head_bytes > MAX_HEAD_BYTES:
        return build_size_error(431, "head of the request", MAX_HEAD_BYTES)
    for key, name in _BOUNDED_NAMES.items():
        if key in headers and len(headers[key]) > MAX_HEADER_BYTES:
            return build_size_error(431, f"header {name}", MAX_HEADER_BYTES)
    return None


def build_size_error(status: int, part: str, max_bytes: int) -> ApiError:
    """Return the error of a part of a request that exceeds its bound."""
    return http_error(status, f"The {part} exceeds {max_bytes >> 10} KiB; send a shorter one.")


def get_address(request: Request) -> str:
    """Return the address of a client, by which attempts are throttled."""
    return request.client.host if request.client else "unknown"


def read_cookie(scope: Scope, name: str) -> str:
    """Return the value of a cookie that we set, empty if there is none."""
    # Our values are plain. The standard library's reader, which Starlette uses, also unquotes, on
    # some versions of Python in quadratic time.
    pattern = rb"(?:^|[;,] ?)%b=([A-Za-z0-9_.-]*)(?=[;,]|$)" % name.encode()
    match = re.search(pattern, read_headers(scope).get(b"cookie", b""))
    return match[1].decode() if match else ""


def list_header_values(scope: Scope, header_name: bytes) -> list[bytes]:
    """Return the values of all headers with a lower-case name."""
    return [value for name, value in scope["headers"] if name == header_name]


async def respond(
    scope: Scope, send: Send, status: int, headers: HeaderList, *parts: bytes
) -> None:
    """Send a complete response with Content-Length, and with no-store if it is an error.

    `headers` is extended in place.
    """
    # HTTP forbids the length of a 204, and of a 304 any other than that of the 200.
    if status not in (204, 304):
        headers.append((b"content-length", b"%d" % sum(map(len, parts))))
    if status >= 400:
        headers.append(NO_STORE)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"".join(parts)})


def build_quota_headers(quota: QuotaUsage | None) -> HeaderList:
    """Return the quota headers, or no header if there is no quota."""
    if quota is None:
        return []
    return [
        (b"x-ratelimit-limit", b"%d" % quota.daily_limit),
        (b"x-ratelimit-remaining", b"%d" % quota.remaining_today),
        (b"x-ratelimit-reset", quota.resets_at.encode()),
    ]


def http_error(status: int, message: str, *, names_operator: bool = False) -> ApiError:
    """Return an error for a request that is invalid at the HTTP level."""
    return ApiError("invalid_parameter", message, status, names_operator=names_operator)


@lru_cache(MAX_CACHED_VALUES)
def check_media_types(content_type: bytes, accept: bytes, coding: bytes) -> None:
    """Check the headers Content-Type, Accept and Content-Encoding of a request.

    Raise ApiError 415 if the body is not plain JSON, 406 if the client does not accept JSON.
    """
    if (coding := coding.strip()).lower() not in (b"", b"identity"):
        quoted = quote_value(coding.decode("latin-1"))
        raise http_error(415, f"Content-Encoding {quoted} is not accepted; send the body as it is.")
    if not is_json(content_type):
        quoted = quote_value(content_type.decode("latin-1"))
        raise http_error(415, f"Content-Type {quoted} is not accepted; send application/json.")
    # An empty header allows everything.
    if accept.strip() and not _find_json_quality(parse_qualities(accept)) > 0:
        quoted = quote_value(accept.decode("latin-1"))
        raise http_error(406, f"Accept {quoted} excludes JSON; add application/json.")


@lru_cache(MAX_CACHED_VALUES)
def prefers_html(accept: bytes) -> bool:
    """Return true if an Accept header names HTML and rates it above JSON, as browsers do."""
    ranges = parse_qualities(accept)
    return ranges.get("text/html", 0.0) > _find_json_quality(ranges)


def _find_json_quality(ranges: Mapping[str, float]) -> float:
    """Return the quality of JSON by the most specific range that matches it, 0 without one."""
    matching = (each for each in ("application/json", "application/*", "*/*") if each in ranges)
    return ranges.get(next(matching, ""), 0.0)


@lru_cache(MAX_CACHED_VALUES)
def accepts_gzip(accept_encoding: bytes) -> bool:
    """Return true if Accept-Encoding allows gzip, by name or else by `*`."""
    weights = parse_qualities(accept_encoding)
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def parse_qualities(header: bytes) -> dict[str, float]:
    """Return the quality (0 to 1) of each item of an Accept or Accept-Encoding header.

    0 means not acceptable. Of a repeated item, the highest quality counts.
    """
    quality_by_name: dict[str, float] = {}
    for part in header.decode("latin-1").lower().split(","):
        name, *parameters = map(str.strip, part.split(";"))
        sent = [one.partition("=")[2] for one in parameters if one.partition("=")[0].strip() == "q"]
        try:
            quality = float(sent[0]) if sent else 1.0
        except ValueError:
            quality = 1.0
        quality_by_name[name] = max(quality_by_name.get(name, 0.0), quality)
    return quality_by_name


async def read_body(scope: Scope, receive: Receive, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Read the body; raise ApiError 413 as soon as it is known to exceed `max_bytes`."""
    # A chunked body declares no length, so the size is checked while reading, too. The slice keeps
    # int() from a header of thousands of digits, which Python refuses to convert.
    declared = read_headers(scope).get(b"content-length", b"0")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_large_error(max_bytes)
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientDisconnect
        body += event.get("body", b"")
        if not event.get("more_body", False) or len(body) > max_bytes:
            break
        # A stalled body must not be held twice.
        del event
    if len(body) > max_bytes:
        raise _too_large_error(max_bytes)
    return bytes(body)


def is_json(content_type: bytes) -> bool:
    """Return true if a Content-Type is JSON or empty."""
    if not content_type.strip():
        return True
    media = content_type.partition(b";")[0].strip().lower()
    is_application = media.startswith(b"application/")
    return is_application and media.endswith((b"/json", b"+json"))


def _too_large_error(max_bytes: int) -> ApiError:
    return http_error(413, f"The body exceeds {max_bytes >> 10} KiB; send a smaller one.")
