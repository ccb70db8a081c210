"""The two pages that the payment processor sends a buyer back to."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.sandbox import SessionStatus
from serving.tool_runner import ToolRunner
from web.buy_pages import KEY_PATH
from web.checkout_steps import CheckoutSteps
from web.pages import build_page_route, redirect_to, render_page

PAGES: dict[str, tuple[SessionStatus, str, str]] = {
    "/checkout/paid": ("paid", "Thank you", "You have paid."),
    "/checkout/cancelled": (
        "cancelled",
        "Nothing was paid",
        "You left the checkout before paying.",
    ),
}


def build_return_page_routes(steps: CheckoutSteps, runner: ToolRunner) -> list[Route]:
    """Return the routes of both pages; a person who buys here is led straight to the key."""

    async def respond(request: Request) -> Response:
        status, title, text = PAGES[request.url.path]
        # Stripe names the session only to who has paid.
        session_id = request.query_params.get("session_id", "")
        if status == "cancelled":
            opened = await steps.own.find(request)
            session_id = "" if opened is None else opened.claim.session
        if status == "paid" and await steps.is_own(request, session_id):
            return redirect_to(request, f"{KEY_PATH}?checked=0")
        step = await steps.find(request, session_id, status)
        return render_page(
            request,
            "checkout.html",
            title=title,
            text=f"{text} {step.text}".rstrip(),
            step=step,
            state=status,
            facts=[],
        )

    return [build_page_route(path, runner, respond) for path in PAGES]
