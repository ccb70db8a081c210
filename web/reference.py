"""The reference pages at /docs: the index and the pages, public for everyone."""

from functools import lru_cache

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.tool_runner import ToolRunner
from web.docs_frame import DocsFrame, build_frame_values
from web.pages import build_page_route, redirect_to, render_template
from web.reference_pages import (
    ReferenceFacts,
    build_page_values,
    list_page_links,
)
from web.sessions import FindViewer
from web.try_pages import TRY_PATH, TryPages

INDEX_TITLE = "Documentation"
INDEX_SUMMARY = (
    "How to get a key, connect an agent and use the tools, and how readings are computed."
)
# Former pages, by the page that now answers their readers' questions.
MOVED_PAGES = {"performance": "docs/scaling"}


class ReferencePages:
    """Renders the index and the pages."""

    def __init__(self, frame: DocsFrame, *, sells_keys: bool) -> None:
        self._frame = frame
        self._links = list_page_links(sells_keys=sells_keys)

    async def show_index(self, request: Request) -> Response:
        """Return the list of all pages."""
        return await self._respond_index(request, INDEX_TITLE, INDEX_SUMMARY)

    async def show_page(self, request: Request) -> Response:
        """Return a page; the index with 404 if there is no such page."""
        name = request.path_params["name"]
        if name in MOVED_PAGES:
            return redirect_to(request, MOVED_PAGES[name])
        link = next((link for link in self._links if link.name == name), None)
        if link is None:
            about = "These pages are available:"
            return await self._respond_index(request, "Page not found", about, 404)
        facts = await self._frame.collect_facts()
        return await self._frame.respond(
            request, lambda: _render_body(name, "../", facts), link.title, link.about
        )

    async def _respond_index(
        self, request: Request, title: str, about: str, status: int = 200
    ) -> Response:
        return await self._frame.respond(
            request,
            lambda: self._frame.render_body(request, "docs_index.html", title=title, about=about),
            title,
            about,
            status=status,
        )


def build_reference_routes(runner: ToolRunner, find_viewer: FindViewer) -> list[Route]:
    """Return the routes of the index, the forms that try calls, and the pages."""
    context = runner.context
    frame = DocsFrame(context, find_viewer)
    pages = ReferencePages(frame, sells_keys=context.sells_keys)
    show_form = TryPages(frame, context).show_form
    return [
        build_page_route("/docs", runner, pages.show_index),
        build_page_route(TRY_PATH, runner, show_form, "GET", "POST"),
        build_page_route("/docs/{name:path}", runner, pages.show_page),
    ]


@lru_cache(maxsize=128)
def _render_body(name: str, root: str, facts: ReferenceFacts) -> Markup:
    """Return the HTML of a page below its header."""
    # `facts` is part of the key, so a newly published coverage renders the pages again.
    template, values = build_page_values(name, facts)
    frame = build_frame_values(name, sells_keys=facts.mode is not None)
    return Markup(render_template(template, root, operator=facts.operator, **frame | values))
