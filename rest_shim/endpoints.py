"""The table of endpoints, from which routes, manifest, OpenAPI and the 404 message are built.

Responses are conditional and compressed: 304 for a matching ETag, gzip if the client accepts it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from mcp_server.chat_views import DRAW_TOOL
from mcp_server.endpoint import PATHS as MCP_PATHS
from mcp_server.tools.tool_table import TOOLS
from rest_shim import error_catalog as refusals
from rest_shim.error_catalog import Refusal
from rest_shim.log import GET_LOG_LEAVES, GET_LOG_PROOF, LOG_PATH
from schemas.manifest_document import Auth, Manifest, OpenApiDocument
from schemas.purchase import (
    AccessRequestBody,
    AccessRequestResponse,
    CheckoutBody,
    CheckoutResponse,
    ClaimBody,
    ClaimResponse,
)
from schemas.rpc_messages import RpcAnswer, RpcFailure, RpcRequest
from schemas.signals import SignalsResponse
from serving.http import (
    CACHE_NO_STORE,
    CACHE_ONE_DAY,
    CACHE_ONE_MINUTE,
    CACHE_PRIVATE,
    CACHE_REVALIDATE,
    JSON,
    HeaderList,
    HeaderMap,
    accepts_gzip,
    read_headers,
)
from serving.response_cache import ResponseBody
from serving.tool_runner import AnyTool

Tag = Literal["reads", "open", "access", "mcp"]


@dataclass(frozen=True, slots=True)
class SuccessResponse:
    """A successful response: JSON of a model, text of a media type, or an empty body."""

    status: int
    description: str
    model: type[BaseModel] | None = None
    media_type: str | None = JSON


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation of the API. Only the first of its paths is documented.

    If `tool` is set, it handles the requests; MCP has it too if `is_listed`. `required` has the
    arguments that a request must have, with an example. `cache_control` is sent with successful
    responses.
    """

    operation_id: str
    paths: tuple[str, ...]
    tag: Tag
    summary: str
    description: str
    successes: tuple[SuccessResponse, ...]
    refusals: tuple[Refusal, ...]
    method: Literal["GET", "POST"] = "GET"
    auth: Auth = "none"
    tool: AnyTool | None = None
    is_listed: bool = True
    required: Mapping[str, str] = field(default_factory=dict)
    body: type[BaseModel] | None = None
    cache_control: str | None = None

    @property
    def path(self) -> str:
        """The documented path."""
        return self.paths[0]


def _build_read(
    tool: AnyTool, path: str = "", success: SuccessResponse | None = None, **required: str
) -> Endpoint:
    """Return the GET endpoint of a tool; its operation id is the tool's name, its path the end.

    A tool with another `path` is not listed by MCP.
    """
    # A tool without arguments cannot get a bad one, since open endpoints ignore unknown names.
    open_refusals: tuple[Refusal, ...] = (refusals.UNAVAILABLE, *refusals.OPEN_REFUSALS)
    if tool.query.model_fields:
        invalid = Refusal(
            "InvalidArgument",
            400,
            "Invalid, empty or repeated parameter, or unknown ticker. Unknown parameters are "
            "ignored.",
            errors=("invalid_parameter", "unknown_ticker"),
        )
        open_refusals = (invalid, *open_refusals)
    return Endpoint(
        operation_id=tool.name,
        paths=(path or f"/api/v1/{tool.name.removeprefix('signals_get_')}",),
        tag="reads" if tool.requires_key else "open",
        summary=tool.title,
        description=tool.description,
        successes=(success or SuccessResponse(200, tool.title, tool.result),),
        refusals=refusals.KEYED_REFUSALS if tool.requires_key else open_refusals,
        auth="api_key" if tool.requires_key else "none",
        tool=tool,
        is_listed=not path,
        required=required,
        cache_control=CACHE_PRIVATE if tool.requires_key else CACHE_ONE_MINUTE,
    )


# Clients build URLs from a base with or without a slash at its end, so both paths are served.
GET_MANIFEST = Endpoint(
    operation_id="signals_get_manifest",
    paths=("/api/v1", "/api/v1/"),
    tag="open",
    summary="Manifest",
    description="Every endpoint, and how to authenticate, get access, poll and register MCP.",
    successes=(SuccessResponse(200, "The manifest", Manifest),),
    refusals=(refusals.UNAVAILABLE, *refusals.OPEN_REFUSALS),
    cache_control=CACHE_ONE_MINUTE,
)
GET_OPENAPI = Endpoint(
    operation_id="signals_get_openapi",
    paths=("/api/v1/openapi.json",),
    tag="open",
    summary="OpenAPI definition",
    description="This document, in OpenAPI 3.1. Its enums list only what is covered.",
    successes=(SuccessResponse(200, "The OpenAPI 3.1 document", OpenApiDocument),),
    refusals=(refusals.UNAVAILABLE, *refusals.OPEN_REFUSALS),
    cache_control=CACHE_ONE_MINUTE,
)
GET_SAMPLE = Endpoint(
    operation_id="signals_get_sample",
    paths=("/api/v1/signals/sample",),
    tag="open",
    summary="Sample of the feed",
    description="Fixed documentation rows of both tiers in the exact live shape. Not live data.",
    successes=(SuccessResponse(200, "Fixed documentation rows", SignalsResponse),),
    refusals=refusals.OPEN_REFUSALS,
    cache_control=CACHE_ONE_DAY,
)
GET_LEGAL = Endpoint(
    operation_id="signals_get_legal",
    paths=("/legal",),
    tag="open",
    summary="Terms, privacy and licence",
    description="Terms of use, stored personal data, redistribution and service level.",
    successes=(SuccessResponse(200, "The page, in Markdown", media_type="text/markdown"),),
    refusals=refusals.OPEN_REFUSALS,
    cache_control=CACHE_ONE_DAY,
)
CREATE_CHECKOUT = Endpoint(
    operation_id="signals_create_checkout",
    paths=("/api/v1/access/checkout",),
    method="POST",
    tag="access",
    summary="Start a purchase",
    description="Returns checkout_url and a claim_token, which cannot be recovered: store "
    "it before opening checkout_url.",
    cache_control=CACHE_NO_STORE,
    body=CheckoutBody,
    successes=(SuccessResponse(201, "A checkout", CheckoutResponse),),
    refusals=(
        refusals.INVALID_BODY,
        refusals.TOO_MANY_ATTEMPTS,
        refusals.UNAVAILABLE,
        *refusals.OPEN_REFUSALS,
    ),
)
# Not throttled like the other two: a claim token has 256 bits, so guessing it is no threat, and
# clients poll this route while the payment settles.
CLAIM_KEY = Endpoint(
    operation_id="signals_claim_key",
    paths=("/api/v1/access/claim",),
    method="POST",
    tag="access",
    summary="Claim the API key",
    description="Returns the one API key of a payment that has settled, once: a repeated "
    "claim is 409. While status is pending, retry every 10 seconds for up to 5 minutes.",
    cache_control=CACHE_NO_STORE,
    body=ClaimBody,
    successes=(SuccessResponse(200, "The key, or a pending status", ClaimResponse),),
    refusals=(
        refusals.INVALID_BODY,
        Refusal(
            "UnknownClaimToken",
            404,
            "Unknown claim_token, or its checkout was cancelled or has expired.",
        ),
        Refusal(
            "ClaimRedeemed",
            409,
            "The claim_token was already redeemed, and the key is not recoverable; or its "
            "subscription must be paid first.",
        ),
        refusals.UNAVAILABLE,
        *refusals.OPEN_REFUSALS,
    ),
)
REQUEST_ACCESS = Endpoint(
    operation_id="signals_request_access",
    paths=("/api/v1/access-request",),
    method="POST",
    tag="access",
    summary="Request redistribution, volume pricing or custom terms",
    description="Optional; a human replies by e-mail.",
    cache_control=CACHE_NO_STORE,
    body=AccessRequestBody,
    successes=(
        SuccessResponse(201, "Request received", AccessRequestResponse),
        SuccessResponse(
            200, "An earlier request of this e-mail address was updated", AccessRequestResponse
        ),
    ),
    refusals=(
        refusals.INVALID_BODY,
        refusals.TOO_MANY_ATTEMPTS,
        refusals.UNAVAILABLE,
        *refusals.OPEN_REFUSALS,
    ),
)
CALL_MCP = Endpoint(
    operation_id="signals_call_mcp",
    paths=MCP_PATHS,
    method="POST",
    tag="mcp",
    summary="MCP server",
    description="JSON-RPC 2.0 over Streamable HTTP with JSON responses, no stream. initialize, "
    "ping, server/discover, tools/list and the catalog and stats tools need no key. The other "
    "tools share the quota of the REST reads, which is in the headers and in _meta of the result. "
    "An error of a tool is a result with isError true and the Error object as its text.",
    body=RpcRequest,
    successes=(
        SuccessResponse(200, "A JSON-RPC result or error", RpcAnswer),
        SuccessResponse(202, "A notification or a response was accepted", media_type=None),
    ),
    refusals=(
        Refusal(
            "UnsupportedVersion",
            400,
            "MCP-Protocol-Version is not supported, or a request of revision 2026-07-28 is "
            "invalid.",
            body=RpcFailure,
        ),
        Refusal(
            "UnknownMethod", 404, "Revision 2026-07-28 does not have the method.", body=RpcFailure
        ),
        Refusal("NotAcceptable", 406, "Accept excludes application/json."),
        Refusal("BodyTooLarge", 413, "The body exceeds 64 KiB."),
        Refusal("UnsupportedMediaType", 415, "The Content-Type is not JSON."),
        *refusals.OPEN_REFUSALS,
    ),
    auth="api_key",
)

GET_LOG_CHECKPOINT = Endpoint(
    operation_id="signals_get_log_checkpoint",
    paths=(f"{LOG_PATH}/checkpoint",),
    tag="open",
    summary="Checkpoint of the log",
    description="The signed size and root of the log of all published rows, a c2sp.org/"
    "tlog-checkpoint with the cosignatures of witnesses. Its tiles are at tile/<L>/<N>[.p/<W>] "
    "beside it, as c2sp.org/tlog-tiles says; entries are not public.",
    successes=(SuccessResponse(200, "The signed note", media_type="text/plain"),),
    refusals=(refusals.UNAVAILABLE, *refusals.OPEN_REFUSALS),
    cache_control=CACHE_REVALIDATE,
)
GET_LOG_KEY = Endpoint(
    operation_id="signals_get_log_key",
    paths=(f"{LOG_PATH}/key",),
    tag="open",
    summary="Key of the log",
    description="The verifier key of the checkpoints (vkey of c2sp.org/signed-note). Keep it: a "
    "client that fetches it each time trusts whoever answers.",
    successes=(SuccessResponse(200, "NAME+ID+KEY", media_type="text/plain"),),
    refusals=(refusals.UNAVAILABLE, *refusals.OPEN_REFUSALS),
    cache_control=CACHE_REVALIDATE,
)


# In the order of the manifest and the OpenAPI document: open reads, keyed reads, purchase, MCP.
ENDPOINTS: tuple[Endpoint, ...] = (
    GET_MANIFEST,
    *(_build_read(tool) for tool in TOOLS if not tool.requires_key),
    GET_SAMPLE,
    GET_OPENAPI,
    GET_LEGAL,
    GET_LOG_CHECKPOINT,
    GET_LOG_KEY,
    *(_build_read(tool) for tool in TOOLS if tool.requires_key),
    _build_read(
        GET_LOG_PROOF,
        f"{LOG_PATH}/proof",
        SuccessResponse(200, "The proof", media_type="text/plain"),
        id="universe.BTC.enzo.1h.1780000000.0",
    ),
    _build_read(GET_LOG_LEAVES, f"{LOG_PATH}/leaves"),
    CREATE_CHECKOUT,
    CLAIM_KEY,
    REQUEST_ACCESS,
    CALL_MCP,
)

# The names under which calls are counted.
CALL_NAMES = (*(one.tool.name for one in ENDPOINTS if one.tool is not None), DRAW_TOOL)


def list_endpoints(*, sells_keys: bool) -> tuple[Endpoint, ...]:
    """Return the endpoints that a deployment documents: without sales, none of a purchase.

    Their routes exist in any case, because a checkout may be older than the setting.
    """
    sales = () if sells_keys else (CREATE_CHECKOUT, CLAIM_KEY)
    return tuple(endpoint for endpoint in ENDPOINTS if endpoint not in sales)


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


def respond_with_body(request: Request, body: ResponseBody, endpoint: Endpoint) -> Response:
    """Return Starlette's response with a body; see `negotiate_response`."""
    status, headers, content = negotiate_response(body, endpoint, read_headers(request.scope))
    return Response(content, status, {name.decode(): value.decode() for name, value in headers})


def is_not_modified(request_headers: HeaderMap, etag: bytes) -> bool:
    """Return true if If-None-Match names a tag; weakness is ignored, as HTTP prescribes."""
    if_none_match = request_headers.get(b"if-none-match")
    if if_none_match is None:
        return False
    tags = [tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b",")]
    return b"*" in tags or etag.removeprefix(b"W/") in tags
