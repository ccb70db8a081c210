"""Every route but the MCP endpoint's: reads by the tools' handlers, documents, purchases."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_server.calls import (
    AnyTool,
    Calls,
    internal_error,
    quota_headers,
    store_failure,
)
from rest_shim.endpoints import (
    CALL_MCP,
    ENDPOINTS,
    GET_LEGAL,
    GET_MANIFEST,
    GET_OPENAPI,
    GET_SAMPLE,
    Endpoint,
)
from rest_shim.failures import failed
from rest_shim.legal import legal_text
from rest_shim.manifest import manifest_text
from rest_shim.openapi import openapi_text
from rest_shim.purchases import Submissions, submitted
from rest_shim.query_string import raw_arguments
from rest_shim.sample import sample_text
from schemas.errors import ApiError, failure_facts
from store.protocol import StoreError

log = structlog.get_logger("rest")

# The status that proxies log for a client that left; it reaches nobody.
NOBODY_READS = 499

Document = Callable[[Calls], Awaitable[str]]
Responder = Callable[[Request], Coroutine[Any, Any, Response]]


def routes(calls: Calls, submissions: Submissions) -> list[Route]:
    """Return the routes of every spelling of every endpoint; a GET answers HEAD too."""
    return [
        Route(path, _responder(endpoint, calls, submissions), methods=[endpoint.method])
        for endpoint in ENDPOINTS
        if endpoint is not CALL_MCP
        for path in endpoint.paths
    ]


def _responder(endpoint: Endpoint, calls: Calls, submissions: Submissions) -> Responder:
    """Return what answers an endpoint; KeyError at start for one that nothing answers."""
    if endpoint.tool is not None:
        return _read(endpoint, endpoint.tool, calls)
    if endpoint.operation_id in _DOCUMENTS:
        return _document(endpoint, _DOCUMENTS[endpoint.operation_id], calls)
    return _submission(endpoint, submissions, calls)


def _read(endpoint: Endpoint, tool: AnyTool, calls: Calls) -> Responder:
    """Return the read of a tool; an open one looks at no key and at no parameter but its own."""

    async def read(request: Request) -> Response:
        def arguments() -> dict[str, str]:
            query_string = request.scope["query_string"]
            return raw_arguments(query_string, tool.query, only_known=not tool.keyed)

        outcome = await calls.outcome(tool, request.headers, arguments)
        headers = quota_headers(outcome.quota)
        if outcome.error is not None:
            return failed(outcome.error, calls, headers)
        return _succeeded(outcome.text, endpoint, headers)

    return read


def _document(endpoint: Endpoint, document: Document, calls: Calls) -> Responder:
    async def respond(request: Request) -> Response:
        return _succeeded(await document(calls), endpoint, {})

    return guarded(endpoint.path, calls, respond)


def _submission(endpoint: Endpoint, submissions: Submissions, calls: Calls) -> Responder:
    async def respond(request: Request) -> Response:
        return await submitted(request, endpoint, submissions)

    return guarded(endpoint.path, calls, respond)


def guarded(route: str, calls: Calls, respond: Responder) -> Responder:
    """Return a responder whose failures all have the one error body."""

    async def answer(request: Request) -> Response:
        try:
            return await respond(request)
        except ApiError as refusal:
            return failed(refusal, calls)
        except StoreError as failure:
            return failed(store_failure(failure, route), calls)
        except ClientDisconnect:
            return Response(status_code=NOBODY_READS)
        except Exception as failure:
            log.error("rest_request_failed", route=route, **failure_facts(failure))
            return failed(internal_error(), calls)

    return answer


def _succeeded(text: str, endpoint: Endpoint, headers: dict[str, str]) -> Response:
    success = endpoint.successes[0]
    cached = {"Cache-Control": endpoint.cache} if endpoint.cache else {}
    return Response(text, success.status, headers | cached, media_type=success.media_type)


async def _manifest(calls: Calls) -> str:
    context = calls.context
    coverage = await context.boards.coverage()
    return manifest_text(context.base_url, coverage, context.mode, context.daily_limit)


async def _openapi(calls: Calls) -> str:
    return openapi_text(calls.context.base_url, await calls.context.boards.coverage())


async def _sample(calls: Calls) -> str:
    return sample_text()


async def _legal(calls: Calls) -> str:
    return legal_text()


_DOCUMENTS: dict[str, Document] = {
    GET_MANIFEST.operation_id: _manifest,
    GET_OPENAPI.operation_id: _openapi,
    GET_SAMPLE.operation_id: _sample,
    GET_LEGAL.operation_id: _legal,
}
