"""Logs requests: a debug line for each, and the refusals, at most ten lines of them a minute.

A line has the route's template, never a path, query, header or body: clients put keys and
addresses into all of these.
"""

import asyncio
from collections import Counter
from contextvars import Context
from typing import Any, Final

import structlog
from starlette.types import Scope

from serving.error_responses import CLIENT_CLOSED_REQUEST
from serving.http import ERROR_KEY, REQUEST_ID_KEY, TOOL_KEY
from store.failure_log import INTERVAL_S, CallLater, FailureLog

# Refusals that have a line of their own in a minute. Anybody can cause thousands a second.
MAX_REFUSAL_LINES = 10

log = structlog.get_logger("http")


class RefusalLog:
    """Writes the first refusals of a minute, then one line that counts them by status and route."""

    def __init__(self, call_later: CallLater | None = None) -> None:
        """Without `call_later`, that of the running event loop is used."""
        self._call_later: Final = call_later
        # Routes are templates, so strangers cannot add entries.
        self._counts: Counter[str] = Counter()

    def write(self, fields: dict[str, Any]) -> None:
        """Log a refusal, or only count it if it is one of many."""
        if not self._counts:
            call_later = self._call_later or asyncio.get_running_loop().call_later
            # A context of its own, because the line belongs to no single request.
            call_later(INTERVAL_S, self._end_minute, context=Context())
        self._counts[f"{fields['status']} {fields.get('route', 'no route')}"] += 1
        if self._counts.total() <= MAX_REFUSAL_LINES:
            log.info("refused", **fields)

    def _end_minute(self) -> None:
        counts, self._counts = self._counts, Counter()
        if counts.total() > MAX_REFUSAL_LINES:
            by_route = [f"{key}: {count}" for key, count in counts.most_common()]
            log.info("refusals", count=counts.total(), by_route=by_route)


def log_response(
    scope: Scope, status: int, seconds: float, refusals: RefusalLog, failures: FailureLog
) -> None:
    """Log a request that was answered, and its refusal if it is one.

    `status` is CLIENT_CLOSED_REQUEST if the connection ended before the response.
    """
    error, route, has_left = (
        scope.get(ERROR_KEY),
        scope.get("route"),
        status == CLIENT_CLOSED_REQUEST,
    )
    if error is not None and not has_left:
        # A tool's error over MCP comes with HTTP status 200.
        status = max(status, error.status)
    named = {
        "request_id": scope[REQUEST_ID_KEY].decode(),
        "method": scope["method"],
        # A request that no route matched has none.
        "route": None if route is None else route.path,
        "tool": scope.get(TOOL_KEY),
        "status": status,
        "error": None if error is None else error.code,
        "duration_ms": round(1000 * seconds, 2),
    }
    fields: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    log.debug("request", **fields)
    if has_left or (error is None and status < 400):
        return
    if status < 500:
        refusals.write(fields)
        return
    # It is the service's fault; the same of other requests, once a minute.
    details = {name: fields.pop(name) for name in ("request_id", "duration_ms")}
    failures.write(log.warning, "refused", fields, **details)
