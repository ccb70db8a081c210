"""The sandbox's pay page, with a form to pay or cancel. No money moves."""

from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.sandbox import SandboxBilling, SessionStatus
from schemas.errors import ApiError, invalid_parameter_error
from schemas.vocabulary import Billing
from serving.error_responses import guard_route
from serving.tool_runner import ToolRunner
from store.access_rows import SandboxSession
from web.forms import read_form
from web.pages import render_error_for_browser, render_page
from web.pending_requests import PendingRequests, build_consent_path

PAY_PATH = "/sandbox/checkout/{session_id}"
SANDBOX_BADGE = "Sandbox"
START_OVER = "To buy a key, have your agent start a new checkout with POST /api/v1/access/checkout."
ACTIONS: dict[str, Literal["paid", "cancelled"]] = {"pay": "paid", "cancel": "cancelled"}
PERIODS: dict[Billing, str] = {"monthly": "month", "yearly": "year"}
STATUS_TEXTS: dict[SessionStatus, tuple[str, str]] = {
    "open": (
        "Pay for the premium plan",
        "This is a sandbox: no money moves, and you need no card. If you pay here, your agent gets "
        "a key in test mode.",
    ),
    "paid": (
        "Paid in the sandbox",
        "No money moved. Your agent can now claim its key with POST /api/v1/access/claim and its "
        "claim_token. You can close this page.",
    ),
    "cancelled": ("Checkout cancelled", f"Nothing was paid. {START_OVER}"),
    "expired": ("Checkout expired", f"Nothing was paid. {START_OVER}"),
}
# For a person who buys in order to connect a program.
CONNECTING_TEXTS: dict[SessionStatus, tuple[str, str]] = {
    "open": (
        "Pay for the premium plan",
        "This is a sandbox: no money moves, and you need no card.",
    ),
    "paid": (
        "Paid in the sandbox",
        "No money moved. Sign in with this e-mail address, then connect the program.",
    ),
    "cancelled": ("Checkout cancelled", "Nothing was paid."),
    "expired": ("Checkout expired", "Nothing was paid."),
}


def build_pay_page_routes(
    billing: SandboxBilling, pending_requests: PendingRequests, runner: ToolRunner
) -> list[Route]:
    """Return the route of the page that every checkout_url of the sandbox points to."""

    async def respond(request: Request) -> Response:
        session = await billing.find_session(request.path_params["session_id"])
        if session is None:
            raise ApiError("invalid_parameter", f"There is no such checkout. {START_OVER}", 404)
        pending = await pending_requests.find_of_browser(request)
        continue_path = None if pending is None else build_consent_path(pending)
        if request.method != "POST":
            return _render_checkout(request, session, billing.get_status(session), continue_path)
        requested = _parse_action(await read_form(request))
        status = await billing.settle(session, requested)
        # Not a redirect: scripts pay with one POST and read the new state from its response.
        http_status = 200 if status == requested else 409
        return _render_checkout(request, session, status, continue_path, http_status)

    guarded_respond = guard_route(PAY_PATH, runner, respond, on_error=render_error_for_browser)
    return [Route(PAY_PATH, guarded_respond, methods=["GET", "POST"])]


def _parse_action(form: dict[str, str]) -> Literal["paid", "cancelled"]:
    """Return the action of a form; ApiError 400 if it is neither pay nor cancel."""
    if form.get("action") not in ACTIONS:
        raise invalid_parameter_error(
            "action: is missing or not accepted; accepted: pay, cancel. Send one of them "
            "form-encoded: action=pay."
        )
    return ACTIONS[form["action"]]


def _render_checkout(
    request: Request,
    session: SandboxSession,
    status: SessionStatus,
    continue_path: str | None,
    http_status: int = 200,
) -> Response:
    """Return the page of a checkout; status 409 adds that it can no longer be changed.

    `continue_path` leads on to the connection that the browser has begun.
    """
    title, text = STATUS_TEXTS[status] if continue_path is None else CONNECTING_TEXTS[status]
    return render_page(
        request,
        "checkout.html",
        status=http_status,
        title=title,
        badge=SANDBOX_BADGE,
        text=text if http_status == 200 else f"This checkout can no longer be changed. {text}",
        state=status,
        continue_path=None if status == "open" else continue_path,
        plan=f"Premium, billed {session.billing}",
        amount=f"USD {session.amount_usd:,}",
        period=PERIODS[session.billing],
        email=session.contact_email,
        until=session.expires_at,
    )
