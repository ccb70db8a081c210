"""Answers as HTTP asks for them: not again where the client has them, compressed where it can."""

from functools import lru_cache

from rest_shim.endpoints import JSON, Endpoint
from serving.http import KEPT_VALUES, Fields, HeaderList, qualities
from serving.response_cache import Answer

# Below, compressing saves nobody a packet.
LEAST_COMPRESSED = 1_000


def negotiated(answer: Answer, endpoint: Endpoint, given: Fields) -> tuple[int, HeaderList, bytes]:
    """Return status, headers and body of an endpoint's success, as a request's headers ask."""
    headers: HeaderList = [(b"etag", answer.etag), (b"vary", b"Accept-Encoding")]
    if endpoint.cache:
        headers.append((b"cache-control", endpoint.cache.encode()))
    known = given.get(b"if-none-match")
    if known is not None and _names(known, answer.etag):
        return 304, headers, b""
    success = endpoint.successes[0]
    text_type = "" if success.media_type == JSON else "; charset=utf-8"
    headers.append((b"content-type", f"{success.media_type}{text_type}".encode()))
    if len(answer.text) < LEAST_COMPRESSED or not takes_gzip(given.get(b"accept-encoding", b"")):
        return success.status, headers, answer.text
    return success.status, [*headers, (b"content-encoding", b"gzip")], answer.gzipped


def _names(known: bytes, etag: bytes) -> bool:
    """Tell whether If-None-Match names a tag; a tag is compared without what marks it weak."""
    tags = [tag.strip().removeprefix(b"W/") for tag in known.split(b",")]
    return b"*" in tags or etag.removeprefix(b"W/") in tags


@lru_cache(KEPT_VALUES)
def takes_gzip(accept_encoding: bytes) -> bool:
    """Tell whether Accept-Encoding takes gzip: by its name, else by `*`."""
    wanted = qualities(accept_encoding)
    return wanted.get("gzip", wanted.get("*", 0.0)) > 0
