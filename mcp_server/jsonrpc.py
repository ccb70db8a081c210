"""Parses JSON-RPC 2.0 messages, and formats results and errors as bytes."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

import mcp_types

from serving.json_text import JSON_EXCESS, has_json_excess, to_json, to_utf8

RequestId = str | int | None
_ID_TYPES = frozenset({str, int, type(None)})
Params = dict[str, Any]


class RpcError(Exception):
    """A protocol error, sent as a JSON-RPC error object with an HTTP status."""

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
    """A request, or a notification if the body has no `id`. `params` is None if absent."""

    method: str
    params: Any
    request_id: RequestId
    is_notification: bool


def parse_message(body: bytes) -> Message | None:
    """Parse a body; None if it is a response, which the server accepts and ignores.

    Raise RpcError -32700 if it is not JSON, -32600 if the message is malformed.
    """
    value = _parse_json(body)
    if isinstance(value, list):
        raise _invalid_request_error("batches are not supported; send one object per request")
    if not isinstance(value, dict):
        raise _invalid_request_error("the body must be one JSON object")
    if "method" not in value and ("result" in value or "error" in value):
        _check_response(value)
        return None
    return _build_message(value)


def build_result_parts(request_id: RequestId, result: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the response with a result, as parts of JSON text; the result's are not copied."""
    encoded_id = b"%d" % request_id if type(request_id) is int else to_utf8(to_json(request_id))
    return (b'{"jsonrpc":"2.0","id":%b,"result":' % encoded_id, *result, b"}")


def format_error_response(error: RpcError, *, has_null_id: bool = True) -> bytes:
    """Return the response with an error, as JSON text.

    If the id of the request is unknown, the response has id null, or none.
    """
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    has_id = has_null_id or error.request_id is not None
    rpc_id = {"id": error.request_id} if has_id else {}
    return to_utf8(to_json({"jsonrpc": "2.0", **rpc_id, "error": body}))


def _parse_json(body: bytes) -> Any:
    if has_json_excess(body):
        raise _invalid_request_error(f"the body has {JSON_EXCESS}; send fewer")
    try:
        # Decoded here, because json.loads() guesses UTF-16 and UTF-32 from the bytes; a message is
        # UTF-8, before which some clients send a byte-order mark. Only JSON's own whitespace may
        # surround it.
        text = body.decode("utf-8-sig").strip(" \t\r\n")
        value, end = _DECODER.raw_decode(text)
        if end < len(text):
            raise ValueError("something follows the value")
    except ValueError:
        raise RpcError(mcp_types.PARSE_ERROR, "Parse error: the body is not valid JSON.") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; raise RpcError if a name occurs twice."""
    # Parsers disagree on which of two equal names counts, so a gateway that checks tool names
    # could see another tool than the one that runs.
    if len(unique := dict(pairs)) < len(pairs):
        raise _invalid_request_error("an object has the same name twice; send each name once")
    return unique


_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, object_pairs_hook=_reject_duplicate_names
)


def _invalid_request_error(reason: str, request_id: RequestId = None) -> RpcError:
    return RpcError(mcp_types.INVALID_REQUEST, f"Invalid request: {reason}.", request_id)


def _check_response(value: dict[str, Any]) -> None:
    """Raise RpcError -32600 if a client's response is malformed."""
    # The error has no id: with one, the client would take it for the answer to a request of its
    # own that has the same id.
    is_whole = value.get("jsonrpc") == "2.0" and type(value.get("id", ...)) in _ID_TYPES
    has_one_outcome = ("result" in value) != isinstance(value.get("error"), dict)
    if not is_whole or not has_one_outcome or ("result" in value and "error" in value):
        raise _invalid_request_error(
            'a response must have jsonrpc "2.0", an id, and either a result or an error object'
        )


def _build_message(value: dict[str, Any]) -> Message:
    request_id = value.get("id")
    # `type`, not isinstance(): JSON's true is a Python bool, which is an int but not a valid id.
    if type(request_id) not in _ID_TYPES:
        raise _invalid_request_error("id must be a string, an integer or null")
    if value.get("jsonrpc") != "2.0":
        raise _invalid_request_error('jsonrpc must be "2.0"', request_id)
    method = value.get("method")
    if not isinstance(method, str):
        raise _invalid_request_error("method must be a string", request_id)
    return Message(method, value.get("params"), request_id, "id" not in value)
