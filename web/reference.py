"""The reference pages at /docs, open to everybody and the same for all."""

from functools import lru_cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rest_shim.endpoints import A_MINUTE, NOT_AT_ALL
from serving.tool_runner import Calls
from web.pages import page_of, page_route, rendered, root_of
from web.reference_pages import Facts, page_links, page_values

INDEX = "Documentation"
ABOUT = "How to connect an agent, buy a key, and use the tools; how readings come about."


def reference_routes(calls: Calls) -> list[Route]:
    """Return the routes of the index and of every page."""

    async def index(request: Request) -> Response:
        return _index(request, INDEX, ABOUT)

    async def one(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in (link.name for link in page_links()):
            return _index(request, "Not found", "There is no such page. These there are:", 404)
        return page_of(_made(name, root_of(request), await _facts(calls)), cache=A_MINUTE)

    return [page_route("/docs", calls, index), page_route("/docs/{name:path}", calls, one)]


def _index(request: Request, title: str, about: str, status: int = 200) -> Response:
    is_found = status == 200
    values = {"title": title, "about": about, "is_public": is_found, **_frame()}
    text = rendered("docs_index.html", root_of(request), **values)
    return page_of(text, status, A_MINUTE if is_found else NOT_AT_ALL)


@lru_cache(maxsize=64)
def _made(name: str, root: str, facts: Facts) -> str:
    """Return a page's text, the same until another coverage is published."""
    template, values = page_values(name, facts)
    return rendered(template, root, name=name, is_public=True, **_frame(), **values)


def _frame() -> dict[str, Any]:
    return {"here": "docs", "is_wide": True, "links": page_links()}


async def _facts(calls: Calls) -> Facts:
    context = calls.context
    coverage = await context.boards.coverage()
    return Facts(context.base_url, coverage, context.mode, context.daily_limit)
