"""Builds all routes except the MCP endpoint: reads, documents and purchases."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rest_shim.content_negotiation import negotiate_response
from rest_shim.endpoints import (
    CALL_MCP,
    CLAIM_KEY,
    CREATE_CHECKOUT,
    ENDPOINTS,
    GET_LEGAL,
    GET_LOG_CHECKPOINT,
    GET_LOG_KEY,
    GET_MANIFEST,
    GET_OPENAPI,
    GET_SAMPLE,
    REQUEST_ACCESS,
    Endpoint,
    list_endpoints,
)
from rest_shim.legal import render_legal
from rest_shim.log import build_tile_route, load_log_key, load_signed_note
from rest_shim.manifest import render_manifest
from rest_shim.openapi import render_openapi
from rest_shim.purchases import (
    BodyT,
    EmailCheck,
    PurchaseHandler,
    PurchaseHandlers,
    handle_purchase,
)
from rest_shim.sample import render_sample
from schemas.errors import ApiError
from schemas.purchase import AccessRequestBody, CheckoutBody, ClaimBody
from serving.arguments import format_suggestion, quote_value
from serving.error_responses import Responder, build_error_response, guard_route
from serving.http import (
    TOOL_KEY,
    HeaderList,
    build_quota_headers,
    keep_error,
    read_headers,
    respond,
)
from serving.query_string import parse_query_string
from serving.response_cache import ResponseBody
from serving.tool_runner import AnyTool, ToolRunner, internal_error

DocumentRenderer = Callable[[ToolRunner], Awaitable[str]]


class ToolRoute:
    """ASGI app of a GET endpoint that runs a tool or reader, with ETag and compression.

    If the tool needs no key, keys and unknown parameters are ignored.
    """

    def __init__(self, endpoint: Endpoint, tool: AnyTool, runner: ToolRunner) -> None:
        self._endpoint = endpoint
        self._tool = tool
        self._runner = runner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        # The query string itself is the runner's cache key: equal bytes parse to equal arguments.
        request_headers, tool, query_string = read_headers(scope), self._tool, scope["query_string"]
        scope[TOOL_KEY] = tool.name

        def parse_arguments() -> dict[str, Any]:
            return parse_query_string(
                query_string, tool.query, ignore_unknown=not tool.requires_key
            )

        result = await self._runner.run(
            tool, request_headers, lambda: query_string, parse_arguments, scope
        )
        response, error, quota, _ = result
        if error is None:
            status, headers, body = negotiate_response(response, self._endpoint, request_headers)
            self._runner.report_key_call(scope, tool, "rest", result, status)
            await respond(scope, send, status, [*headers, *build_quota_headers(quota)], body)
        else:
            keep_error(scope, error)
            self._runner.report_key_call(scope, tool, "rest", result, error.status)
            # Errors are rare, so they take Starlette's slower response.
            await build_error_response(error, self._runner, quota)(scope, receive, send)


def build_routes(runner: ToolRunner, handlers: PurchaseHandlers) -> list[Route]:
    """Return a route for every path of every endpoint; Starlette adds HEAD to each GET."""
    purchase_responders = _build_purchase_responders(handlers, runner)
    routes = [
        Route(
            path,
            _build_responder(endpoint, runner, purchase_responders),
            methods=[endpoint.method],
        )
        for endpoint in ENDPOINTS
        if endpoint is not CALL_MCP
        for path in endpoint.paths
    ]
    # OpenAPI cannot describe its path, which has any number of slashes.
    return [*routes, build_tile_route(runner)]


def _build_responder(
    endpoint: Endpoint, runner: ToolRunner, purchase_responders: Mapping[str, Responder]
) -> ToolRoute | Responder:
    """Return the responder of an endpoint; KeyError at startup if it has none."""
    if endpoint.handler is not None:
        return ToolRoute(endpoint, endpoint.handler, runner)
    if endpoint.operation_id in _DOCUMENT_RENDERERS:
        return _build_document_responder(
            endpoint, _DOCUMENT_RENDERERS[endpoint.operation_id], runner
        )
    return purchase_responders[endpoint.operation_id]


def _build_document_responder(
    endpoint: Endpoint, render: DocumentRenderer, runner: ToolRunner
) -> Responder:
    async def respond(request: Request) -> Response:
        response = _to_response(await render(runner))
        return _to_http_response(
            *negotiate_response(response, endpoint, read_headers(request.scope))
        )

    return guard_route(endpoint.path, runner, respond)


def _build_purchase_responders(
    handlers: PurchaseHandlers, runner: ToolRunner
) -> dict[str, Responder]:
    """Return the responders of the purchase routes, by operation id."""
    return {
        CREATE_CHECKOUT.operation_id: _build_purchase_responder(
            CREATE_CHECKOUT, CheckoutBody, handlers.checkout, handlers.check_email, runner
        ),
        CLAIM_KEY.operation_id: _build_purchase_responder(
            CLAIM_KEY, ClaimBody, handlers.claim, handlers.check_email, runner
        ),
        REQUEST_ACCESS.operation_id: _build_purchase_responder(
            REQUEST_ACCESS, AccessRequestBody, handlers.request_access, handlers.check_email, runner
        ),
    }


def _build_purchase_responder(
    endpoint: Endpoint,
    body_type: type[BodyT],
    handler: PurchaseHandler[BodyT, BaseModel],
    check_email: EmailCheck,
    runner: ToolRunner,
) -> Responder:
    async def respond(request: Request) -> Response:
        return await handle_purchase(request, endpoint, body_type, handler, check_email)

    return guard_route(endpoint.path, runner, respond)


# The six documents, each with its present and its previous text.
@lru_cache(maxsize=12)
def _to_response(text: str) -> ResponseBody:
    """Return a document as a response, cached by text to keep its ETag and gzip form."""
    return ResponseBody(text.encode())


def _to_http_response(status: int, headers: HeaderList, body: bytes) -> Response:
    header_texts = {name.decode(): value.decode() for name, value in headers}
    return Response(body, status, header_texts)


async def _render_manifest(runner: ToolRunner) -> str:
    context = runner.context
    coverage = await context.snapshots.coverage()
    return render_manifest(
        context.base_url, coverage, context.mode, context.daily_limit, context.operator
    )


async def _render_openapi(runner: ToolRunner) -> str:
    context = runner.context
    coverage = await context.snapshots.coverage()
    return render_openapi(
        context.base_url, coverage, sells_keys=context.sells_keys, operator=context.operator
    )


async def _render_sample(runner: ToolRunner) -> str:
    return render_sample()


async def _render_legal(runner: ToolRunner) -> str:
    return render_legal(runner.context.operator)


async def _render_log_checkpoint(runner: ToolRunner) -> str:
    _, note = await load_signed_note(runner.context.snapshots.store.feed_log)
    return note


async def _render_log_key(runner: ToolRunner) -> str:
    return await load_log_key(runner.context.snapshots.store.feed_log)


_DOCUMENT_RENDERERS: dict[str, DocumentRenderer] = {
    GET_MANIFEST.operation_id: _render_manifest,
    GET_OPENAPI.operation_id: _render_openapi,
    GET_SAMPLE.operation_id: _render_sample,
    GET_LEGAL.operation_id: _render_legal,
    GET_LOG_CHECKPOINT.operation_id: _render_log_checkpoint,
    GET_LOG_KEY.operation_id: _render_log_key,
}


# Returns the page of an error, None for a client that gets the error body.
RefusalRenderer = Callable[[Scope, ApiError], Response | None]
ExceptionHandler = Callable[[Request, Exception], Coroutine[Any, Any, Response]]


def build_exception_handlers(
    runner: ToolRunner, render_page: RefusalRenderer = lambda scope, error: None
) -> dict[Any, ExceptionHandler]:
    """Return Starlette exception handlers for 404, 405 and 500; browsers get `render_page`."""

    def refuse(request: Request, error: ApiError, headers: dict[str, str]) -> Response:
        keep_error(request.scope, error)
        page = render_page(request.scope, error)
        if page is None:
            return build_error_response(error, runner, headers=headers)
        page.headers.update(headers)
        return page

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            refusal, headers = _wrong_method_error(request, error)
        else:
            refusal, headers = _no_such_path_error(request, runner), {}
        return refuse(request, refusal, headers)

    # Starlette sends this response and raises the error again, so that the server logs it.
    async def on_unexpected_error(request: Request, error: Exception) -> Response:
        return refuse(request, internal_error(), {})

    return {HTTPException: on_http_exception, Exception: on_unexpected_error}


def _wrong_method_error(request: Request, error: HTTPException) -> tuple[ApiError, dict[str, str]]:
    """Return the 405 error and its headers, with the allowed methods in both."""
    # Starlette joins a set, so the order differs between processes unless it is sorted.
    allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
    message = f"Method {quote_value(request.method)} is not allowed here; accepted: {allowed}."
    return ApiError("invalid_parameter", message, 405), {"Allow": allowed}


def _no_such_path_error(request: Request, runner: ToolRunner) -> ApiError:
    path, endpoints = request.url.path, list_endpoints(sells_keys=runner.context.sells_keys)
    hint = format_suggestion(path, (endpoint.path for endpoint in endpoints))
    served = ", ".join(f"{endpoint.method} {endpoint.path}" for endpoint in endpoints)
    return ApiError(
        "invalid_parameter",
        f"Path {quote_value(path)} does not exist{hint}; available: {served}.",
        404,
    )
