"""The POST routes of purchases: a JSON body in, read strictly, and what comes of it out."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from rest_shim.endpoints import JSON, Endpoint
from schemas.errors import invalid_parameter
from schemas.purchase import AccessRequestResponse
from serving.arguments import accepted, accepted_values, not_accepted, unknown_names
from serving.http import read_body
from serving.json_schema import Schema

BodyT = TypeVar("BodyT", bound=BaseModel)
Answer = TypeVar("Answer")
# Keys and claim tokens are longer: what may be one, put where it does not belong, is not quoted.
QUOTED_CHARACTERS = 40
Submissions = Mapping[str, Callable[[Any, str], Coroutine[Any, Any, BaseModel]]]


async def submitted(request: Request, endpoint: Endpoint, submissions: Submissions) -> Response:
    """Answer one submission; ApiError is what the caller should read."""
    assert endpoint.body is not None
    body = read_json(await read_body(request.scope, request.receive), endpoint.body)
    address = request.client.host if request.client else "unknown"
    answer = await while_connected(request, submissions[endpoint.operation_id](body, address))
    is_update = isinstance(answer, AccessRequestResponse) and answer.status == "updated"
    return Response(
        answer.model_dump_json(exclude_none=True),
        200 if is_update else endpoint.successes[0].status,
        {"Cache-Control": str(endpoint.cache)},
        media_type=JSON,
    )


async def while_connected(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Return what comes of a work; ClientDisconnect, and its end, where the client leaves first.

    So a claim whose client gave up takes no key away from the one that was sent in its place.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def read_json(content: bytes, model: type[BodyT]) -> BodyT:
    """Return the model that a JSON body makes; one ApiError naming each bad field."""
    given = _object(content, model)
    known = {name: value for name, value in given.items() if name in model.model_fields}
    bad = {name for name, value in known.items() if value is None}
    made: BodyT | None = None
    try:
        made = model.model_validate(known)
    except ValidationError as error:
        bad |= {str(one["loc"][0]) for one in error.errors(include_url=False)}
    if made is None or bad or len(known) < len(given):
        raise invalid_parameter(". ".join(_problems(bad, given, model)) + ".")
    return made


def _object(content: bytes, model: type[BaseModel]) -> dict[str, Any]:
    example = json.dumps(
        {name: "..." for name, field in model.model_fields.items() if field.is_required()}
    )
    if not content.strip():
        raise invalid_parameter(f"The body is empty. Send a JSON object such as {example}.")
    try:
        given = json.loads(content.decode("utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        raise invalid_parameter(
            f"The body is not valid JSON in UTF-8. Send an object such as {example}."
        ) from None
    if not isinstance(given, dict):
        raise invalid_parameter(f"The body must be one JSON object such as {example}.")
    return given


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(made := dict(pairs)) < len(pairs):
        raise invalid_parameter("The body names a field more than once: give each field once.")
    return made


def _problems(bad: set[str], given: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    """Say what is wrong with each field, in the model's order, quoting none that may be secret."""
    fields = accepted(model)
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    known = [
        _problem(name, schema, given, is_required=name in required)
        for name, schema in fields.items()
        if name in bad
    ]
    unknown = [_brief(name) for name in given if name not in fields]
    return known + unknown_names(unknown, fields, "field")


def _problem(name: str, schema: Schema, given: Mapping[str, Any], *, is_required: bool) -> str:
    if name not in given:
        return f"{name}: is missing; accepted: {_wanted(schema)}"
    value = given[name]
    if value is None:
        what = "give a value" if is_required else "leave it out or give a value"
        return f"{name}: null is not accepted, {what}; accepted: {_wanted(schema)}"
    if "enum" in schema and isinstance(value, str):
        return not_accepted(name, schema, _brief(value))
    return f"{name}: {_fault(schema, value)}; accepted: {_wanted(schema)}"


def _fault(schema: Schema, value: Any) -> str:
    if not isinstance(value, str):
        return "is not text"
    if not value:
        return "is empty"
    if len(value) > schema.get("maxLength", len(value)):
        return f"has {len(value)} characters"
    return "has characters that are not accepted"


def _brief(text: str) -> str:
    return text if len(text) <= QUOTED_CHARACTERS else f"{text[:9]}..."


def _wanted(schema: Schema) -> str:
    """Say what a field takes: its description, as the rest of a sentence."""
    if "enum" in schema:
        return accepted_values(schema)
    description = str(schema["description"]).rstrip(".")
    return description[:1].lower() + description[1:]
