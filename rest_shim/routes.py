"""The keyed reads as REST: the same handlers as the tools, with HTTP's statuses and headers."""

from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_server.calls import AnyTool, Calls, failure_facts
from mcp_server.tools.get_signals import GET_SIGNALS
from mcp_server.tools.get_state import GET_STATE
from rest_shim.query_string import raw_arguments
from schemas.errors import ApiError

READS: dict[str, AnyTool] = {"/api/v1/state": GET_STATE, "/api/v1/signals": GET_SIGNALS}
RETRY_S = 60

log = structlog.get_logger("rest")

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]
Handler = Callable[[Request, Exception], Coroutine[Any, Any, Response]]


def read_routes(calls: Calls) -> list[Route]:
    """Return one GET (and HEAD) route for each keyed read."""
    return [Route(path, _read(tool, path, calls), methods=["GET"]) for path, tool in READS.items()]


def failure_handlers(calls: Calls) -> dict[Any, Handler]:
    """Return the handlers that give 404, 405 and 500 the one error body."""

    async def http_failure(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _failed(_http_error(request, error), calls, dict(error.headers or {}))

    async def unexpected(request: Request, error: Exception) -> Response:
        return _failed(_internal_error(), calls)

    return {HTTPException: http_failure, Exception: unexpected}


def _read(tool: AnyTool, path: str, calls: Calls) -> Endpoint:
    async def read(request: Request) -> Response:
        try:
            return _json(await _answer(tool, request, calls))
        except ApiError as error:
            return _failed(error, calls)
        except Exception as error:
            log.error("rest_request_failed", route=path, **failure_facts(error))
            return _failed(_internal_error(), calls)

    return read


async def _answer(tool: AnyTool, request: Request, calls: Calls) -> str:
    await calls.authorise(tool, request.headers)
    return await calls.answer(tool, raw_arguments(request.scope["query_string"], tool.query))


def _failed(error: ApiError, calls: Calls, headers: dict[str, str] | None = None) -> Response:
    headers = dict(headers or {})
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return _json(calls.refusal(error), error.status, headers)


def _http_error(request: Request, error: HTTPException) -> ApiError:
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "GET")
        message = f"{request.method} is not allowed here; accepted: {allowed}."
    else:
        message = f"No such path; served: {', '.join(READS)} and POST /api/v1/mcp."
    return ApiError("invalid_parameter", message, error.status_code)


def _internal_error() -> ApiError:
    return ApiError(
        "unavailable",
        f"Internal error; the operator's log says more. Retry after {RETRY_S} seconds.",
        500,
        retry_after_s=RETRY_S,
    )


def _json(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, headers, media_type="application/json")
