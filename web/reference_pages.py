"""The content of the reference pages: generated from schemas and endpoints, or an article."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from access.billing.provider import PRICES_USD
from access.oauth.parameters import RESOURCE_PATH, can_serve_oauth
from mcp_server.registration import CLIENTS, KEY_VARIABLE, Client
from mcp_server.tools.registry import TOOLS
from rest_shim.endpoints import (
    CALL_MCP,
    CLAIM_KEY,
    CREATE_CHECKOUT,
    ENDPOINTS,
    Endpoint,
    list_endpoints,
)
from rest_shim.error_catalog import ERROR_MEANINGS
from rest_shim.legal import render_legal
from rest_shim.manifest import PURCHASE_NOTES
from rest_shim.openapi import build_openapi
from schemas.coverage import Coverage
from schemas.errors import ErrorBody
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.purchase import (
    CLAIM_POLL_DURATION_S,
    CLAIM_POLL_INTERVAL_S,
)
from schemas.vocabulary import Mode
from serving.json_schema import build_input_schema
from serving.tool_runner import AnyTool
from web.docs_tree import PAGE_ORDER, PageLink
from web.field_rows import FieldRow, Shape, list_shapes, walk_field_rows
from web.indicator_guide import build_guide_values
from web.markdown import Article, Heading, parse_article, render_inline
from web.markdown_files import Example, load_articles, load_examples
from web.openapi_viewer import build_viewer_values
from web.try_forms import format_example

EXAMPLE_EMAIL = "agent@example.com"
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReferenceFacts:
    """The facts about this deployment that pages show."""

    base_url: str
    coverage: Coverage | None
    mode: Mode | None
    daily_limit: int
    operator: Operator = UNNAMED_OPERATOR


class GeneratedPage(NamedTuple):
    """A page generated from code; its template is docs_NAME.html."""

    title: str
    about: str
    build_values: Callable[[ReferenceFacts], Values]


class ToolSection(NamedTuple):
    """The section of one tool."""

    tool: AnyTool
    endpoint: Endpoint
    hints: dict[str, Any]
    arguments: list[FieldRow]
    shapes: list[Shape]
    example: Example


class EndpointSection(NamedTuple):
    """The section of one endpoint; a tool's response is described with the tool."""

    endpoint: Endpoint
    parameters: list[FieldRow]
    body: list[FieldRow]
    shapes: list[Shape]
    call: str


class ClientSection(NamedTuple):
    """The section of one client; `link` installs the server in it, empty if there is no such."""

    client: Client
    heading: Heading
    instructions: Markup
    lines: str
    link: str


def list_page_links(*, sells_keys: bool) -> list[PageLink]:
    """Return links to all pages, in `PAGE_ORDER`."""
    pages: dict[str, GeneratedPage | Article] = {
        **load_articles(tuple(GENERATED_PAGES)),
        **_list_generated_pages(sells_keys),
    }
    return [PageLink(name, pages[name].title, pages[name].about) for name in PAGE_ORDER]


def list_shown_links(*, sells_keys: bool) -> list[PageLink]:
    """Return the links that the index, the pages and llms.txt show."""
    # Other articles link to the page for members, so without sales it exists, but is not listed.
    links = list_page_links(sells_keys=sells_keys)
    return [link for link in links if sells_keys or link.name != "members"]


def build_page_values(name: str, facts: ReferenceFacts) -> tuple[str, Values]:
    """Return the template and values of a page; KeyError if there is no such page."""
    if name in GENERATED_PAGES:
        generated = _list_generated_pages(facts.mode is not None)[name]
        values = {
            "title": generated.title,
            "about": generated.about,
            **generated.build_values(facts),
        }
        return f"docs_{name.replace('-', '_')}.html", values
    article = load_articles(tuple(GENERATED_PAGES))[name]
    if name == "legal":
        article = parse_article(render_legal(facts.operator), ())
    template = "docs_indicators.html" if name == "indicators" else "docs_text.html"
    return template, {**_build_article_values(article), "coverage": facts.coverage}


def _build_article_values(article: Article) -> Values:
    about, headings, html = article.about, article.headings, article.html
    return {"title": article.title, "about": about, "headings": headings, "html": html}


def _build_tools_values(facts: ReferenceFacts) -> Values:
    endpoints = {endpoint.operation_id: endpoint for endpoint in ENDPOINTS}
    parts = [_build_tool_section(tool, endpoints[tool.name], facts.coverage) for tool in TOOLS]
    return {"parts": parts, "headings": [_make_heading(tool.name, tool.name) for tool in TOOLS]}


def _build_tool_section(
    tool: AnyTool, endpoint: Endpoint, coverage: Coverage | None
) -> ToolSection:
    hints = tool.annotations.model_dump(by_alias=True, exclude_none=True)
    return ToolSection(
        tool,
        endpoint,
        {**hints, **tool.meta},
        list(walk_field_rows(build_input_schema(tool.query, coverage))),
        list_shapes(tool.result),
        load_examples()[tool.name],
    )


def _build_rest_values(facts: ReferenceFacts) -> Values:
    sells_keys = facts.mode is not None
    endpoints = list_endpoints(sells_keys=sells_keys)
    paths = build_openapi(facts.base_url, facts.coverage, sells_keys=sells_keys)["paths"]
    return {
        "parts": [
            _build_endpoint_section(one, paths[one.path], facts.base_url) for one in endpoints
        ],
        "error": list_shapes(ErrorBody)[0],
        "meanings": ERROR_MEANINGS,
        "daily_limit": facts.daily_limit,
        "headings": [
            *(_make_heading(one.operation_id, f"{one.method} {one.path}") for one in endpoints),
            _make_heading("errors", "Errors"),
        ],
    }


def _build_endpoint_section(
    endpoint: Endpoint, item: dict[str, Any], base_url: str
) -> EndpointSection:
    parameters = item[endpoint.method.lower()].get("parameters", [])
    schema = {"properties": {one["name"]: {**one, **one["schema"]} for one in parameters}}
    models = [one.model for one in endpoint.successes if one.model and not endpoint.tool]
    return EndpointSection(
        endpoint,
        list(walk_field_rows(schema)),
        list(walk_field_rows(endpoint.body.model_json_schema())) if endpoint.body else [],
        [shape for model in dict.fromkeys(models) for shape in list_shapes(model)],
        format_example(endpoint, base_url) if endpoint.method == "GET" else "",
    )


def _build_connect_values(facts: ReferenceFacts) -> Values:
    has_sign_in = can_serve_oauth(facts.base_url)
    parts = [
        _build_client_section(client, facts.base_url)
        for client in CLIENTS
        if has_sign_in or not client.signs_in
    ]
    return {
        "parts": parts,
        "sign_in_url": facts.base_url + RESOURCE_PATH if has_sign_in else "",
        "key_url": facts.base_url + CALL_MCP.path,
        "key_variable": KEY_VARIABLE,
        "base_url": facts.base_url,
        "headings": [
            *([_make_heading("sign-in", "Connect by address")] if has_sign_in else []),
            *(part.heading for part in parts),
            _make_heading("skill", "Instructions for the agent"),
        ],
    }


def _build_client_section(client: Client, base_url: str) -> ClientSection:
    return ClientSection(
        client,
        _make_heading(client.name, client.title.replace("`", "")),
        render_inline(client.instructions),
        client.render_lines(base_url),
        client.render_link(base_url) if client.render_link else "",
    )


def _build_buy_values(facts: ReferenceFacts) -> Values:
    billing = next(iter(PRICES_USD))
    checkout = json.dumps({"contact_email": EXAMPLE_EMAIL, "billing": billing})
    return {
        "prices": PRICES_USD,
        "daily_limit": facts.daily_limit,
        "mode": facts.mode,
        "note": render_inline(PURCHASE_NOTES[facts.mode]),
        "every_s": CLAIM_POLL_INTERVAL_S,
        "for_s": CLAIM_POLL_DURATION_S,
        "checkout": format_example(CREATE_CHECKOUT, facts.base_url, checkout),
        "claim": format_example(CLAIM_KEY, facts.base_url, '{"claim_token": "ct_..."}'),
        "headings": [_make_heading("steps", "Three steps"), _make_heading("members", "For members")]
        if facts.mode
        else [],
    }


def _make_heading(id_: str, text: str) -> Heading:
    return Heading(2, id_, text)


GENERATED_PAGES = {
    "indicator-guide": GeneratedPage(
        "The indicators in pictures",
        "What each indicator is good for and what its readings mean, for people new to trading.",
        lambda facts: build_guide_values(facts.coverage),
    ),
    "try": GeneratedPage(
        "Try a call",
        "A form for every tool and endpoint that sends a real call and shows the response.",
        lambda facts: {"endpoints": list_endpoints(sells_keys=facts.mode is not None)},
    ),
    "openapi": GeneratedPage(
        "OpenAPI viewer",
        "Browse the OpenAPI document: operations, parameters, responses, schemas and examples.",
        lambda facts: build_viewer_values(
            build_openapi(facts.base_url, facts.coverage, sells_keys=facts.mode is not None)
        ),
    ),
    "connect": GeneratedPage(
        "Connect an agent",
        "Configuration for each client and framework, ready to copy.",
        _build_connect_values,
    ),
    "buy": GeneratedPage(
        "Buy access",
        "What a key costs, and how an agent buys one.",
        _build_buy_values,
    ),
    "tools": GeneratedPage(
        "MCP tools",
        "Every tool: when to use it, its arguments, the fields of its response, and an example.",
        _build_tools_values,
    ),
    "rest": GeneratedPage(
        "REST endpoints",
        "Every endpoint: parameters, bodies, responses, statuses, and whether it needs a key.",
        _build_rest_values,
    ),
}

# With billing off, the page of the purchase has only the note on how the operator creates keys.
ACCESS_PAGE = GENERATED_PAGES["buy"]._replace(
    title="API keys", about="Who creates the keys of this deployment."
)


def _list_generated_pages(sells_keys: bool) -> dict[str, GeneratedPage]:
    return GENERATED_PAGES if sells_keys else GENERATED_PAGES | {"buy": ACCESS_PAGE}
