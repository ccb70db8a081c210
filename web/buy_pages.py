"""The pages on which a person buys access: choose a plan, pay, get the key.

They use the checkout and the claim that agents use, so throttle, metrics and prices are the same.
Nobody is signed in by a purchase, because no one has proved that the e-mail address is theirs.

- Whether an address has a plan already is not shown, because anyone can enter it. Its owner gets a
  sign-in link by e-mail instead.
- GET of the key page claims the key, because Stripe sends buyers there. Only the browser that
  opened the checkout has its cookie.
- The key is shown once. If the answer does not arrive, the buyer signs in and creates another.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.provider import (
    CONTACT_OPERATOR,
    PRICES_USD,
    FailedPayment,
    HeldPayment,
    Payment,
    PendingPayment,
    SandboxBilling,
    SessionStatus,
)
from access.members import MAX_LIVE_KEYS
from access.purchases import ClaimResult, Claims, Purchases, generate_claim_token
from access.sign_in import SignIn
from mcp_server.registration import CLIENTS, KEY_VARIABLE
from rest_shim.purchase_routes import PurchaseHandlers
from schemas.errors import ApiError, invalid_parameter_error
from schemas.purchase import (
    CLAIM_POLL_DURATION_S,
    CheckoutBody,
    ClaimBody,
    PendingClaim,
)
from schemas.vocabulary import DAY_MS, Billing
from serving.context import Context
from serving.error_responses import guard_route
from serving.http import get_address
from serving.tool_runner import ToolRunner
from store.access_rows import ClaimRow
from web.pages import build_page_route, redirect_to, render_error_for_browser, render_page
from web.sessions import (
    EMAIL_ERROR,
    EMAIL_FIELD,
    HOME_PATH,
    MAX_CHOICE_CHARS,
    MAX_EMAIL_CHARS,
    Cookie,
    Form,
    PendingRequests,
    Sessions,
    Viewer,
    build_consent_path,
    read_form,
)

BUY_PATH = "buy"
KEY_PATH = "buy/key"


# The sentence that a page adds, and path and label of the link that leads on, empty for none.
NextStep = tuple[str, str, str]
CHOOSE_PLAN = ("", BUY_PATH, "Choose a plan")
OWN_STEPS: Mapping[SessionStatus, NextStep] = {
    "open": ("After paying, you get your key.", "", ""),
    "paid": ("", KEY_PATH, "Show your key"),
    "cancelled": CHOOSE_PLAN,
    "expired": CHOOSE_PLAN,
}
NEW_LINK = ("Ask your agent for a new link, or buy access yourself.", BUY_PATH, "Buy access")
AGENT_STEPS: Mapping[SessionStatus, NextStep] = {
    "open": ("If you pay here, your agent gets a key.", "", ""),
    # Also for a person who has seen the key, and so is no longer recognized.
    "paid": (
        "Go back to your agent, if one sent you here: it fetches its key by itself.",
        "",
        "",
    ),
    "cancelled": NEW_LINK,
    "expired": NEW_LINK,
}


class OwnPurchases:
    """Finds and remembers the checkouts of browsers; the cookie needs TLS if `base_url` does.

    `pending` are the requests of programs.
    """

    def __init__(self, sales: Purchases, pending: PendingRequests, base_url: str) -> None:
        self._sales = sales
        self._pending = pending
        # As long as a checkout can be paid. Whoever could set the cookie of a buyer could claim the
        # key too.
        self.cookie = Cookie("signals_purchase", base_url, DAY_MS // 1000)

    async def find(self, request: Request) -> ClaimRow | None:
        """Return the checkout that this browser opened, None if there is none any more."""
        claim_token = self._read_token(request)
        claim = await self._sales.find_claim(claim_token) if claim_token else None
        return claim if claim is not None and claim.checkout_url else None

    def get_token(self, request: Request) -> str:
        """Return the claim token of this browser's checkout, a new one if it has none."""
        return self._read_token(request) or generate_claim_token()

    def _read_token(self, request: Request) -> str | None:
        # Another form could be guessed, or is that of an earlier version.
        claim_token = self.cookie.read(request)
        return claim_token if re.fullmatch(r"ct_[A-Za-z0-9_-]{43}", claim_token) else None

    async def is_own(self, request: Request, session_id: str) -> bool:
        """Return whether this browser opened the processor's session on the page to buy access."""
        opened = await self.find(request)
        return opened is not None and opened.session == session_id

    async def show_checkout(
        self,
        request: Request,
        session_id: str,
        state: SessionStatus,
        title: str,
        text: str,
        **values: Any,
    ) -> Response:
        """Show the state of the processor's session, and the step after it."""
        if await self.is_own(request, session_id):
            added, path, label = OWN_STEPS[state]
        elif (pending := await self._pending.find(self._pending.cookie.read(request))) is None:
            added, path, label = AGENT_STEPS[state]
        else:
            added, path, label = "", build_consent_path(pending), "Continue to connect the program"
            if state == "open":
                path = ""
            elif state == "paid":
                added = "Sign in with the e-mail address you paid with, then connect the program."
        return render_page(
            request,
            "checkout.html",
            title=title,
            text=f"{text} {added}".rstrip(),
            step_path=path,
            step_label=label,
            state=state,
            **values,
        )


PAGES: dict[str, tuple[SessionStatus, str, str]] = {
    "/checkout/paid": ("paid", "Thank you", "You have paid."),
    "/checkout/cancelled": (
        "cancelled",
        "Nothing was paid",
        "You left the checkout before paying.",
    ),
}


def build_return_page_routes(own: OwnPurchases, runner: ToolRunner) -> list[Route]:
    """Return the routes of both pages; a person who buys here is led straight to the key."""

    async def respond(request: Request) -> Response:
        status, title, text = PAGES[request.url.path]
        # Stripe names the session only to who has paid.
        session_id = request.query_params.get("session_id", "")
        if status == "cancelled":
            opened = await own.find(request)
            session_id = "" if opened is None else opened.session
        if status == "paid" and await own.is_own(request, session_id):
            return redirect_to(request, f"{KEY_PATH}?checked=0")
        return await own.show_checkout(request, session_id, status, title, text, facts=[])

    return [build_page_route(path, runner, respond) for path in PAGES]


PERIODS: dict[Billing, str] = {"monthly": "month", "yearly": "year"}
POLL_INTERVAL_S = 5
MAX_CHECKS = CLAIM_POLL_DURATION_S // POLL_INTERVAL_S
ORDER_FIELDS = {"billing": MAX_CHOICE_CHARS, EMAIL_FIELD: MAX_EMAIL_CHARS}


@dataclass(frozen=True, slots=True)
class BuyPages:
    """The pages; a `sign_in` link is mailed to buyers who may have a plan already."""

    purchases: PurchaseHandlers
    own: OwnPurchases
    claims: Claims
    sessions: Sessions
    sign_in: SignIn
    context: Context

    def build_routes(self, runner: ToolRunner) -> list[Route]:
        """Return the routes."""
        return [
            build_page_route(f"/{BUY_PATH}", runner, self.buy, "GET", "POST"),
            build_page_route(f"/{KEY_PATH}", runner, self.show_key),
        ]

    async def buy(self, request: Request) -> Response:
        """Show the plans, or open the checkout of the chosen one."""
        viewer = await self.sessions.find_viewer(request)
        if not self.context.sells_keys:
            return render_page(
                request, "buy_closed.html", title="Get access", here=BUY_PATH, viewer=viewer
            )
        if request.method == "POST":
            return await self._order(request, viewer, await read_form(request, ORDER_FIELDS))
        opened = await self.own.find(request)
        form = {"contact_email": "" if viewer is None or viewer.is_owner else viewer.email}
        shown = None if opened is None or opened.redeemed_at else opened
        response = self._show_form(request, viewer, form, {}, opened=shown)
        # Set before the form is sent: sent twice, it opens the same checkout twice.
        self.own.cookie.set(response, self.own.get_token(request))
        return response

    async def show_key(self, request: Request) -> Response:
        """Show the key of this browser's purchase once, or what to do to get it."""
        viewer = await self.sessions.find_viewer(request)
        opened = await self.own.find(request)
        result: ClaimResult | None = None
        payment: Payment | None = None
        if opened is not None:
            body = ClaimBody(claim_token=self.own.get_token(request))
            try:
                result = await self.purchases.claim(body, get_address(request))
            except ApiError as error:
                if error.status not in {404, 409}:
                    raise
                if opened.redeemed_at is None:
                    payment = await self.claims.fetch_payment(opened)
        if opened is None or result is None:
            # Nothing was paid, the payment gives no key, or a key is shown only once; all lead on.
            is_unpaid = isinstance(payment, FailedPayment) and payment.is_unpaid
            is_held = _is_held(payment)
            problem = None if is_unpaid else self._describe_problem(payment)
            title = "No key for this payment" if problem else "No new key to show"
            response = render_page(
                request,
                "buy_no_key.html",
                title="Nothing was paid" if is_unpaid else title,
                viewer=viewer,
                here=BUY_PATH,
                is_unpaid=is_unpaid,
                is_held=is_held,
                problem=problem,
                home_path=HOME_PATH,
            )
            # The same purchase gives a key once its payment is settled.
            if is_held:
                return response
        elif isinstance(result, PendingClaim):
            return self._show_pending(request, viewer, opened)
        else:
            response = render_page(
                request,
                "bought_key.html",
                title="Your key",
                here=BUY_PATH,
                viewer=viewer,
                is_wide=True,
                mode=result.mode,
                contact_email=opened.contact_email,
                home_path=HOME_PATH,
                **build_key_values(result.api_key, self.context.base_url),
            )
        self.own.cookie.delete(response)
        return response

    def _describe_problem(self, payment: Payment | None) -> str | None:
        """Say why a payment gives no key, None if it gives one or is not known."""
        if isinstance(payment, HeldPayment):
            text = (
                f"This checkout gives no key now, because {payment.reason}. Do not pay again: its "
                "subscription continues. Settle it with the payment processor, then load this page "
                f"again, or {CONTACT_OPERATOR}."
            )
        elif isinstance(payment, FailedPayment):
            remedy = f" Do not pay again: {CONTACT_OPERATOR}." * payment.may_be_paid
            text = f"This checkout {payment.reason}, so it gives no key.{remedy}"
        else:
            return None
        return self.context.operator.complete(text)

    def _show_pending(self, request: Request, viewer: Viewer | None, opened: ClaimRow) -> Response:
        """Show the way to the payment; after the payment, check again until it has settled."""
        text = request.query_params.get("checked", "")
        checks = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else MAX_CHECKS
        is_paid = checks < MAX_CHECKS
        response = render_page(
            request,
            "buy_pending.html",
            title="Waiting for your payment" if is_paid else "Pay to get your key",
            viewer=viewer,
            here=BUY_PATH,
            claim=opened,
            amount_usd=PRICES_USD[opened.billing],
            url=opened.checkout_url,
            is_paid=is_paid,
            interval_s=POLL_INTERVAL_S,
        )
        if is_paid:
            response.headers["Refresh"] = f"{POLL_INTERVAL_S}; url=key?checked={checks + 1}"
        return response

    async def _order(self, request: Request, viewer: Viewer | None, form: Form) -> Response:
        # The name is the label of the bought key, as an agent's name is.
        body, errors = parse_order(form, self.purchases.check_email, "Bought in a browser")
        if body is None:
            return self._show_form(request, viewer, form, errors, 400)
        opened = await self.own.find(request)
        claim_token = self.own.get_token(request)
        if opened is not None:
            before = (opened.contact_email, opened.billing)
            if before == (body.contact_email, body.billing):
                # The same order again leads on with its checkout, if that can still be paid.
                if opened.redeemed_at is not None:
                    return redirect_to(request, KEY_PATH)
                payment = await self.claims.fetch_payment(opened)
                if isinstance(payment, PendingPayment):
                    return self._open_checkout(request, opened.checkout_url or "")
                if not isinstance(payment, FailedPayment) or _is_held(payment):
                    return redirect_to(request, KEY_PATH)
            claim_token = generate_claim_token()
        try:
            checkout = await self.purchases.checkout(body, get_address(request), claim_token)
        except ApiError as error:
            if error.status == 400:
                return self._show_form(request, viewer, form, {EMAIL_FIELD: EMAIL_ERROR}, 400)
            message = error.describe(self.context.operator)
            response = self._show_form(request, viewer, form, {"": message}, error.status)
            # The processor may repeat its failure for this token.
            self.own.cookie.set(response, generate_claim_token())
            response.headers.update(error.retry_headers)
            return response
        response = self._open_checkout(request, checkout.checkout_url)
        self.own.cookie.set(response, claim_token)
        if viewer is None:
            response.background = BackgroundTask(
                self.sign_in.mail_buyer, body.contact_email, get_address(request)
            )
        return response

    def _open_checkout(self, request: Request, url: str) -> Response:
        own_page = url.removeprefix(f"{self.context.base_url}/")
        if own_page != url:
            return redirect_to(request, own_page)
        return render_page(request, "buy_checkout.html", title="Checkout", leads_to=url)

    def _show_form(
        self,
        request: Request,
        viewer: Viewer | None,
        form: Form,
        errors: dict[str, str],
        status: int = 200,
        opened: ClaimRow | None = None,
    ) -> Response:
        return render_page(
            request,
            "buy.html",
            status=status,
            form={"contact_email": "", **form},
            errors=errors,
            opened=opened,
            title="Choose a plan",
            description="Plans and prices: pay by month or by year and get a key at once.",
            here=BUY_PATH,
            viewer=viewer,
            is_public=True,
            prices=PRICES_USD,
            periods=PERIODS,
            mode=self.context.mode,
            daily_limit=self.context.daily_limit,
            max_keys=MAX_LIVE_KEYS,
            home_path=HOME_PATH,
            key_path=KEY_PATH,
        )


def _is_held(payment: Payment | None) -> bool:
    """Return whether a payment gives no key although its buyer must not pay again."""
    return isinstance(payment, HeldPayment) or (
        isinstance(payment, FailedPayment) and payment.may_be_paid
    )


def parse_order(
    form: Form, check_email: Callable[[str], str], agent_name: str | None = None
) -> tuple[CheckoutBody | None, dict[str, str]]:
    """Return the order of a form, or an error for each bad field."""
    # The values that a form can send, as the type of the plan knows them.
    billing = next((one for one in PRICES_USD if one == form.get("billing")), None)
    errors = {} if billing else {"billing": "Choose monthly or yearly."}
    try:
        email = check_email(form.get(EMAIL_FIELD, "").strip())
    except ValueError:
        errors[EMAIL_FIELD] = EMAIL_ERROR
    if billing is None or errors:
        return None, errors
    return CheckoutBody(contact_email=email, billing=billing, agent_name=agent_name), {}


def build_key_values(api_key: str, base_url: str) -> dict[str, Any]:
    """Return what `key_lines.html` needs: the key, and the lines for each client that uses one."""
    return {
        "api_key": api_key,
        "variable": KEY_VARIABLE,
        "clients": [
            (client, client.render_lines(base_url)) for client in CLIENTS if not client.signs_in
        ],
    }


PAY_PATH = "/sandbox/checkout/{session_id}"
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
    billing: SandboxBilling, own: OwnPurchases, runner: ToolRunner
) -> list[Route]:
    """Return the route of the page that every checkout_url of the sandbox points to."""

    async def respond(request: Request) -> Response:
        """Show a checkout, or pay or cancel it."""
        # PostgreSQL refuses a text with a NUL.
        session_id = request.path_params["session_id"]
        is_text = "\0" not in session_id
        session = await billing.store.find_sandbox_session(session_id) if is_text else None
        if session is None:
            raise ApiError(
                "invalid_parameter",
                "There is no such checkout. To buy a key, have your agent start a new checkout "
                "with POST /api/v1/access/checkout.",
                404,
            )
        requested, status = None, billing.get_status(session)
        if request.method == "POST":
            form = await read_form(request, {"action": MAX_CHOICE_CHARS})
            requested = ACTIONS.get(form.get("action", ""))
            if requested is None:
                raise invalid_parameter_error(
                    "action: is missing or not accepted; accepted: pay, cancel. Send one of them "
                    "form-encoded: action=pay."
                )
            status = await billing.settle(session, requested)
            if status == "paid" and await own.is_own(request, session.id):
                return redirect_to(request, KEY_PATH)
        title, text = STATUS_TEXTS[status]
        is_refused = requested not in (None, status)
        if is_refused:
            text = f"This checkout can no longer be changed. {text}"
        amount = f"USD {session.amount_usd:,}"
        # Not a redirect: scripts pay with one POST and read the new state from its response.
        return await own.show_checkout(
            request,
            session.id,
            status,
            title,
            text,
            status=409 if is_refused else 200,
            badge="Sandbox",
            facts=[
                ("Plan", f"Premium, billed {session.billing}"),
                ("Price", f"{amount} per {PERIODS[session.billing]}"),
                ("E-mail", session.contact_email),
            ],
            amount=amount,
            until=session.expires_at,
        )

    guarded_respond = guard_route(PAY_PATH, runner, respond, on_error=render_error_for_browser)
    return [Route(PAY_PATH, guarded_respond, methods=["GET", "POST"])]
