"""The pages that try a call; without script they show the request, with script they send it."""

from collections.abc import Mapping

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from rest_shim.endpoints import Endpoint, list_endpoints
from rest_shim.openapi import build_operation
from schemas.coverage import Coverage
from schemas.errors import ApiError
from serving.arguments import ArgumentError
from serving.context import Context
from serving.json_schema import Schema
from web.docs_frame import DocsFrame
from web.forms import cut_text, read_form
from web.try_forms import (
    VIA_FIELD,
    build_examples,
    build_try_form,
    describe_problems,
    find_errors,
    format_curl,
    list_schemas,
    parse_query,
)

TRY_PATH = "/docs/try/{operation_id}"
# A value whose schema sets no limit, such as the parameters of a JSON-RPC request.
MAX_VALUE_CHARS = 2000
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
        self._coverage: Coverage | None = None
        self._schemas: dict[str, Mapping[str, Schema]] = {}

    async def show_form(self, request: Request) -> Response:
        """Return the form with the typed values, and the request that they make."""
        endpoint = self._endpoints.get(request.path_params["operation_id"])
        if endpoint is None:
            title = "Page not found"
            return await self._frame.respond(
                request,
                lambda: self._frame.render_body(
                    request, "docs_index.html", title=title, about=UNKNOWN_CALL
                ),
                title,
                UNKNOWN_CALL,
                status=404,
            )
        is_blank = request.method == "GET" and not request.query_params
        coverage = await self._context.snapshots.coverage()
        schemas = self._get_schemas(endpoint, coverage)
        typed = await _read_values(request, endpoint, schemas)
        errors = {} if is_blank else await self._find_errors(endpoint, typed)
        values = build_examples(endpoint) if is_blank else typed
        needs_key = endpoint.auth == "api_key"
        title = f"Try {endpoint.operation_id}"

        def render_body() -> Markup:
            form = build_try_form(endpoint, schemas, values, errors)
            return self._frame.render_body(
                request,
                "docs_try_form.html",
                name="try",
                title=title,
                endpoint=endpoint,
                form=form,
                needs_key=needs_key,
                curl=format_curl(self._context.base_url, form.request, with_key=needs_key),
            )

        return await self._frame.respond(
            request,
            render_body,
            title,
            f"Fill in a form and send a real call: {endpoint.summary}.",
            status=400 if errors else 200,
            is_of_url=not is_blank,
            has_try_form=True,
        )

    def _get_schemas(self, endpoint: Endpoint, coverage: Coverage | None) -> Mapping[str, Schema]:
        """Return the schemas of a form's fields, built once for a coverage: it takes 3 ms."""
        if coverage is not self._coverage:
            self._coverage, self._schemas = coverage, {}
        if endpoint.operation_id not in self._schemas:
            operation = build_operation(endpoint, coverage)
            self._schemas[endpoint.operation_id] = list_schemas(endpoint, operation)
        return self._schemas[endpoint.operation_id]

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


async def _read_values(
    request: Request, endpoint: Endpoint, schemas: Mapping[str, Schema]
) -> Mapping[str, str]:
    """Return the values typed; those longer than their schemas allow are cut."""
    limits = {name: schema.get("maxLength", MAX_VALUE_CHARS) for name, schema in schemas.items()}
    limits[VIA_FIELD] = MAX_VALUE_CHARS
    if request.method == "POST":
        return await read_form(request, limits)
    # The values of a body are personal or secret, so they are never taken from a URL.
    sent = {} if endpoint.body else request.query_params
    return {name: cut_text(sent[name], limit) for name, limit in limits.items() if name in sent}
