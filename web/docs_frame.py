"""What all documentation pages share: navigation, header and caching."""

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

    async def respond_with(
        self, request: Request, template: str, *, title: str, about: str, **values: Any
    ) -> Response:
        """Render a template of the documentation, and return its page.

        `name` is the page's place in the tree. See `respond` for `status`, `is_of_url` and
        `has_try_form`.
        """
        options = {
            name: values.pop(name)
            for name in ("status", "is_of_url", "has_try_form")
            if name in values
        }
        frame = build_frame_values(values.pop("name", ""), sells_keys=self._context.sells_keys)
        shared = {"operator": get_operator(request), "title": title, "about": about}
        root = get_relative_root(request)
        body = Markup(render_template(template, root, **shared, **frame | values))
        return await self.respond(request, body, title, about, **options)

    async def respond(
        self,
        request: Request,
        body: Markup,
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
        viewer = await self._find_viewer(request)
        response = render_page(
            request,
            "docs_page.html",
            status=status,
            title=title,
            description=about,
            here="docs",
            is_wide=True,
            is_public=status == 200 and not is_of_url,
            viewer=viewer,
            body=body,
            has_try_form=has_try_form,
        )
        if is_of_url:
            return response
        response = compress_page(request, response)
        response.headers["Vary"] = "Accept-Encoding, Cookie"
        if status == 200 and viewer is None:
            response.headers["Cache-Control"] = CACHE_ONE_MINUTE
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
