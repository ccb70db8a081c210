"""Sends errors over HTTP in the one error body, and guards routes against unhandled failures."""

from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from schemas.errors import ApiError, describe_failure
from schemas.usage import QuotaUsage
from serving.http import JSON, build_quota_headers, keep_error
from serving.tool_runner import ToolRunner, internal_error
from store.store_errors import StoreError

# The status that proxies such as nginx log if the client disconnects. No client receives it.
CLIENT_CLOSED_REQUEST = 499

Responder = Callable[[Request], Coroutine[Any, Any, Response]]
# Returns None for a client that gets the error body.
ErrorResponder = Callable[[Request, ApiError], Response | None]

log = structlog.get_logger("rest")


def build_error_response(
    error: ApiError,
    runner: ToolRunner,
    quota: QuotaUsage | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Return the HTTP response of an error."""
    quota_fields = {name.decode(): value.decode() for name, value in build_quota_headers(quota)}
    headers = {"Cache-Control": "no-store"} | quota_fields | (headers or {})
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    headers |= error.retry_headers
    return Response(runner.format_error(error), error.status, headers, media_type=JSON)


def guard_route(
    route: str, runner: ToolRunner, respond: Responder, on_error: ErrorResponder | None = None
) -> Responder:
    """Wrap a responder so that it never raises.

    Failures are rendered by `on_error`, by default or if it returns None as the one error body.
    """

    def build_refusal(request: Request, error: ApiError) -> Response:
        keep_error(request.scope, error)
        response = None if on_error is None else on_error(request, error)
        return build_error_response(error, runner) if response is None else response

    async def respond_guarded(request: Request) -> Response:
        try:
            return await respond(request)
        except ApiError as error:
            return build_refusal(request, error)
        except StoreError as failure:
            return build_refusal(request, runner.log_store_failure(failure, route))
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception as failure:
            cause = describe_failure(failure)
            runner.failures.write(log.error, "rest_request_failed", cause, route=route)
            return build_refusal(request, internal_error())

    return respond_guarded
