"""What all documentation pages share: navigation, header and caching."""

from collections.abc import Callable
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from serving.context import Context
from serving.http import CACHE_ONE_MINUTE
from web.docs_tree import build_tree, find_neighbours
from web.pages import (
    compress_page,
    get_operator,
    get_relative_root,
    get_site,
    render_page,
    render_template,
)
from web.reference_pages import ReferenceFacts, list_shown_links
from web.sessions import FindViewer


class DocsFrame:
    """Renders pages within the frame of the documentation."""

    def __init__(self, context: Context, find_viewer: FindViewer) -> None:
        self._context = context
        self._find_viewer = find_viewer

    async def collect_facts(self) -> ReferenceFacts:
        """Return the facts that pages show now."""
        context = self._context
        coverage = await context.snapshots.coverage()
        return ReferenceFacts(
            context.base_url, coverage, context.mode, context.daily_limit, context.operator
        )

    def render_body(self, request: Request, template: str, name: str = "", **values: Any) -> Markup:
        """Return the HTML of a page below its header; `name` is its place in the tree."""
        frame = build_frame_values(name, sells_keys=self._context.sells_keys)
        frame["operator"] = get_operator(request)
        return Markup(render_template(template, get_relative_root(request), **frame | values))

    async def respond(
        self,
        request: Request,
        render_body: Callable[[], Markup],
        title: str,
        about: str,
        *,
        status: int = 200,
        is_of_url: bool = False,
        has_try_form: bool = False,
    ) -> Response:
        """Return a page with this body. Only a visitor's page may be cached, for a minute.

        A member's differs in its header, which contains a secret. `is_of_url`: the body contains
        text of the request, so the page is neither cached nor compressed.
        """
        viewer, is_public = await self._find_viewer(request), status == 200 and not is_of_url
        is_kept = viewer is None and is_public

        async def draw() -> Response:
            response = render_page(
                request,
                "docs_page.html",
                status=status,
                title=title,
                description=about,
                here="docs",
                is_wide=True,
                is_public=is_public,
                viewer=viewer,
                body=render_body(),
                has_try_form=has_try_form,
            )
            if is_kept:
                response.headers["Cache-Control"] = CACHE_ONE_MINUTE
            return response

        if is_kept:
            pages, path = get_site(request).visitor_pages, request.url.path
            return await pages.respond(request, self._context, path, draw)
        response = await draw()
        if is_of_url:
            return response
        response = compress_page(request, response)
        response.headers["Vary"] = "Accept-Encoding, Cookie"
        return response


def build_frame_values(name: str, *, sells_keys: bool) -> dict[str, Any]:
    """Return the values of the navigation on a page."""
    links = list_shown_links(sells_keys=sells_keys)
    before, after = find_neighbours(name, links)
    return {
        "name": name,
        "tree": build_tree(links),
        "before": before,
        "after": after,
        "sells_keys": sells_keys,
        "headings": (),
    }
