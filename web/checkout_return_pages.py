"""Where the payment processor sends a buyer back to: two pages that say what to do next."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from web.pages import render_page

PAGES = {
    "/checkout/paid": (
        "Thank you",
        "Your agent can claim its key now, with POST /api/v1/access/claim and the claim_token that "
        "checkout gave it. You can close this page.",
    ),
    "/checkout/cancelled": (
        "Nothing was paid",
        "You left the checkout before paying. Its address can still be opened and paid until it "
        "expires, or your agent can begin anew with POST /api/v1/access/checkout.",
    ),
}


def build_return_page_routes() -> list[Route]:
    """Return the routes of both pages."""
    return [Route(path, _render_return_page, methods=["GET"]) for path in PAGES]


async def _render_return_page(request: Request) -> Response:
    title, text = PAGES[request.url.path]
    return render_page(request, "message.html", title=title, text=text)
