"""JSON-RPC 2.0 messages: bytes to request or notification, results and errors to bytes."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

import mcp_types

from serving.json_text import to_json, to_utf8

RequestId = str | int | None
_ID_TYPES = frozenset({str, int, type(None)})
Params = dict[str, Any]


class RpcError(Exception):
    """A failure of the protocol, answered as a JSON-RPC error object under an HTTP status."""

    def __init__(
        self,
        code: int,
        message: str,
        request_id: RequestId = None,
        data: Any = None,
        status: int = 200,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.request_id = request_id
        self.data = data
        self.status = status


class Message(NamedTuple):
    """A call; without the key `id` it is a notification. `params` is None where absent."""

    method: str
    params: Any
    request_id: RequestId
    is_notification: bool


def parse_message(body: bytes) -> Message:
    """Return the message in a body; RpcError -32700 for what is not JSON, -32600 if malformed."""
    value = _parse_json(body)
    if isinstance(value, list):
        raise _invalid_request_error("batches are not supported, send one object a request")
    if not isinstance(value, dict):
        raise _invalid_request_error("the body must be one JSON object")
    return _build_message(value)


def build_result_parts(request_id: RequestId, result: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the response that carries a result given as JSON text in parts; none is copied."""
    encoded_id = b"%d" % request_id if type(request_id) is int else to_utf8(to_json(request_id))
    return (b'{"jsonrpc":"2.0","id":%b,"result":' % encoded_id, *result, b"}")


def format_error_response(error: RpcError) -> bytes:
    """Return the response that carries an error."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return to_utf8(to_json({"jsonrpc": "2.0", "id": error.request_id, "error": body}))


def _parse_json(body: bytes) -> Any:
    try:
        text = body.decode("utf-8").strip(" \t\r\n")
        value, end = _DECODER.raw_decode(text)
        if end < len(text):
            raise ValueError("something follows the value")
    except (ValueError, RecursionError):
        raise RpcError(mcp_types.PARSE_ERROR, "Parse error: the body is not valid JSON.") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; parsers disagree on which of two equal names counts, so refuse both."""
    if len(unique := dict(pairs)) < len(pairs):
        raise _invalid_request_error("an object names something more than once")
    return unique


_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, object_pairs_hook=_reject_duplicate_names
)


def _invalid_request_error(reason: str, request_id: RequestId = None) -> RpcError:
    return RpcError(mcp_types.INVALID_REQUEST, f"Invalid request: {reason}.", request_id)


def _build_message(value: dict[str, Any]) -> Message:
    request_id = value.get("id")
    if type(request_id) not in _ID_TYPES:
        raise _invalid_request_error("id must be a string, an integer or null")
    if value.get("jsonrpc") != "2.0":
        raise _invalid_request_error('jsonrpc must be "2.0"', request_id)
    method = value.get("method")
    if not isinstance(method, str):
        raise _invalid_request_error("method must be a string", request_id)
    return Message(method, value.get("params"), request_id, "id" not in value)
