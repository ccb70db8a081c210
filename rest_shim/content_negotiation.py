"""Conditional and compressed responses: 304 for a matching ETag, gzip if the client accepts it."""

from rest_shim.endpoints import Endpoint
from serving.http import HeaderList, HeaderMap, accepts_gzip
from serving.response_cache import ResponseBody

# A smaller response fits into one packet anyway, so compressing it saves nothing.
MIN_COMPRESSED_BYTES = 1_000


def negotiate_response(
    response: ResponseBody, endpoint: Endpoint, request_headers: HeaderMap
) -> tuple[int, HeaderList, bytes]:
    """Return status, headers and body of a successful response, as the request headers allow."""
    # One weak ETag serves both forms, and Vary keeps caches from mixing them up.
    headers: HeaderList = [(b"etag", response.etag), (b"vary", b"Accept-Encoding")]
    if endpoint.cache_control:
        headers.append((b"cache-control", endpoint.cache_control.encode()))
    if is_not_modified(request_headers, response.etag):
        return 304, headers, b""
    success = endpoint.successes[0]
    media_type = success.media_type or ""
    # JSON is UTF-8 by definition; texts such as Markdown need the charset.
    charset = "; charset=utf-8" if media_type.startswith("text/") else ""
    headers.append((b"content-type", f"{media_type}{charset}".encode()))
    if len(response.text) < MIN_COMPRESSED_BYTES or not accepts_gzip(
        request_headers.get(b"accept-encoding", b"")
    ):
        return success.status, headers, response.text
    return success.status, [*headers, (b"content-encoding", b"gzip")], response.gzip_bytes


def is_not_modified(request_headers: HeaderMap, etag: bytes) -> bool:
    """Return true if If-None-Match names a tag; weakness is ignored, as HTTP prescribes."""
    if_none_match = request_headers.get(b"if-none-match")
    if if_none_match is None:
        return False
    tags = [tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b",")]
    return b"*" in tags or etag.removeprefix(b"W/") in tags
