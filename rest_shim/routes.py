"""Builds all routes except the MCP endpoint: reads, documents and purchases."""

from collections.abc import Callable, Coroutine
from functools import lru_cache, partial
from typing import Any

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

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
    negotiate_response,
    respond_with_body,
)
from rest_shim.legal import render_legal
from rest_shim.log import build_tile_route, load_log_key, load_signed_note
from rest_shim.manifest import render_manifest
from rest_shim.openapi import render_openapi
from rest_shim.purchase_routes import PurchaseHandler, PurchaseHandlers, handle_purchase
from rest_shim.sample import render_sample
from schemas.errors import ApiError
from schemas.purchase import AccessRequestBody, Body, CheckoutBody, ClaimBody
from serving.arguments import format_suggestion, parse_query_string, quote_value
from serving.error_responses import Responder, build_error_response, guard_route
from serving.http import (
    TOOL_KEY,
    build_quota_headers,
    keep_error,
    read_headers,
    respond,
)
from serving.response_cache import ResponseBody
from serving.tool_runner import AnyTool, ToolRunner, internal_error


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
        request_headers, tool, query_string = read_headers(scope), self._tool, scope["query_string"]
        scope[TOOL_KEY] = tool.name

        def parse_arguments() -> dict[str, Any]:
            return parse_query_string(
                query_string, tool.query, ignore_unknown=not tool.requires_key
            )

        result = await self._runner.run(tool, request_headers, parse_arguments, scope)
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
    purchases: dict[str, tuple[type[Body], PurchaseHandler[Any, BaseModel]]] = {
        CREATE_CHECKOUT.operation_id: (CheckoutBody, handlers.checkout),
        CLAIM_KEY.operation_id: (ClaimBody, handlers.claim),
        REQUEST_ACCESS.operation_id: (AccessRequestBody, handlers.request_access),
    }
    # OpenAPI cannot describe its path, which has any number of slashes.
    routes = [build_tile_route(runner)]
    for endpoint in ENDPOINTS:
        if endpoint is CALL_MCP:
            continue
        responder: ToolRoute | Responder
        if endpoint.tool is not None:
            responder = ToolRoute(endpoint, endpoint.tool, runner)
        elif endpoint.method == "GET":
            respond = partial(_respond_with_document, endpoint=endpoint, runner=runner)
            responder = guard_route(endpoint.path, runner, respond)
        else:
            body_type, handle = purchases[endpoint.operation_id]
            respond = partial(
                handle_purchase,
                endpoint=endpoint,
                body_type=body_type,
                handler=handle,
                check_email=handlers.check_email,
            )
            responder = guard_route(endpoint.path, runner, respond)
        routes += [Route(path, responder, methods=[endpoint.method]) for path in endpoint.paths]
    return routes


# The six documents, each with its present and its previous text; it keeps their ETag and gzip form.
_to_body = lru_cache(maxsize=12)(lambda text: ResponseBody(text.encode()))


async def _respond_with_document(
    request: Request, endpoint: Endpoint, runner: ToolRunner
) -> Response:
    context = runner.context
    feed_log, operator = context.snapshots.store.feed_log, context.operator
    if endpoint is GET_LOG_CHECKPOINT:
        text = (await load_signed_note(feed_log))[1]
    elif endpoint is GET_LOG_KEY:
        text = await load_log_key(feed_log)
    elif endpoint is GET_SAMPLE:
        text = render_sample()
    elif endpoint is GET_LEGAL:
        text = render_legal(operator)
    elif endpoint is GET_MANIFEST:
        coverage = await context.snapshots.coverage()
        text = render_manifest(
            context.base_url, coverage, context.mode, context.daily_limit, operator
        )
    else:
        assert endpoint is GET_OPENAPI
        coverage, sells_keys = await context.snapshots.coverage(), context.sells_keys
        text = render_openapi(context.base_url, coverage, sells_keys=sells_keys, operator=operator)
    return respond_with_body(request, _to_body(text), endpoint)


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
            # Starlette joins a set, so the order differs between processes unless it is sorted.
            allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
            method = quote_value(request.method)
            message = f"Method {method} is not allowed here; accepted: {allowed}."
            refusal = ApiError("invalid_parameter", message, 405)
            return refuse(request, refusal, {"Allow": allowed})
        path, endpoints = request.url.path, list_endpoints(sells_keys=runner.context.sells_keys)
        hint = format_suggestion(path, (endpoint.path for endpoint in endpoints))
        served = ", ".join(f"{endpoint.method} {endpoint.path}" for endpoint in endpoints)
        message = f"Path {quote_value(path)} does not exist{hint}; available: {served}."
        return refuse(request, ApiError("invalid_parameter", message, 404), {})

    # Starlette sends this response and raises the error again, so that the server logs it.
    async def on_unexpected_error(request: Request, error: Exception) -> Response:
        return refuse(request, internal_error(), {})

    return {HTTPException: on_http_exception, Exception: on_unexpected_error}
