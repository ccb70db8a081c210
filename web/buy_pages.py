"""The pages on which a person buys access: choose a plan, pay, get the key.

They use the checkout and the claim that agents use, so throttle, metrics and prices are the same.
Nobody is signed in by a purchase, because no one has proved that the e-mail address is theirs.

- Whether an address has a plan already is not shown, because anyone can enter it. Its owner gets a
  sign-in link by e-mail instead.
- GET of the key page claims the key, because Stripe sends buyers there. Only the browser that
  opened the checkout has its cookie.
- The key is shown once. If the answer does not arrive, the buyer signs in and creates another.
"""

from dataclasses import dataclass
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.provider import PRICES_USD, FailedPayment, PendingPayment
from access.members import MAX_LIVE_KEYS
from access.purchases import OpenedCheckout, generate_claim_token
from access.sign_in import SignIn
from mcp_server.registration import CLIENTS, KEY_VARIABLE
from rest_shim.purchases import PurchaseHandlers
from schemas.errors import ApiError
from schemas.purchase import (
    CLAIM_POLL_DURATION_S,
    ActiveClaim,
    CheckoutBody,
    ClaimBody,
    PendingClaim,
)
from schemas.vocabulary import Billing
from serving.context import Context
from serving.tool_runner import ToolRunner
from web.forms import (
    EMAIL_ERROR,
    EMAIL_FIELD,
    MAX_CHOICE_CHARS,
    MAX_EMAIL_CHARS,
    read_form,
    show_form_again,
)
from web.own_purchases import OwnPurchases
from web.pages import build_page_route, redirect_to, render_page
from web.sessions import HOME_PATH, Sessions, Viewer

BUY_PATH = "buy"
KEY_PATH = "buy/key"
# The label of the bought key, as an agent's name is that of its key.
KEY_LABEL = "Bought in a browser"
PERIODS: dict[Billing, str] = {"monthly": "month", "yearly": "year"}
POLL_INTERVAL_S = 5
MAX_CHECKS = CLAIM_POLL_DURATION_S // POLL_INTERVAL_S
PLAN_ERROR = "Choose monthly or yearly."
ORDER_FIELDS = {"billing": MAX_CHOICE_CHARS, EMAIL_FIELD: MAX_EMAIL_CHARS}
BUY_TITLE = "Choose a plan"
Form = dict[str, str]


@dataclass(frozen=True, slots=True)
class BuyPages:
    """The pages; a `sign_in` link is mailed to buyers who may have a plan already."""

    purchases: PurchaseHandlers
    own: OwnPurchases
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
        response = render_page(
            request,
            "buy.html",
            form={"contact_email": _find_email(viewer)},
            errors={},
            opened=None if opened is None or opened.claim.redeemed_at else opened,
            **self._build_values(viewer),
        )
        # Set before the form is sent: sent twice, it opens the same checkout twice.
        self.own.remember(response, self.own.get_token(request))
        return response

    async def show_key(self, request: Request) -> Response:
        """Show the key of this browser's purchase once, or what to do to get it."""
        viewer = await self.sessions.find_viewer(request)
        opened = await self.own.find(request)
        if opened is None:
            return self._show_no_key(request, viewer, is_unpaid=False)
        try:
            result = await self.purchases.claim(
                ClaimBody(claim_token=opened.claim_token), _get_address(request)
            )
        except ApiError as error:
            if error.status not in {404, 409}:
                raise
            return self._show_no_key(request, viewer, is_unpaid=error.status == 404)
        if isinstance(result, PendingClaim):
            return self._show_pending(request, viewer, opened)
        return self._show_key_once(request, viewer, opened, result)

    async def _order(self, request: Request, viewer: Viewer | None, form: Form) -> Response:
        body, errors = self._parse_order(form)
        if body is None:
            return self._show_form_again(request, viewer, form, errors)
        opened = await self.own.find(request)
        claim_token = self.own.get_token(request)
        if opened is not None:
            if _is_order_of(opened, body) and (next_page := await self._resume(request, opened)):
                return next_page
            claim_token = generate_claim_token()
        try:
            checkout = await self.purchases.checkout(body, _get_address(request), claim_token)
        except ApiError as error:
            if error.status == 400:
                return self._show_form_again(request, viewer, form, {EMAIL_FIELD: EMAIL_ERROR})
            message = error.describe(self.context.operator)
            response = self._show_form_again(request, viewer, form, {"": message}, error.status)
            # The processor may repeat its failure for this token.
            self.own.remember(response, generate_claim_token())
            if error.retry_after_s is not None:
                response.headers["Retry-After"] = str(error.retry_after_s)
            return response
        response = self._open_checkout(request, checkout.checkout_url)
        self.own.remember(response, claim_token)
        if viewer is None:
            response.background = BackgroundTask(
                self.sign_in.mail_buyer, body.contact_email, _get_address(request)
            )
        return response

    async def _resume(self, request: Request, opened: OpenedCheckout) -> Response | None:
        """Lead on with a checkout that was ordered before; None if it can no longer be paid."""
        if opened.claim.redeemed_at is None:
            payment = await self.own.fetch_payment(opened.claim)
            if isinstance(payment, FailedPayment):
                return None
            if isinstance(payment, PendingPayment):
                return self._open_checkout(request, opened.url)
        return redirect_to(request, KEY_PATH)

    def _open_checkout(self, request: Request, url: str) -> Response:
        """Send the browser to the page on which the buyer pays."""
        own_page = url.removeprefix(f"{self.context.base_url}/")
        if own_page != url:
            return redirect_to(request, own_page)
        # Not a redirect, for the reason that `redirect_to_portal` of the API access page has.
        response = render_page(request, "buy_checkout.html", title="Checkout", url=url)
        response.headers["Refresh"] = f"0; url={url}"
        return response

    def _parse_order(self, form: Form) -> tuple[CheckoutBody | None, dict[str, str]]:
        """Return the order of a form, or an error for each bad field."""
        periods: dict[str, Billing] = {billing: billing for billing in PRICES_USD}
        errors: dict[str, str] = {}
        email = ""
        if form.get("billing") not in periods:
            errors["billing"] = PLAN_ERROR
        try:
            email = self.purchases.check_email(form.get("contact_email", "").strip())
        except ValueError:
            errors[EMAIL_FIELD] = EMAIL_ERROR
        if errors:
            return None, errors
        billing = periods[form["billing"]]
        return CheckoutBody(contact_email=email, billing=billing, agent_name=KEY_LABEL), {}

    def _show_form_again(
        self,
        request: Request,
        viewer: Viewer | None,
        form: Form,
        errors: dict[str, str],
        status: int = 400,
    ) -> Response:
        return show_form_again(
            request,
            "buy.html",
            {"contact_email": "", **form},
            errors,
            status=status,
            opened=None,
            **self._build_values(viewer),
        )

    def _build_values(self, viewer: Viewer | None) -> dict[str, Any]:
        return {
            "title": BUY_TITLE,
            "description": "Plans and prices: pay by month or by year and get a key at once.",
            "here": BUY_PATH,
            "viewer": viewer,
            "is_public": True,
            "prices": PRICES_USD,
            "periods": PERIODS,
            "mode": self.context.mode,
            "daily_limit": self.context.daily_limit,
            "max_keys": MAX_LIVE_KEYS,
            "home_path": HOME_PATH,
            "key_path": KEY_PATH,
        }

    def _show_pending(
        self, request: Request, viewer: Viewer | None, opened: OpenedCheckout
    ) -> Response:
        """Show the way to the payment; after the payment, check again until it has settled."""
        text = request.query_params.get("checked", "")
        checks = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None
        is_paid = checks is not None and checks < MAX_CHECKS
        response = render_page(
            request,
            "buy_pending.html",
            title="Waiting for your payment" if is_paid else "Pay to get your key",
            viewer=viewer,
            here=BUY_PATH,
            claim=opened.claim,
            amount_usd=PRICES_USD[opened.claim.billing],
            url=opened.url,
            is_paid=is_paid,
            interval_s=POLL_INTERVAL_S,
        )
        if checks is not None and is_paid:
            response.headers["Refresh"] = f"{POLL_INTERVAL_S}; url=key?checked={checks + 1}"
        return response

    def _show_no_key(self, request: Request, viewer: Viewer | None, *, is_unpaid: bool) -> Response:
        """Say that nothing was paid, or that a key is shown only once; both lead on."""
        response = render_page(
            request,
            "buy_no_key.html",
            title="Nothing was paid" if is_unpaid else "No new key to show",
            viewer=viewer,
            here=BUY_PATH,
            is_unpaid=is_unpaid,
            home_path=HOME_PATH,
        )
        self.own.forget(response)
        return response

    def _show_key_once(
        self, request: Request, viewer: Viewer | None, opened: OpenedCheckout, claim: ActiveClaim
    ) -> Response:
        response = render_page(
            request,
            "bought_key.html",
            title="Your key",
            here=BUY_PATH,
            viewer=viewer,
            is_wide=True,
            mode=claim.mode,
            contact_email=opened.claim.contact_email,
            home_path=HOME_PATH,
            **build_key_values(claim.api_key, self.context.base_url),
        )
        self.own.forget(response)
        return response


def build_key_values(api_key: str, base_url: str) -> dict[str, Any]:
    """Return what `key_lines.html` needs: the key, and the lines for each client that uses one."""
    return {
        "api_key": api_key,
        "variable": KEY_VARIABLE,
        "clients": [
            (client, client.render_lines(base_url)) for client in CLIENTS if not client.signs_in
        ],
    }


def _is_order_of(opened: OpenedCheckout, body: CheckoutBody) -> bool:
    claim = opened.claim
    return (claim.contact_email, claim.billing) == (body.contact_email, body.billing)


def _find_email(viewer: Viewer | None) -> str:
    return "" if viewer is None or viewer.is_owner else viewer.email


def _get_address(request: Request) -> str:
    return request.client.host if request.client else "unknown"
