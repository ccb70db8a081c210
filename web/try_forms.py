"""The forms that try a call: fields from an operation's schema, and the request that they make."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

from pydantic import BaseModel

from access.contact import normalize_email
from mcp_server.jsonrpc import RpcError, parse_message
from mcp_server.registration import KEY_VARIABLE
from rest_shim.endpoints import CALL_MCP, Endpoint
from rest_shim.openapi import MCP_CALL
from rest_shim.purchases import parse_body
from schemas.jsonrpc import RpcRequest
from serving.arguments import ArgumentError, parse_arguments
from serving.http import JSON
from serving.json_schema import Schema
from serving.query_string import parse_query_string
from serving.tool_runner import AnyTool
from web.markdown_files import load_examples

Kind = Literal["select", "number", "email", "json", "text"]
Via = Literal["rest", "mcp"]
VIA_FIELD = "via"
MCP_HEADERS = (f"Content-Type: {JSON}", f"Accept: {JSON}, text/event-stream")
# The call itself refuses addresses that this deployment does not accept.
check_email = partial(normalize_email, accepts_special_use=True)
# Values of these types are JSON in the form, too.
JSON_TYPES = frozenset({"object", "array"})


class FormField(NamedTuple):
    """One field of a form, with the value that was typed and its error."""

    name: str
    kind: Kind
    description: str
    options: Sequence[str]
    default: str
    is_required: bool
    max_length: int | None
    value: str
    error: str


class CallRequest(NamedTuple):
    """A request; `path` is below the service's root and includes the query."""

    method: str
    path: str
    headers: Sequence[str]
    body: str


@dataclass(frozen=True, slots=True)
class TryForm:
    """A form, and the requests that its values make: the chosen one, and that of the MCP tool."""

    fields: Sequence[FormField]
    via: Via
    request: CallRequest
    rpc: str


def format_curl(base_url: str, request: CallRequest, *, with_key: bool) -> str:
    """Return a request as a curl command; the key is a variable of the shell."""
    parts = [f"curl {shlex.quote(f'{base_url}{request.path}')}"]
    if with_key:
        parts.append(f'-H "Authorization: Bearer ${KEY_VARIABLE}"')
    parts += [f"-H {shlex.quote(header)}" for header in request.headers]
    if request.body:
        parts.append(f"-d {shlex.quote(request.body)}")
    return " \\\n  ".join(parts)


def build_examples(endpoint: Endpoint) -> dict[str, str]:
    """Return the values with which a form begins."""
    if endpoint is CALL_MCP:
        return {name: _format_value(value) for name, value in MCP_CALL.items()}
    if endpoint.tool is None:
        return dict(endpoint.required)
    arguments = load_examples()[endpoint.tool.name].arguments
    return {name: _format_value(value) for name, value in arguments.items()}


def format_example(endpoint: Endpoint, base_url: str, body: str = "") -> str:
    """Return the curl command of an endpoint, with a body or its example arguments."""
    values = {} if body else build_examples(endpoint)
    path = f"{endpoint.path}?{urlencode(values)}" if values else endpoint.path
    request = CallRequest(endpoint.method, path, MCP_HEADERS[:1] if body else (), body)
    return format_curl(base_url, request, with_key=endpoint.auth == "api_key")


def build_try_form(
    endpoint: Endpoint,
    schemas: Mapping[str, Schema],
    typed: Mapping[str, str],
    errors: Mapping[str, str],
) -> TryForm:
    """Return the form of an endpoint whose fields have these schemas, with values and errors."""
    values = {name: text for name, text in typed.items() if name in schemas and text.strip()}
    via: Via = "mcp" if endpoint.tool and typed.get(VIA_FIELD) == "mcp" else "rest"
    rpc = _render_rpc(endpoint, _parse_values(values, schemas)) if endpoint.tool else ""
    request = (
        CallRequest("POST", CALL_MCP.path, MCP_HEADERS, rpc)
        if via == "mcp"
        else _build_request(endpoint, values, schemas)
    )
    fields = [
        _build_field(name, schema, typed.get(name, ""), errors.get(name, ""))
        for name, schema in schemas.items()
    ]
    return TryForm(fields, via, request, rpc)


def find_errors(endpoint: Endpoint, typed: Mapping[str, str]) -> dict[str, str]:
    """Return the errors of the values by field, in the words of the service's own checks."""
    values = {name: text for name, text in typed.items() if text.strip()}
    try:
        if endpoint.handler:
            parse_arguments(endpoint.handler.query, _parse_texts(endpoint.handler, values))
        elif endpoint is CALL_MCP:
            return _find_json_error(values) or _find_rpc_error(values)
        elif endpoint.body:
            body: Any = endpoint.body
            parse_body(_render_body(body, values).encode(), body, check_email)
    except ArgumentError as error:
        return describe_problems(error)
    return {}


def parse_query(tool: AnyTool, typed: Mapping[str, str]) -> BaseModel:
    """Return the query of a tool without the values that are bad."""
    values = {name: text for name, text in typed.items() if text.strip()}
    try:
        query: BaseModel = parse_arguments(tool.query, _parse_texts(tool, values))
    except ArgumentError as error:
        return error.rest or tool.query()
    return query


def _parse_texts(tool: AnyTool, values: Mapping[str, str]) -> dict[str, Any]:
    return parse_query_string(urlencode(values).encode(), tool.query, ignore_unknown=True)


def describe_problems(error: ArgumentError) -> dict[str, str]:
    """Return the text of each problem by field; the field's name is not repeated."""
    texts = {
        problem.argument: problem.text.removeprefix(f"{problem.argument}: ")
        for problem in error.problems
    }
    return {name: f"{text[:1].upper()}{text[1:]}." for name, text in texts.items()}


def _find_json_error(values: Mapping[str, str]) -> dict[str, str]:
    try:
        params = json.loads(values.get("params", "{}"))
    except ValueError:
        return {"params": "This is not JSON. Write an object such as {}."}
    return {} if isinstance(params, dict) else {"params": "Write a JSON object such as {}."}


def _find_rpc_error(values: Mapping[str, str]) -> dict[str, str]:
    try:
        parse_message(_render_body(RpcRequest, values).encode())
    except RpcError as error:
        return {"method": error.message}
    return {}


def list_schemas(endpoint: Endpoint, operation: Schema) -> dict[str, Schema]:
    """Return the schema of each field: those of the body, then parameters and headers.

    `operation` is the endpoint's in the OpenAPI document.
    """
    parameters = {one["name"]: {**one, **one["schema"]} for one in operation.get("parameters", [])}
    if endpoint.body is None:
        return parameters
    body = endpoint.body.model_json_schema()
    required = body.get("required", ())
    fields = {
        name: {**part, "required": name in required} for name, part in body["properties"].items()
    }
    return fields | parameters


def _build_field(name: str, schema: Schema, value: str, error: str) -> FormField:
    options = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    default = schema.get("default")
    return FormField(
        name,
        _choose_kind(schema),
        schema.get("description", ""),
        [str(option) for option in options],
        "" if default is None else str(default),
        schema.get("required", False),
        schema.get("maxLength"),
        value,
        error,
    )


def _choose_kind(schema: Schema) -> Kind:
    if "enum" in schema or "const" in schema:
        return "select"
    if schema.get("type") == "integer":
        return "number"
    if JSON_TYPES & _list_types(schema):
        return "json"
    return "email" if schema.get("format") == "email" else "text"


def _list_types(schema: Schema) -> set[str]:
    return {str(branch.get("type")) for branch in schema.get("anyOf", [schema])}


def _parse_values(values: Mapping[str, str], schemas: Mapping[str, Schema]) -> dict[str, Any]:
    """Return the values with the types of their schemas; a text that has none stays as it is."""
    return {name: _parse_value(text, schemas[name]) for name, text in values.items()}


def _parse_value(text: str, schema: Schema) -> Any:
    types = _list_types(schema)
    if types & {"integer", *JSON_TYPES}:
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _render_rpc(endpoint: Endpoint, arguments: dict[str, Any]) -> str:
    params = {"name": endpoint.operation_id, "arguments": arguments}
    return json.dumps({**MCP_CALL, "params": params}, indent=2, ensure_ascii=False)


def _render_body(model: type[BaseModel], values: Mapping[str, str]) -> str:
    properties = model.model_json_schema()["properties"]
    typed = {name: text for name, text in values.items() if name in properties}
    return json.dumps(_parse_values(typed, properties), ensure_ascii=False)


def _build_request(
    endpoint: Endpoint, values: Mapping[str, str], schemas: Mapping[str, Schema]
) -> CallRequest:
    """Return the request over HTTP, with the values where their schemas place them."""
    query = {name: text for name, text in values.items() if schemas[name].get("in") == "query"}
    headers = list(_format_headers(values, schemas))
    path = f"{endpoint.path}?{urlencode(query)}" if query else endpoint.path
    if endpoint.body is None:
        return CallRequest(endpoint.method, path, headers, "")
    fixed = MCP_HEADERS if endpoint is CALL_MCP else MCP_HEADERS[:1]
    body = _render_body(endpoint.body, values)
    return CallRequest(endpoint.method, path, [*fixed, *headers], body)


def _format_headers(values: Mapping[str, str], schemas: Mapping[str, Schema]) -> Iterator[str]:
    for name, text in values.items():
        # A line break would end the header.
        if schemas[name].get("in") == "header" and text.isprintable():
            yield f"{name}: {text}"
