"""The two protocol legs of the MCP endpoint, and how a request chooses one.

The legacy leg serves the revisions that begin with `initialize`. The modern leg serves revision
2026-07-28, which has no handshake: each request names its revision and repeats its method in
headers.
"""

import base64
import re
from collections.abc import Mapping
from typing import NamedTuple

import mcp_types
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import Scope

from mcp_server.jsonrpc import Message, RequestId, RpcError
from serving.arguments import quote_value
from serving.http import HeaderMap, list_header_values

# Clients of the legacy leg name the negotiated version in a header, or none. Responses are the same
# in all of these versions.
LEGACY_VERSIONS = ("2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"
DISCOVER = "server/discover"
VERSION_HEADER, METHOD_HEADER, NAME_HEADER = b"mcp-protocol-version", b"mcp-method", b"mcp-name"
_LEGACY_HEADERS = frozenset((None, *(version.encode() for version in LEGACY_VERSIONS)))
MODERN_HEADER = MODERN_VERSION.encode()
# A header value that is not plain ASCII comes as base64 of its UTF-8.
_ENCODED_VALUE = re.compile(r"=\?base64\?(.*)\?=")


class Leg(NamedTuple):
    """What differs between the legs.

    `result_start` begins each result. `statuses` has the HTTP statuses of JSON-RPC error codes that
    are not sent with 200. `has_null_id` says that an error without a known request id has id null;
    in the modern leg, the schema of an error requires that it has none.
    """

    methods: tuple[str, ...]
    result_start: bytes
    statuses: Mapping[int, int]
    has_null_id: bool


LEGACY = Leg(("initialize", "ping", "tools/list", "tools/call"), b"{", {}, has_null_id=True)
MODERN = Leg(
    (DISCOVER, "tools/list", "tools/call"),
    b'{"resultType":"complete",',
    {
        mcp_types.PARSE_ERROR: 400,
        mcp_types.INVALID_REQUEST: 400,
        mcp_types.METHOD_NOT_FOUND: 404,
        mcp_types.INVALID_PARAMS: 400,
        mcp_types.HEADER_MISMATCH: 400,
        mcp_types.UNSUPPORTED_PROTOCOL_VERSION: 400,
    },
    has_null_id=False,
)


def read_version(headers: HeaderMap) -> bytes | None:
    """Return the protocol version in the headers of a request, None if they name none.

    Equal copies count as one: a large host sends one of its own and the negotiated one.
    """
    value = headers.get(VERSION_HEADER)
    if value in _LEGACY_HEADERS or value == MODERN_HEADER:
        return value
    versions = {part.strip() for part in (value or b"").split(b",")}
    return b", ".join(sorted(versions - {b""})) or None


def choose_leg(message: Message, version: bytes | None) -> Leg:
    """Return the leg that serves a request; raise RpcError if none serves its version.

    It is the modern one if the version in the headers and the one in the body both go beyond the
    legacy ones, and for `DISCOVER`.
    """
    # Some hosts negotiate a legacy version and then send 2026-07-28 in the header or in the body
    # only; refusing them would refuse all of their calls. Mcp-Method and Mcp-Name choose nothing,
    # because some hosts send them in any revision.
    if message.method == DISCOVER:
        return MODERN
    if version not in _LEGACY_HEADERS:
        # A legacy body names no version, or one that has a handshake.
        named = get_meta(message).get(mcp_types.PROTOCOL_VERSION_META_KEY)
        if isinstance(named, str) and named not in HANDSHAKE_PROTOCOL_VERSIONS:
            return MODERN
        # No version is negotiated yet when a client sends `initialize`.
        if message.method != "initialize":
            check_version(version, message.request_id)
    return LEGACY


def check_version(version: bytes | None, request_id: RequestId = None) -> None:
    """Raise RpcError with status 400 if no leg serves a version in the headers."""
    if version in _LEGACY_HEADERS or version == MODERN_HEADER:
        return
    requested = (version or b"").decode("latin-1")
    # Clients of the legacy leg rely on these bytes, so they do not name the modern version.
    raise RpcError(
        mcp_types.INVALID_PARAMS,
        f"Unsupported MCP-Protocol-Version {quote_value(requested)}; "
        f"supported: {', '.join(LEGACY_VERSIONS)}.",
        request_id,
        status=400,
        data={"supported": list(LEGACY_VERSIONS), "requested": requested[:60]},
    )


def check_modern_request(
    message: Message, headers: HeaderMap, scope: Scope, name_fields: Mapping[str, str]
) -> None:
    """Raise RpcError if a request breaks a rule of the modern leg; the first broken rule counts.

    `name_fields` has the parameter that a header repeats, by method.
    """
    if message.request_id is None:
        raise RpcError(
            mcp_types.INVALID_REQUEST, "Invalid request: id must be a string or an integer."
        )
    # The map joins the values of headers with one name, so there are fewer names if one repeats.
    if len(headers) < len(scope["headers"]):
        for name in (VERSION_HEADER, METHOD_HEADER, NAME_HEADER):
            if len(list_header_values(scope, name)) > 1:
                raise _mismatch_error(name, "must be sent once")
    meta = get_meta(message)
    for key in (mcp_types.PROTOCOL_VERSION_META_KEY, mcp_types.CLIENT_CAPABILITIES_META_KEY):
        if key not in meta:
            reason = f"params._meta must have {quote_value(key)}"
            raise RpcError(mcp_types.INVALID_PARAMS, f"Invalid params: {reason}.")
    version = meta[mcp_types.PROTOCOL_VERSION_META_KEY]
    if not _repeats(headers, VERSION_HEADER, version):
        raise _mismatch_error(VERSION_HEADER, "must repeat the protocol version of params._meta")
    if not _repeats(headers, METHOD_HEADER, message.method):
        raise _mismatch_error(METHOD_HEADER, "must repeat the method of the body")
    field = name_fields.get(message.method)
    named = None if field is None else as_mapping(message.params).get(field)
    repeated = _decode_name(headers[NAME_HEADER]) if NAME_HEADER in headers else None
    if named is not None and repeated != named:
        raise _mismatch_error(NAME_HEADER, f"must repeat params.{field} of the body")
    if version != MODERN_VERSION:
        raise RpcError(
            mcp_types.UNSUPPORTED_PROTOCOL_VERSION,
            f"Unsupported protocol version {quote_value(version)}; supported: {MODERN_VERSION}.",
            data={"supported": [MODERN_VERSION], "requested": version},
        )


def _decode_name(value: bytes) -> str | None:
    """Return the text of a header value, which may be encoded; None if its encoding is broken."""
    text = value.strip(b" \t").decode("latin-1")
    encoded = _ENCODED_VALUE.fullmatch(text)
    if encoded is None:
        return text
    try:
        decoded = base64.b64decode(encoded[1], validate=True)
        # A gateway compares the header as it came, so only one spelling of each name is accepted.
        is_canonical = base64.b64encode(decoded).decode() == encoded[1]
        return decoded.decode() if is_canonical else None
    except ValueError:  # Neither base64 nor UTF-8.
        return None


def get_meta(message: Message) -> Mapping[str, object]:
    """Return the `_meta` of a request, empty if it has none."""
    return as_mapping(as_mapping(message.params).get("_meta"))


def as_mapping(value: object) -> Mapping[str, object]:
    """Return a value that is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _repeats(headers: HeaderMap, name: bytes, expected: object) -> bool:
    value = headers.get(name)
    return value is not None and value.strip(b" \t").decode("latin-1") == expected


def _mismatch_error(name: bytes, reason: str) -> RpcError:
    return RpcError(mcp_types.HEADER_MISMATCH, f"Header mismatch: {name.decode()} {reason}.")
