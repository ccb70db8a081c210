"""The sandbox's pay page, with a form to pay or cancel. No money moves."""

from dataclasses import dataclass
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.sandbox import SandboxBilling, SessionStatus
from schemas.errors import ApiError, invalid_parameter_error
from serving.error_responses import guard_route
from serving.tool_runner import ToolRunner
from store.access_rows import SandboxSession
from web.buy_pages import KEY_PATH, PERIODS
from web.checkout_steps import CheckoutSteps
from web.forms import MAX_CHOICE_CHARS, read_form
from web.pages import redirect_to, render_error_for_browser, render_page

PAY_PATH = "/sandbox/checkout/{session_id}"
SANDBOX_BADGE = "Sandbox"
START_OVER = "To buy a key, have your agent start a new checkout with POST /api/v1/access/checkout."
ACTIONS: dict[str, Literal["paid", "cancelled"]] = {"pay": "paid", "cancel": "cancelled"}
STATUS_TEXTS: dict[SessionStatus, tuple[str, str]] = {
    "open": (
        "Pay for the premium plan",
        "This is a sandbox: no money moves, and you need no card.",
    ),
    "paid": ("Paid in the sandbox", "No money moved."),
    "cancelled": ("Checkout cancelled", "Nothing was paid."),
    "expired": ("Checkout expired", "Nothing was paid."),
}


def build_pay_page_routes(
    billing: SandboxBilling, steps: CheckoutSteps, runner: ToolRunner
) -> list[Route]:
    """Return the route of the page that every checkout_url of the sandbox points to."""
    respond = guard_route(
        PAY_PATH, runner, _PayPage(billing, steps).respond, on_error=render_error_for_browser
    )
    return [Route(PAY_PATH, respond, methods=["GET", "POST"])]


@dataclass(frozen=True, slots=True)
class _PayPage:
    billing: SandboxBilling
    steps: CheckoutSteps

    async def respond(self, request: Request) -> Response:
        """Show a checkout, or pay or cancel it."""
        session = await self.billing.find_session(request.path_params["session_id"])
        if session is None:
            raise ApiError("invalid_parameter", f"There is no such checkout. {START_OVER}", 404)
        if request.method != "POST":
            return await self._render(request, session, self.billing.get_status(session))
        requested = _parse_action(await read_form(request, {"action": MAX_CHOICE_CHARS}))
        status = await self.billing.settle(session, requested)
        if status == "paid" and await self.steps.is_own(request, session.id):
            return redirect_to(request, KEY_PATH)
        # Not a redirect: scripts pay with one POST and read the new state from its response.
        return await self._render(request, session, status, 200 if status == requested else 409)

    async def _render(
        self,
        request: Request,
        session: SandboxSession,
        status: SessionStatus,
        http_status: int = 200,
    ) -> Response:
        """Return the page of a checkout; status 409 adds that it can no longer be changed."""
        title, text = STATUS_TEXTS[status]
        step = await self.steps.find(request, session.id, status)
        if http_status != 200:
            text = f"This checkout can no longer be changed. {text}"
        amount = f"USD {session.amount_usd:,}"
        return render_page(
            request,
            "checkout.html",
            status=http_status,
            title=title,
            badge=SANDBOX_BADGE,
            text=f"{text} {step.text}".rstrip(),
            step=step,
            state=status,
            facts=[
                ("Plan", f"Premium, billed {session.billing}"),
                ("Price", f"{amount} per {PERIODS[session.billing]}"),
                ("E-mail", session.contact_email),
            ],
            amount=amount,
            until=session.expires_at,
        )


def _parse_action(form: dict[str, str]) -> Literal["paid", "cancelled"]:
    """Return the action of a form; ApiError 400 if it is neither pay nor cancel."""
    if form.get("action") not in ACTIONS:
        raise invalid_parameter_error(
            "action: is missing or not accepted; accepted: pay, cancel. Send one of them "
            "form-encoded: action=pay."
        )
    return ACTIONS[form["action"]]
