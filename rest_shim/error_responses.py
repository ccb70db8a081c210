"""The one error body over HTTP: its headers, the failures of routing, and no-store on each."""

from collections.abc import Callable, Coroutine
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rest_shim.endpoints import ENDPOINTS, JSON
from schemas.errors import ApiError
from schemas.usage import Allowance
from serving.arguments import shown, suggestion
from serving.http import quota_headers
from serving.tool_runner import Calls, internal_error

Handler = Callable[[Request, Exception], Coroutine[Any, Any, Response]]


def failure_handlers(calls: Calls) -> dict[Any, Handler]:
    """Return the handlers that give 404, 405 and 500 the one error body."""

    async def unserved(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return _wrong_method(request, error, calls)
        return failed(_no_such_path(request), calls)

    async def unexpected(request: Request, error: Exception) -> Response:
        return failed(internal_error(), calls)

    return {HTTPException: unserved, Exception: unexpected}


def failed(
    error: ApiError,
    calls: Calls,
    quota: Allowance | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Return the response of a refusal."""
    counted = {name.decode(): value.decode() for name, value in quota_headers(quota)}
    headers = {"Cache-Control": "no-store"} | counted | (headers or {})
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return Response(calls.refusal(error), error.status, headers, media_type=JSON)


def _wrong_method(request: Request, error: HTTPException, calls: Calls) -> Response:
    """Return the refusal of a method; Starlette names those allowed in the order of a set."""
    allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
    message = f"{shown(request.method)} is not allowed here; accepted: {allowed}."
    return failed(ApiError("invalid_parameter", message, 405), calls, headers={"Allow": allowed})


def _no_such_path(request: Request) -> ApiError:
    path = request.url.path
    hint = suggestion(path, (endpoint.path for endpoint in ENDPOINTS))
    served = ", ".join(f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS)
    return ApiError(
        "invalid_parameter", f"{shown(path)} does not exist{hint}; served: {served}.", 404
    )
