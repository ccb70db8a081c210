"""The reference pages at /docs, public and the same for everyone."""

from functools import lru_cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.http import CACHE_NO_STORE, CACHE_ONE_MINUTE
from serving.tool_runner import ToolRunner
from web.pages import (
    build_page_route,
    get_relative_root,
    get_site,
    make_page_response,
    render_template,
)
from web.reference_pages import (
    ReferenceFacts,
    build_page_values,
    list_page_links,
    list_shown_links,
)

INDEX_TITLE = "Documentation"
INDEX_SUMMARY = (
    "How to get a key, connect an agent and use the tools, and how readings are computed."
)


def build_reference_routes(runner: ToolRunner) -> list[Route]:
    """Return the routes of the index and of the pages."""

    sells_keys = runner.context.sells_keys

    async def show_index(request: Request) -> Response:
        return _render_index(request, INDEX_TITLE, INDEX_SUMMARY, sells_keys=sells_keys)

    async def show_page(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in (link.name for link in list_page_links(sells_keys=sells_keys)):
            about = "These pages are available:"
            return _render_index(request, "Page not found", about, 404, sells_keys=sells_keys)
        return make_page_response(
            _render_reference_page(name, get_relative_root(request), await _collect_facts(runner)),
            cache_control=CACHE_ONE_MINUTE,
        )

    return [
        build_page_route("/docs", runner, show_index),
        build_page_route("/docs/{name:path}", runner, show_page),
    ]


def _render_index(
    request: Request, title: str, about: str, status: int = 200, *, sells_keys: bool
) -> Response:
    is_found, site = status == 200, get_site(request)
    values = {
        "title": title,
        "about": about,
        "is_public": is_found,
        "description": about,
        "base_url": site.base_url,
        "operator": site.operator,
        "path": "docs" if is_found else None,
    }
    text = render_template(
        "docs_index.html", get_relative_root(request), **values, **_build_frame_values(sells_keys)
    )
    return make_page_response(text, status, CACHE_ONE_MINUTE if is_found else CACHE_NO_STORE)


@lru_cache(maxsize=64)
def _render_reference_page(name: str, root: str, facts: ReferenceFacts) -> str:
    """Return the HTML of a page."""
    # `facts` is part of the key, so a newly published coverage renders the pages again.
    template, values = build_page_values(name, facts)
    frame = _build_frame_values(facts.mode is not None)
    shell = {
        "is_public": True,
        "description": values["about"],
        "base_url": facts.base_url,
        "operator": facts.operator,
        "path": f"docs/{name}",
    }
    return render_template(template, root, name=name, **shell | frame | values)


def _build_frame_values(sells_keys: bool) -> dict[str, Any]:
    links = list_shown_links(sells_keys=sells_keys)
    return {"here": "docs", "is_wide": True, "links": links, "sells_keys": sells_keys}


async def _collect_facts(runner: ToolRunner) -> ReferenceFacts:
    context = runner.context
    coverage = await context.snapshots.coverage()
    return ReferenceFacts(
        context.base_url, coverage, context.mode, context.daily_limit, context.operator
    )
