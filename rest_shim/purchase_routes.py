"""The POST routes of purchases, and that of the payment processor's notifications.

A JSON body is parsed strictly, the handler runs, and its result is sent.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rest_shim.endpoints import Endpoint
from schemas.errors import ApiError, invalid_parameter_error
from schemas.purchase import (
    AccessRequestBody,
    AccessRequestResponse,
    ActiveClaim,
    Body,
    CheckoutResponse,
    ClaimBody,
    PendingClaim,
)
from serving.arguments import (
    ArgumentError,
    Problem,
    describe_accepted_values,
    describe_rejected_value,
    describe_unknown_names,
    get_argument_schemas,
    list_names,
)
from serving.error_responses import guard_route
from serving.http import JSON, MAX_WEBHOOK_BYTES, get_address, read_body
from serving.json_schema import Schema
from serving.json_text import JSON_EXCESS, has_json_excess
from serving.tool_runner import ToolRunner

BodyT = TypeVar("BodyT", bound=Body)
ResultT = TypeVar("ResultT")
# Returns the normalized address; ValueError if it is not valid.
EmailCheck: TypeAlias = Callable[[str], str]
# Called with the parsed body and the client's address.
PurchaseHandler: TypeAlias = Callable[[BodyT, str], Awaitable[ResultT]]
# Keys and claim tokens are longer, so a secret pasted into the wrong field is never quoted.
MAX_QUOTED_CHARS = 40
# No public document lists it.
WEBHOOK_PATH = "/webhooks/stripe"


@dataclass(frozen=True, slots=True)
class PurchaseHandlers:
    """The handlers of the purchase routes, and the check of the addresses in their bodies.

    With a claim token as third argument, `checkout` opens the same one again.
    """

    check_email: EmailCheck
    checkout: Callable[..., Awaitable[CheckoutResponse]]
    claim: PurchaseHandler[ClaimBody, ActiveClaim | PendingClaim]
    request_access: PurchaseHandler[AccessRequestBody, AccessRequestResponse]


async def handle_purchase(
    request: Request,
    endpoint: Endpoint,
    body_type: type[BodyT],
    handler: PurchaseHandler[BodyT, BaseModel],
    check_email: EmailCheck,
) -> Response:
    """Parse the body of a purchase request, run the handler and return its response.

    ApiError if the body is invalid or the handler refuses it.
    """
    # Content-Type is not checked, because `curl -d` sends that of a form.
    try:
        content = await read_body(request.scope, request.receive)
    except ApiError as error:
        # The contract has no 413 for these calls.
        raise invalid_parameter_error(error.message) from None
    body = parse_body(content, body_type, check_email)
    # After the body, the next event is that of a disconnect. Clients that leave could else make the
    # service do more at a time than its bound on connections allows.
    work = asyncio.ensure_future(handler(body, get_address(request)))
    disconnect = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        result = work.result()
    finally:
        work.cancel()
        disconnect.cancel()
    is_update = isinstance(result, AccessRequestResponse) and result.status == "updated"
    return Response(
        result.model_dump_json(exclude_none=True),
        200 if is_update else endpoint.successes[0].status,
        {"Cache-Control": str(endpoint.cache_control)},
        media_type=JSON,
    )


def parse_body(content: bytes, model: type[BodyT], check_email: EmailCheck) -> BodyT:
    """Parse a JSON body; raise one ArgumentError that names each bad field."""
    raw = _parse_object(content, model)
    # null for an optional field means that it is left out, as on MCP.
    raw = {
        name: value
        for name, value in raw.items()
        if value is not None
        or name not in model.model_fields
        or model.model_fields[name].is_required()
    }
    recognized = {name: value for name, value in raw.items() if name in model.model_fields}
    bad_names = set[str]()
    parsed: BodyT | None = None
    try:
        parsed = model.model_validate(recognized)
    except ValidationError as error:
        bad_names |= {str(one["loc"][0]) for one in error.errors(include_url=False)}
    problems, fields = list[Problem](), get_argument_schemas(model)
    # In the model's order, without quoting likely secrets.
    for name, schema in fields.items():
        if name in bad_names:
            problems.append(Problem(name, f"{name}: {_describe_problem(name, schema, raw)}"))
        elif schema.get("format") == "email" and name in raw:
            try:
                check_email(raw[name])
            except ValueError as error:
                problems.append(Problem(name, f"{name}: {str(error).rstrip('.')}"))
    unknown = [_shorten(name) for name in raw if name not in fields]
    problems += describe_unknown_names(unknown, fields, "field")
    if parsed is None or problems:
        raise ArgumentError(*problems)
    return parsed


def _parse_object(content: bytes, model: type[BaseModel]) -> dict[str, Any]:
    example = json.dumps(
        {name: "..." for name, field in model.model_fields.items() if field.is_required()}
    )
    if not content.strip():
        raise invalid_parameter_error(f"The body is empty. Send a JSON object such as {example}.")
    if has_json_excess(content):
        raise invalid_parameter_error(
            f"The body has {JSON_EXCESS}. Send a JSON object such as {example}."
        )
    try:
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_reject_repeats)
    except ValueError:
        raise invalid_parameter_error(
            f"The body is not valid JSON in UTF-8. Send an object such as {example}."
        ) from None
    if not isinstance(value, dict):
        raise invalid_parameter_error(f"The body must be one JSON object such as {example}.")
    return value


def _reject_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(name for name, _ in pairs)
    if repeated := [_shorten(name) for name, count in counts.items() if count > 1]:
        names = list_names(repeated, lambda name: "")
        raise invalid_parameter_error(
            f"The body has the same field more than once: {names}; send each field once."
        )
    return dict(pairs)


def _describe_problem(name: str, schema: Schema, raw: Mapping[str, Any]) -> str:
    if name not in raw:
        return f"missing; accepted: {_describe_accepted(schema)}"
    value = raw[name]
    if value is None:
        return f"null is not accepted, give a value; accepted: {_describe_accepted(schema)}"
    # The only value that is quoted.
    if "enum" in schema:
        return describe_rejected_value(schema, _shorten(value) if isinstance(value, str) else value)
    fault = "not of the accepted form"
    if not isinstance(value, str):
        fault = "not a string"
    elif not value:
        fault = "empty"
    elif len(value) > schema.get("maxLength", len(value)):
        fault = f"too long ({len(value)} characters)"
    return f"{fault}; accepted: {_describe_accepted(schema)}"


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:9]}..."


def _describe_accepted(schema: Schema) -> str:
    """Return the accepted values, or the field's description as the end of a sentence."""
    if "enum" in schema:
        return describe_accepted_values(schema)
    description = str(schema["description"]).rstrip(".")
    return description[:1].lower() + description[1:]


def build_webhook_route(
    handle: Callable[[bytes, str | None], Awaitable[None]], runner: ToolRunner
) -> Route:
    """Return the route that passes signed webhook messages, with their signature, to `handle`."""

    async def respond(request: Request) -> Response:
        # The signature is over the exact bytes, so the body is passed on unparsed.
        payload = await read_body(request.scope, request.receive, MAX_WEBHOOK_BYTES)
        await handle(payload, request.headers.get("stripe-signature"))
        return JSONResponse({"received": True})

    return Route(WEBHOOK_PATH, guard_route(WEBHOOK_PATH, runner, respond), methods=["POST"])
