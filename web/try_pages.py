"""The pages that try a call; without script they show the request, with script they send it."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from rest_shim.endpoints import Endpoint, list_endpoints
from rest_shim.openapi import build_openapi
from schemas.errors import ApiError
from serving.arguments import ArgumentError
from serving.context import Context
from web.docs_frame import DocsFrame
from web.forms import read_form
from web.try_forms import (
    build_examples,
    build_try_form,
    describe_problems,
    find_errors,
    format_curl,
    parse_query,
)

TRY_PATH = "/docs/try/{operation_id}"
UNKNOWN_CALL = "There is no such call. Choose a page from the list."


class TryPages:
    """Renders the form of each tool and endpoint."""

    def __init__(self, frame: DocsFrame, context: Context) -> None:
        self._frame = frame
        self._context = context
        self._endpoints = {
            endpoint.operation_id: endpoint
            for endpoint in list_endpoints(sells_keys=context.sells_keys)
        }

    async def show_form(self, request: Request) -> Response:
        """Return the form with the typed values, and the request that they make."""
        endpoint = self._endpoints.get(request.path_params["operation_id"])
        if endpoint is None:
            return await self._frame.respond_with(
                request, "docs_index.html", title="Page not found", about=UNKNOWN_CALL, status=404
            )
        is_blank = request.method == "GET" and not request.query_params
        typed = await _read_values(request, endpoint)
        errors = {} if is_blank else await self._find_errors(endpoint, typed)
        form = build_try_form(
            endpoint,
            await self._load_operation(endpoint),
            build_examples(endpoint) if is_blank else typed,
            errors,
        )
        needs_key = endpoint.auth == "api_key"
        return await self._frame.respond_with(
            request,
            "docs_try_form.html",
            name="try",
            title=f"Try {endpoint.operation_id}",
            about=f"Fill in a form and send a real call: {endpoint.summary}.",
            status=400 if errors else 200,
            is_of_url=not is_blank,
            has_try_form=True,
            endpoint=endpoint,
            form=form,
            needs_key=needs_key,
            curl=format_curl(self._context.base_url, form.request, with_key=needs_key),
        )

    async def _load_operation(self, endpoint: Endpoint) -> dict[str, object]:
        """Return the endpoint's operation in the OpenAPI document, which lists covered values."""
        context = self._context
        coverage = await context.snapshots.coverage()
        document = build_openapi(context.base_url, coverage, sells_keys=context.sells_keys)
        operation: dict[str, object] = document["paths"][endpoint.path][endpoint.method.lower()]
        return operation

    async def _find_errors(self, endpoint: Endpoint, typed: Mapping[str, str]) -> dict[str, str]:
        """Return the errors by field; those of the data, such as an unknown ticker, included."""
        errors = find_errors(endpoint, typed)
        if endpoint.handler is None:
            return errors
        try:
            await endpoint.handler.check(parse_query(endpoint.handler, typed), self._context)
        except ArgumentError as error:
            return describe_problems(error) | errors
        except ApiError:
            # Before the first run there are no data to compare with; the call itself says so.
            return errors
        return errors


async def _read_values(request: Request, endpoint: Endpoint) -> Mapping[str, str]:
    """Return the values typed."""
    if request.method == "POST":
        return await read_form(request)
    # The values of a body are personal or secret, so they are never taken from a URL.
    return {} if endpoint.body else dict(request.query_params)
