"""HTTP as both faces meet it: what a request must be, and an answer as it is sent.

Every refusal is ApiError.
"""

from collections.abc import Awaitable, Generator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from schemas.errors import ApiError
from schemas.usage import Allowance
from serving.arguments import shown

Fields = Mapping[bytes, bytes]
HeaderList = list[tuple[bytes, bytes]]

MAX_BODY_BYTES = 1 << 20
KEPT_VALUES = 256
JSON_TYPE = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")
CLOSE = (b"connection", b"close")
# Where the service's own server puts an `Exchange` beside what ASGI says of a request.
EXCHANGE = "signals.exchange"
# Where it puts the id of a request, which is plain ASCII; every answer has it as a header.
REQUEST_ID = "signals.request_id"
# Where the headers of a request, once read, are kept for who is asked next.
_FIELDS = "signals.fields"


class Exchange(Protocol):
    """A request and its answer by shorter ways than ASGI has, where nothing must be waited for."""

    def body(self) -> bytes | None:
        """Return the whole body, once; None where it has not come yet."""

    def answer(self, status: int, headers: HeaderList, parts: Sequence[bytes]) -> bool:
        """Send a whole answer, whose body comes in parts; return False where it must wait."""


def fields(scope: Scope) -> Fields:
    """Return the headers of a request by lower-case name, those of one name as one list."""
    given: Fields | None = scope.get(_FIELDS)
    if given is None:
        headers = scope["headers"]
        given = dict(headers)
        if len(given) < len(headers):
            given = {name: b", ".join(values(scope, name)) for name in given}
        scope[_FIELDS] = given
    return given


def values(scope: Scope, wanted: bytes) -> list[bytes]:
    """Return every header of one lower-case name."""
    return [value for name, value in scope["headers"] if name == wanted]


def respond(
    scope: Scope, send: Send, status: int, headers: HeaderList, *parts: bytes
) -> Awaitable[None]:
    """Send a whole answer; its length joins its headers, and that no failure may be stored."""
    headers.append((b"content-length", b"%d" % sum(map(len, parts))))
    if status >= 400:
        headers.append(NO_STORE)
    exchange: Exchange | None = scope.get(EXCHANGE)
    if exchange is not None and exchange.answer(status, headers, parts):
        return _SENT
    return _send(send, status, headers, parts)


class _Sent:
    """What is awaited where nothing need be."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_SENT = _Sent()


async def _send(send: Send, status: int, headers: HeaderList, parts: Sequence[bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"".join(parts)})


def quota_headers(quota: Allowance | None) -> HeaderList:
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
    content_type, accept = given.get(b"content-type", b""), given.get(b"accept", b"")
    if not is_json(content_type):
        named = shown(content_type.decode("latin-1"))
        raise refused(415, f"Content-Type {named} is refused; send application/json.")
    if not accepts_json(accept):
        named = shown(accept.decode("latin-1"))
        raise refused(406, f"Accept {named} excludes the answer; accept application/json.")


@lru_cache(KEPT_VALUES)
def accepts_json(accept: bytes) -> bool:
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


def qualities(accepted: bytes) -> dict[str, float]:
    """Return how much each item of an Accept or Accept-Encoding header is wanted, 0 for not."""
    wanted: dict[str, float] = {}
    for part in accepted.decode("latin-1").lower().split(","):
        name, _, parameters = part.partition(";")
        wanted[name.strip()] = max(wanted.get(name.strip(), 0.0), _quality(parameters))
    return wanted


def body_at_hand(scope: Scope) -> bytes | None:
    """Return the body where it has come whole already, 413 where it is longer than 1 MiB."""
    exchange: Exchange | None = scope.get(EXCHANGE)
    whole = None if exchange is None else exchange.body()
    return None if whole is None else _bounded(whole)


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """Return the body, 413 as soon as it is known to be longer than 1 MiB, chunked or not."""
    declared = fields(scope).get(b"content-length", b"0")
    if declared.isdigit() and int(declared[:20]) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientDisconnect
        body += event.get("body", b"")
        if not event.get("more_body", False) or len(body) > MAX_BODY_BYTES:
            return _bounded(bytes(body))


@lru_cache(KEPT_VALUES)
def is_json(content_type: bytes) -> bool:
    """Tell whether a Content-Type is JSON; an empty one counts as such."""
    if not content_type.strip():
        return True
    media = content_type.partition(b";")[0].strip().lower()
    is_application = media.startswith(b"application/")
    return is_application and media.endswith((b"/json", b"+json"))


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 1.0
    return 1.0


def _bounded(body: bytes) -> bytes:
    if len(body) > MAX_BODY_BYTES:
        raise _too_large()
    return body


def _too_large() -> ApiError:
    return refused(413, f"The body is over {MAX_BODY_BYTES} bytes; a call needs far fewer.")
