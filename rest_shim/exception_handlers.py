"""Sends Starlette's routing errors (404, 405) and unexpected failures (500) in the error body."""

from collections.abc import Callable, Coroutine
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from rest_shim.endpoints import list_endpoints
from schemas.errors import ApiError
from serving.arguments import format_suggestion, quote_value
from serving.error_responses import build_error_response
from serving.http import keep_error
from serving.tool_runner import ToolRunner, internal_error

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
