"""Logs requests: a debug line for each, and another line for each refusal.

A line has the route's template, never a path, query, header or body: clients put keys and
addresses into all of these.
"""

import logging
from typing import Any

import structlog
from starlette.types import Scope

from serving.error_responses import CLIENT_CLOSED_REQUEST
from serving.http import ERROR_KEY, REQUEST_ID_KEY, TOOL_KEY
from store.failure_log import FailureLog

log = structlog.get_logger("http")


def is_every_request_logged() -> bool:
    """Return whether the log level includes the line of each request."""
    return bool(log.is_enabled_for(logging.DEBUG))


def log_response(scope: Scope, status: int, seconds: float, failures: FailureLog) -> None:
    """Log a request that was answered, and its refusal if it is one."""
    error = scope.get(ERROR_KEY)
    # A tool's error over MCP comes with HTTP status 200.
    status = max(status, 0 if error is None else error.status)
    fields = _describe_request(scope, status, seconds)
    # Bound once, because each use of `log` binds it again.
    bound_log = log.bind()
    bound_log.debug("request", **fields)
    if error is not None or status >= 400:
        if status < 500:
            bound_log.info("refused", **fields)
        else:
            _write_outage(failures, fields)


def _write_outage(failures: FailureLog, fields: dict[str, Any]) -> None:
    """Log a refusal that is the service's fault; the same of other requests, once a minute."""
    details = {name: fields.pop(name) for name in ("request_id", "duration_ms")}
    failures.write(log.warning, "refused", fields, **details)


def log_abandoned(scope: Scope, seconds: float) -> None:
    """Log a request whose connection ended before the response."""
    log.debug("request", **_describe_request(scope, CLIENT_CLOSED_REQUEST, seconds))


def log_malformed(request_id: str, reason: str) -> None:
    """Log the refusal of bytes that are not an HTTP request."""
    log.info("refused", request_id=request_id, status=400, reason=reason)


def _describe_request(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    """Return the fields of a line; a request that no route matched has none."""
    error, route = scope.get(ERROR_KEY), scope.get("route")
    fields = {
        "request_id": scope[REQUEST_ID_KEY].decode(),
        "method": scope["method"],
        "route": None if route is None else route.path,
        "tool": scope.get(TOOL_KEY),
        "status": status,
        "error": None if error is None else error.code,
        "duration_ms": round(1000 * seconds, 2),
    }
    return {name: value for name, value in fields.items() if value is not None}
