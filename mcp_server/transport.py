"""HTTP as both faces meet it: what a request must be, and an answer as it is sent.

Every refusal is ApiError.
"""

from collections.abc import Mapping
from functools import lru_cache

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from mcp_server.arguments import shown
from schemas.errors import ApiError
from schemas.results import Quota

Fields = Mapping[bytes, bytes]
HeaderList = list[tuple[bytes, bytes]]

MAX_BODY_BYTES = 1 << 20
KEPT_VALUES = 256
JSON_TYPE = (b"content-type", b"application/json")


def fields(scope: Scope) -> Fields:
    """Return the headers of a request by lower-case name, those of one name as one list."""
    headers = scope["headers"]
    given: dict[bytes, bytes] = dict(headers)
    if len(given) < len(headers):
        return {name: b", ".join(values(scope, name)) for name in given}
    return given


def values(scope: Scope, wanted: bytes) -> list[bytes]:
    """Return every header of one lower-case name."""
    return [value for name, value in scope["headers"] if name == wanted]


async def respond(send: Send, status: int, headers: HeaderList, body: bytes) -> None:
    """Send a whole answer; its length is added to its headers."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


def quota_headers(quota: Quota | None) -> HeaderList:
    """Return the headers that carry a quota; none without one."""
    if quota is None:
        return []
    return [
        (b"x-ratelimit-limit", b"%d" % quota.daily_limit),
        (b"x-ratelimit-remaining", b"%d" % quota.remaining_today),
        (b"x-ratelimit-reset", quota.resets_at.encode()),
    ]


def refused(status: int, message: str) -> ApiError:
    """Return the refusal of a request whose HTTP is wrong."""
    return ApiError("invalid_parameter", message, status)


def check_media(given: Fields) -> None:
    """Refuse a body that is not JSON with 415 and a client that takes no JSON with 406."""
    content_type = given.get(b"content-type", b"").decode("latin-1")
    if not _is_json(content_type):
        raise refused(415, f"Content-Type {shown(content_type)} is refused; send application/json.")
    accept = given.get(b"accept", b"").decode("latin-1")
    if not accepts_json(accept):
        raise refused(406, f"Accept {shown(accept)} excludes the answer; accept application/json.")


@lru_cache(KEPT_VALUES)
def accepts_json(accept: str) -> bool:
    """Tell whether an Accept header lets JSON pass: its most specific matching range decides.

    An empty one asks for nothing.
    """
    if not accept.strip():
        return True
    wanted = qualities(accept)
    for media in ("application/json", "application/*", "*/*"):
        if media in wanted:
            return wanted[media] > 0
    return False


def qualities(accepted: str) -> dict[str, float]:
    """Return how much each item of an Accept or Accept-Encoding header is wanted, 0 for not."""
    wanted: dict[str, float] = {}
    for part in accepted.lower().split(","):
        name, _, parameters = part.partition(";")
        wanted[name.strip()] = max(wanted.get(name.strip(), 0.0), _quality(parameters))
    return wanted


async def read_body(receive: Receive, given: Fields) -> bytes:
    """Return the body, 413 as soon as it is known to be longer than 1 MiB, chunked or not."""
    declared = given.get(b"content-length", b"0")
    if declared.isdigit() and int(declared[:20]) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientDisconnect
        body += event.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        if not event.get("more_body", False):
            return bytes(body)


@lru_cache(KEPT_VALUES)
def _is_json(content_type: str) -> bool:
    """Tell whether a Content-Type is JSON; an empty one counts as such."""
    if not content_type.strip():
        return True
    media = content_type.partition(";")[0].strip().lower()
    return media == "application/json" or (
        media.startswith("application/") and media.endswith("+json")
    )


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 1.0
    return 1.0


def _too_large() -> ApiError:
    return refused(413, f"The body is over {MAX_BODY_BYTES} bytes; a call needs far fewer.")
