"""Parses JSON-RPC 2.0 messages, and formats results and errors as bytes."""

import json
from codecs import BOM_UTF8
from typing import Any, NamedTuple

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
    if has_json_excess(body):
        raise _invalid_request_error(f"the body has {JSON_EXCESS}; send fewer")
    try:
        # Decoded here, because json.loads() guesses UTF-16 and UTF-32 from the bytes; a message is
        # UTF-8, before which some clients send a byte-order mark. Only JSON's own whitespace may
        # surround it.
        text = body.removeprefix(BOM_UTF8).decode().strip(" \t\r\n")
        value, end = _DECODER.raw_decode(text)
        if end < len(text):
            raise ValueError("something follows the value")
    except ValueError:
        raise RpcError(mcp_types.PARSE_ERROR, "Parse error: the body is not valid JSON.") from None
    if isinstance(value, list):
        raise _invalid_request_error("batches are not supported; send one object per request")
    if not isinstance(value, dict):
        raise _invalid_request_error("the body must be one JSON object")
    method, request_id, version = value.get("method"), value.get("id"), value.get("jsonrpc")
    # `type`, not isinstance(): JSON's true is a Python bool, which is an int but not a valid id.
    has_valid_id = type(request_id) in _ID_TYPES
    if "method" not in value and ("result" in value or "error" in value):
        is_whole = version == "2.0" and has_valid_id and "id" in value
        has_one_outcome = ("result" in value) != isinstance(value.get("error"), dict)
        if not is_whole or not has_one_outcome or ("result" in value and "error" in value):
            # The error has no id: with one, the client would take it for the answer to a request
            # of its own that has the same id.
            raise _invalid_request_error(
                'a response must have jsonrpc "2.0", an id, and either a result or an error object'
            )
        return None
    if not has_valid_id:
        raise _invalid_request_error("id must be a string, an integer or null")
    if version != "2.0":
        raise _invalid_request_error('jsonrpc must be "2.0"', request_id)
    if not isinstance(method, str):
        raise _invalid_request_error("method must be a string", request_id)
    return Message(method, value.get("params"), request_id, "id" not in value)


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


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Parsers disagree on which of two equal names counts, so a gateway that checks tool names
    # could see another tool than the one that runs.
    if len(unique := dict(pairs)) < len(pairs):
        raise _invalid_request_error("an object has the same name twice; send each name once")
    return unique


# int() raises ValueError for NaN and Infinity, which are not JSON.
_DECODER = json.JSONDecoder(parse_constant=int, object_pairs_hook=_reject_duplicate_names)


def _invalid_request_error(reason: str, request_id: RequestId = None) -> RpcError:
    return RpcError(mcp_types.INVALID_REQUEST, f"Invalid request: {reason}.", request_id)
