"""Every route but the MCP endpoint's: reads by the tools' handlers, documents, purchases."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rest_shim.content_negotiation import negotiated
from rest_shim.endpoints import (
    CALL_MCP,
    ENDPOINTS,
    GET_LEGAL,
    GET_MANIFEST,
    GET_OPENAPI,
    GET_SAMPLE,
    Endpoint,
)
from rest_shim.error_responses import failed
from rest_shim.legal import legal_text
from rest_shim.manifest import manifest_text
from rest_shim.openapi import openapi_text
from rest_shim.purchases import Submissions, submitted
from rest_shim.query_string import raw_arguments
from rest_shim.sample import sample_text
from schemas.errors import ApiError, failure_facts
from serving.http import HeaderList, fields, quota_headers, respond
from serving.response_cache import Answer
from serving.tool_runner import AnyTool, Calls, internal_error, store_failure
from store.errors import StoreError

log = structlog.get_logger("rest")

# The status that proxies log for a client that left; it reaches nobody.
NOBODY_READS = 499

Document = Callable[[Calls], Awaitable[str]]
Responder = Callable[[Request], Coroutine[Any, Any, Response]]
Telling = Callable[[Request, ApiError], Response]


class Read:
    """ASGI app of one GET: the answer of a tool, with HTTP's validators and compression.

    An open one looks at no key and at no parameter but its own.
    """

    def __init__(self, endpoint: Endpoint, tool: AnyTool, calls: Calls) -> None:
        self._endpoint = endpoint
        self._tool = tool
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        given, tool, query_string = fields(scope), self._tool, scope["query_string"]

        def arguments() -> dict[str, Any]:
            return raw_arguments(query_string, tool.query, only_known=not tool.keyed)

        answer, error, quota = await self._calls.outcome(tool, given, query_string, arguments)
        if error is None:
            status, headers, body = negotiated(answer, self._endpoint, given)
            await respond(scope, send, status, [*headers, *quota_headers(quota)], body)
        else:
            await failed(error, self._calls, quota)(scope, receive, send)


def routes(calls: Calls, submissions: Submissions) -> list[Route]:
    """Return the routes of every spelling of every endpoint; a GET answers HEAD too."""
    return [
        Route(path, _responder(endpoint, calls, submissions), methods=[endpoint.method])
        for endpoint in ENDPOINTS
        if endpoint is not CALL_MCP
        for path in endpoint.paths
    ]


def _responder(endpoint: Endpoint, calls: Calls, submissions: Submissions) -> Read | Responder:
    """Return what answers an endpoint; KeyError at start for one that nothing answers."""
    if endpoint.tool is not None:
        return Read(endpoint, endpoint.tool, calls)
    if endpoint.operation_id in _DOCUMENTS:
        return _document(endpoint, _DOCUMENTS[endpoint.operation_id], calls)
    return _submission(endpoint, submissions, calls)


def _document(endpoint: Endpoint, document: Document, calls: Calls) -> Responder:
    async def respond(request: Request) -> Response:
        answer = _as_answer(await document(calls))
        return _response(*negotiated(answer, endpoint, fields(request.scope)))

    return guarded(endpoint.path, calls, respond)


def _submission(endpoint: Endpoint, submissions: Submissions, calls: Calls) -> Responder:
    async def respond(request: Request) -> Response:
        return await submitted(request, endpoint, submissions)

    return guarded(endpoint.path, calls, respond)


def guarded(route: str, calls: Calls, respond: Responder, told: Telling | None = None) -> Responder:
    """Return a responder whose failures all are `told`, by default in the one error body."""

    def refusal(request: Request, error: ApiError) -> Response:
        return failed(error, calls) if told is None else told(request, error)

    async def answer(request: Request) -> Response:
        try:
            return await respond(request)
        except ApiError as error:
            return refusal(request, error)
        except StoreError as failure:
            return refusal(request, store_failure(failure, route))
        except ClientDisconnect:
            return Response(status_code=NOBODY_READS)
        except Exception as failure:
            log.error("rest_request_failed", route=route, **failure_facts(failure))
            return refusal(request, internal_error())

    return answer


@lru_cache(maxsize=8)
def _as_answer(document: str) -> Answer:
    """Return a document as an answer, the same one as long as its text is the same."""
    return Answer(document.encode())


def _response(status: int, headers: HeaderList, body: bytes) -> Response:
    texts = {name.decode(): value.decode() for name, value in headers}
    return Response(body, status, texts)


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
