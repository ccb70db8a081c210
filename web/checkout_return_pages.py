"""The two pages that the payment processor sends a buyer back to."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.tool_runner import ToolRunner
from web.pages import build_page_route, render_page
from web.pending_requests import PendingRequests, build_consent_path

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
CONNECTING_TEXTS = {
    "/checkout/paid": "Sign in with the e-mail address you paid with, then connect the program.",
    "/checkout/cancelled": "You left the checkout before paying.",
}


def build_return_page_routes(pending_requests: PendingRequests, runner: ToolRunner) -> list[Route]:
    """Return the routes of both pages; they lead on to a connection that the browser has begun."""

    async def respond(request: Request) -> Response:
        pending = await pending_requests.find_of_browser(request)
        title, text = PAGES[request.url.path]
        if pending is None:
            return render_page(request, "message.html", title=title, text=text)
        text = CONNECTING_TEXTS[request.url.path]
        path = build_consent_path(pending)
        return render_page(request, "message.html", title=title, text=text, continue_path=path)

    return [build_page_route(path, runner, respond) for path in PAGES]
