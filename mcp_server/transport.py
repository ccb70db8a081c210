"""What HTTP asks of a request before its body is read as JSON-RPC; every refusal is ApiError."""

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from mcp_server.arguments import shown
from schemas.errors import ApiError

MAX_BODY_BYTES = 1 << 20


def refused(status: int, message: str) -> ApiError:
    """Return the refusal of a request whose HTTP is wrong."""
    return ApiError("invalid_parameter", message, status)


def check_headers(headers: Headers) -> None:
    """Refuse a body that is not JSON with 415 and a client that takes no JSON with 406."""
    content_type = headers.get("content-type", "")
    if content_type.strip() and not _is_json(content_type):
        raise refused(415, f"Content-Type {shown(content_type)} is refused; send application/json.")
    accept = ",".join(headers.getlist("accept"))
    if accept.strip() and not accepts_json(accept):
        raise refused(406, f"Accept {shown(accept)} excludes the answer; accept application/json.")


def accepts_json(accept: str) -> bool:
    """Tell whether an Accept header lets JSON pass: its most specific matching range decides."""
    qualities: dict[str, float] = {}
    for part in accept.lower().split(","):
        media, _, parameters = part.partition(";")
        qualities[media.strip()] = max(qualities.get(media.strip(), 0.0), _quality(parameters))
    for media in ("application/json", "application/*", "*/*"):
        if media in qualities:
            return qualities[media] > 0
    return False


async def read_body(receive: Receive, headers: Headers) -> bytes:
    """Return the body, 413 as soon as it is known to be longer than 1 MiB, chunked or not."""
    declared = headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > MAX_BODY_BYTES:
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


def _is_json(content_type: str) -> bool:
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
