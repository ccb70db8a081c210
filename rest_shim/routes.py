"""Every route but the MCP endpoint's: reads by the tools' handlers, documents, purchases."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_server.calls import AnyTool, Calls, failure_facts, store_failure
from rest_shim.endpoints import (
    CALL_MCP,
    CHECKOUT,
    CLAIM,
    ENDPOINTS,
    GET_LEGAL,
    GET_MANIFEST,
    GET_OPENAPI,
    GET_SAMPLE,
    REQUEST_ACCESS,
    Endpoint,
)
from rest_shim.failures import failed, internal_error
from rest_shim.legal import legal_text
from rest_shim.manifest import manifest_text
from rest_shim.openapi import openapi_text
from rest_shim.purchases import not_open
from rest_shim.query_string import raw_arguments
from rest_shim.sample import sample_text
from schemas.errors import ApiError
from store.protocol import StoreError

log = structlog.get_logger("rest")

Answer = Callable[[Request, Calls], Awaitable[str]]
Responder = Callable[[Request], Coroutine[Any, Any, Response]]


def routes(calls: Calls) -> list[Route]:
    """Return the routes of every spelling of every endpoint; a GET answers HEAD too."""
    return [
        Route(path, _responder(endpoint, calls), methods=[endpoint.method])
        for endpoint in ENDPOINTS
        if endpoint is not CALL_MCP
        for path in endpoint.paths
    ]


def _responder(endpoint: Endpoint, calls: Calls) -> Responder:
    answer = _answer(endpoint)

    async def respond(request: Request) -> Response:
        try:
            return _succeeded(await answer(request, calls), endpoint)
        except ApiError as error:
            return failed(error, calls)
        except StoreError as error:
            return failed(store_failure(error, endpoint.path), calls)
        except Exception as error:
            log.error("rest_request_failed", route=endpoint.path, **failure_facts(error))
            return failed(internal_error(), calls)

    return respond


def _succeeded(text: str, endpoint: Endpoint) -> Response:
    headers = {"Cache-Control": endpoint.cache} if endpoint.cache else None
    success = endpoint.successes[0]
    return Response(text, success.status, headers, media_type=success.media_type)


def _answer(endpoint: Endpoint) -> Answer:
    """Return what answers an endpoint; KeyError at start for one that nothing answers."""
    if endpoint.tool is None:
        return _DOCUMENTS[endpoint.operation_id]
    return _keyed_read(endpoint.tool) if endpoint.tool.keyed else _open_read(endpoint.tool)


def _keyed_read(tool: AnyTool) -> Answer:
    async def read(request: Request, calls: Calls) -> str:
        key = await calls.authorise(tool, request.headers)
        raw = raw_arguments(request.scope["query_string"], tool.query)
        return await calls.answer(tool, raw, key)

    return read


def _open_read(tool: AnyTool) -> Answer:
    """Return a read that looks at neither key nor parameters."""

    async def read(request: Request, calls: Calls) -> str:
        return await calls.answer(tool, {}, None)

    return read


async def _manifest(request: Request, calls: Calls) -> str:
    return manifest_text(calls.context.base_url, await calls.context.boards.coverage())


async def _openapi(request: Request, calls: Calls) -> str:
    return openapi_text(calls.context.base_url, await calls.context.boards.coverage())


async def _sample(request: Request, calls: Calls) -> str:
    return sample_text()


async def _legal(request: Request, calls: Calls) -> str:
    return legal_text()


async def _purchase(request: Request, calls: Calls) -> str:
    raise not_open()


_DOCUMENTS: dict[str, Answer] = {
    GET_MANIFEST.operation_id: _manifest,
    GET_OPENAPI.operation_id: _openapi,
    GET_SAMPLE.operation_id: _sample,
    GET_LEGAL.operation_id: _legal,
    CHECKOUT.operation_id: _purchase,
    CLAIM.operation_id: _purchase,
    REQUEST_ACCESS.operation_id: _purchase,
}
