"""The two pages that the payment processor sends a buyer back to."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from web.pages import render_page

PAGES = {
    "/checkout/paid": (
        "Thank you",
        "Your agent can now claim its key with POST /api/v1/access/claim and the claim_token from "
        "the checkout. You can close this page.",
    ),
    "/checkout/cancelled": (
        "Nothing was paid",
        "You left the checkout before paying. You can still open it and pay until it expires, or "
        "your agent can start a new one with POST /api/v1/access/checkout.",
    ),
}


def build_return_page_routes() -> list[Route]:
    """Return the routes of both pages."""
    return [Route(path, _render_return_page, methods=["GET"]) for path in PAGES]


async def _render_return_page(request: Request) -> Response:
    title, text = PAGES[request.url.path]
    return render_page(request, "message.html", title=title, text=text)
