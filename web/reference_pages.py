"""What each reference page shows: made from schemas, endpoints and clients, or an article."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode

from access.plan import PRICE_USD
from mcp_server.client_registration import CLIENTS, KEY_VARIABLE
from mcp_server.tools.registry import TOOLS
from rest_shim.endpoints import CHECKOUT, CLAIM, ENDPOINTS, Endpoint
from rest_shim.manifest import PURCHASES
from rest_shim.openapi import openapi
from schemas.coverage import Coverage
from schemas.errors import ErrorBody
from schemas.purchase import CLAIM_EVERY_S, CLAIM_FOR_S
from schemas.vocabulary import Mode
from serving.json_schema import input_schema
from serving.tool_runner import AnyTool
from web.field_rows import FieldRow, Shape, field_rows, shapes
from web.markdown import Article, Heading, inline
from web.markdown_files import Example, articles, examples

EMAIL = "agent@example.com"
# Whatever is not named here follows, by name.
ORDER = (
    *("connect", "buy", "tools", "rest", "agents", "examples"),
    *("indicators", "universe", "decisions", "legal"),
)
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the pages tell of this deployment."""

    base_url: str
    coverage: Coverage | None
    mode: Mode | None
    daily_limit: int


class Made(NamedTuple):
    """A page that is made; its template has its name."""

    title: str
    about: str
    values: Callable[[Facts], Values]


class PageLink(NamedTuple):
    """A page as others point to it."""

    name: str
    title: str
    about: str


class ToolPart(NamedTuple):
    """What a page tells of a tool."""

    tool: AnyTool
    endpoint: Endpoint
    hints: dict[str, Any]
    arguments: list[FieldRow]
    shapes: list[Shape]
    example: Example


class EndpointPart(NamedTuple):
    """What a page tells of an endpoint; the answer of a tool is told with the tool."""

    endpoint: Endpoint
    parameters: list[FieldRow]
    body: list[FieldRow]
    shapes: list[Shape]
    call: str


def page_links() -> list[PageLink]:
    """Return every page, those first that are needed first."""
    pages: dict[str, Made | Article] = {**articles(tuple(MADE)), **MADE}
    names = [*ORDER, *sorted(pages.keys() - set(ORDER))]
    return [PageLink(name, pages[name].title, pages[name].about) for name in names]


def page_values(name: str, facts: Facts) -> tuple[str, Values]:
    """Return template and values of a page; KeyError where there is none of that name."""
    if name in MADE:
        made = MADE[name]
        values = {"title": made.title, "about": made.about, **made.values(facts)}
        return f"docs_{name}.html", values
    article = articles(tuple(MADE))[name]
    template = "docs_indicators.html" if name == "indicators" else "docs_text.html"
    return template, {**_told(article), "coverage": facts.coverage}


def _told(article: Article) -> Values:
    about, headings, html = article.about, article.headings, article.html
    return {"title": article.title, "about": about, "headings": headings, "html": html}


def _tools(facts: Facts) -> Values:
    endpoints = {endpoint.operation_id: endpoint for endpoint in ENDPOINTS}
    parts = [_tool_part(tool, endpoints[tool.name], facts.coverage) for tool in TOOLS]
    return {"parts": parts, "headings": [_heading(tool.name, tool.name) for tool in TOOLS]}


def _tool_part(tool: AnyTool, endpoint: Endpoint, coverage: Coverage | None) -> ToolPart:
    hints = tool.annotations.model_dump(by_alias=True, exclude_none=True)
    return ToolPart(
        tool,
        endpoint,
        {**hints, **tool.meta},
        list(field_rows(input_schema(tool.query, coverage))),
        shapes(tool.result),
        examples()[tool.name],
    )


def _rest(facts: Facts) -> Values:
    paths = openapi(facts.base_url, facts.coverage)["paths"]
    return {
        "parts": [_endpoint_part(one, paths[one.path], facts.base_url) for one in ENDPOINTS],
        "error": shapes(ErrorBody)[0],
        "daily_limit": facts.daily_limit,
        "headings": [
            *(_heading(one.operation_id, f"{one.method} {one.path}") for one in ENDPOINTS),
            _heading("errors", "Errors"),
        ],
    }


def _endpoint_part(endpoint: Endpoint, item: dict[str, Any], base_url: str) -> EndpointPart:
    given = item[endpoint.method.lower()].get("parameters", [])
    schema = {"properties": {one["name"]: {**one, **one["schema"]} for one in given}}
    models = [one.model for one in endpoint.successes if one.model and not endpoint.tool]
    return EndpointPart(
        endpoint,
        list(field_rows(schema)),
        list(field_rows(endpoint.body.model_json_schema())) if endpoint.body else [],
        [shape for model in dict.fromkeys(models) for shape in shapes(model)],
        _curl(endpoint, base_url) if endpoint.method == "GET" else "",
    )


def _curl(endpoint: Endpoint, base_url: str, body: str = "") -> str:
    """Return the command line that calls an endpoint, a tool's as its example does."""
    arguments = examples()[endpoint.tool.name].arguments if endpoint.tool else {}
    query = f"?{urlencode(arguments)}" if arguments else ""
    parts = [f"curl {shlex.quote(f'{base_url}{endpoint.path}{query}')}"]
    if endpoint.auth == "api_key":
        parts.append(f'-H "Authorization: Bearer ${KEY_VARIABLE}"')
    if body:
        parts += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(body)}"]
    return " \\\n  ".join(parts)


def _connect(facts: Facts) -> Values:
    headings = [_heading(one.name, one.title.replace("`", "")) for one in CLIENTS]
    told = [(inline(one.told), one.lines(facts.base_url)) for one in CLIENTS]
    return {
        "parts": [(heading, *each) for heading, each in zip(headings, told, strict=True)],
        "key_variable": KEY_VARIABLE,
        "base_url": facts.base_url,
        "headings": headings,
    }


def _buy(facts: Facts) -> Values:
    billing = next(iter(PRICE_USD))
    checkout = json.dumps({"contact_email": EMAIL, "billing": billing})
    return {
        "prices": PRICE_USD,
        "daily_limit": facts.daily_limit,
        "mode": facts.mode,
        "note": inline(PURCHASES[facts.mode]),
        "every_s": CLAIM_EVERY_S,
        "for_s": CLAIM_FOR_S,
        "checkout": _curl(CHECKOUT, facts.base_url, checkout),
        "claim": _curl(CLAIM, facts.base_url, '{"claim_token": "ct_..."}'),
        "headings": [_heading("steps", "Three steps"), _heading("members", "For members")]
        if facts.mode
        else [],
    }


def _heading(id_: str, text: str) -> Heading:
    return Heading(2, id_, text)


MADE = {
    "connect": Made(
        "Connect an agent",
        "What registers this service with each client and framework, ready to copy.",
        _connect,
    ),
    "buy": Made("Buy access", "What a key costs, and the calls by which an agent buys it.", _buy),
    "tools": Made(
        "MCP tools",
        "Every tool: when to use it, its arguments, the fields of its answer, an example.",
        _tools,
    ),
    "rest": Made(
        "REST endpoints",
        "Every endpoint: parameters, bodies, answers, statuses, and whether it needs a key.",
        _rest,
    ),
}
