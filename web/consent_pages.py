"""OAuth in the browser: the pages on which a person lets a program use their plan, or buys one.

`/oauth/authorize` stores a client's request and sends the browser here. All that follows, signing
in and paying included, names the request only by its id.

Who may approve is decided as follows.

- Opening a page or a mailed link approves nothing. Only the Allow button does, with the form token
  of the viewer's session, or for an owner who is not signed in with the id of the request, which no
  other site knows.
- The mailed link works in any browser, because some programs open a window of their own that the
  mail program does not use. Approving there is safe for the program's user: the code goes to the
  program's own address, and only the program that began has the PKCE verifier for it. But anyone
  could make us mail a member a link to a request of theirs. So in a browser that did not begin the
  request, the page warns and advises to cancel.
- A visitor who is made to sign in as someone else would let their program use that person's plan.
  Other sites cannot submit our forms, and the page names the account.
"""

import sys
from dataclasses import dataclass
from ipaddress import ip_address
from operator import itemgetter
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from access.billing.provider import ASK_OPERATOR_HINT, PRICES_USD
from access.members import (
    MAX_LIVE_KEYS,
    MAX_NEW_KEYS_PER_DAY,
    MemberKeys,
    MemberPlan,
)
from access.oauth.authorizations import Authorizations
from access.sign_in import LINK_MINUTES
from rest_shim.oauth import AUTHORIZE_PATH
from rest_shim.purchase_routes import PurchaseHandlers
from schemas.errors import ApiError, invalid_parameter_error
from serving.context import Context
from serving.host_origin import LOCAL_HOSTS, parse_host
from serving.http import get_address, read_headers
from serving.tool_runner import ToolRunner
from store.access_rows import ClaimRow, PendingAuthorization
from web.buy_pages import ORDER_FIELDS, PERIODS, parse_order
from web.pages import PRIVATE_HEADERS, build_page_route, redirect_to, render_page
from web.sessions import (
    CONSENT_PATH,
    EMAIL_ERROR,
    EMAIL_FIELD,
    FORM_TOKEN_FIELD,
    HOME_PATH,
    MAX_CHOICE_CHARS,
    MAX_TOKEN_CHARS,
    PendingRequests,
    Sessions,
    Viewer,
    allow_redirect,
    build_consent_path,
    check_form_token,
    describe_client,
    read_form,
)

# Linux's tables of TCP connections, with the user of each end that is on this machine. Systems
# without them recognize no owner, who then signs in.
CONNECTION_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
PROXY_HEADERS = frozenset(
    {
        b"forwarded",
        b"via",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-real-ip",
    }
)


def is_owner(scope: Scope, owner_uid: int | None) -> bool:
    """Return whether a program of the user `owner_uid` on this machine sent a request directly.

    False if `owner_uid` is None: the service then has other users than its owner.
    """
    # Any page can reach a loopback port, by a form or under a name of its own that it resolves to
    # 127.0.0.1 (DNS rebinding). The middleware refuses its Origin, the check of Host its name.
    # A proxy on this machine connects from loopback, too, for clients anywhere. It gives itself
    # away by a header, by the public Host, or by running as another user, as nginx does.
    # Other users of this machine reach the port as well; only the user id tells them apart.
    headers = read_headers(scope)
    if owner_uid is None or not PROXY_HEADERS.isdisjoint(headers):
        return False
    if parse_host(headers.get(b"host", b"").decode("latin-1")) not in LOCAL_HOSTS:
        return False
    client, server = scope.get("client"), scope.get("server")
    if not client or not server or not ip_address(client[0]).is_loopback:
        return False
    # The columns local address, remote address, state and user id of an open connection (01). A
    # closed end belongs to no user, and the kernel writes 0 for it, as for root.
    wanted = (_format_end(*client), _format_end(*server), "01", str(owner_uid))
    return any(
        itemgetter(1, 2, 3, 7)(line.split()) == wanted
        for table in CONNECTION_TABLES
        if table.exists()
        for line in table.read_text().splitlines()[1:]
    )


def _format_end(address: str, port: int) -> str:
    """Return an address and port as the tables write them: words of four bytes in native order."""
    packed = ip_address(address).packed
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    text = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{text}:{port:04X}"


def build_authorize_route(authorizations: Authorizations, runner: ToolRunner) -> Route:
    """Return the route. If the client or its redirect URI is bad, it shows an error page."""

    async def respond(request: Request) -> Response:
        # Parameters without a value count as omitted (RFC 6749, section 3.1).
        parameters = [pair for pair in request.query_params.multi_items() if pair[1]]
        target = await authorizations.begin(parameters, get_address(request))
        # The request's parameters are for this server only.
        headers = {**PRIVATE_HEADERS, "Referrer-Policy": "no-referrer"}
        return RedirectResponse(target, 303, headers)

    return build_page_route(AUTHORIZE_PATH, runner, respond)


BUY_PATH = "oauth/buy"
CONSENT_FIELDS = {
    **FORM_TOKEN_FIELD,
    "request": MAX_TOKEN_CHARS,
    "action": MAX_CHOICE_CHARS,
    # Stripe's ids of checkout sessions have fewer characters.
    "payment": 255,
}


@dataclass(frozen=True, slots=True)
class ConsentPages:
    """The pages; `owner_uid` is the user whose own machine this is, None if others can reach it."""

    authorizations: Authorizations
    pending_requests: PendingRequests
    sessions: Sessions
    members: MemberKeys
    purchases: PurchaseHandlers
    context: Context
    owner_uid: int | None

    def build_routes(self, runner: ToolRunner) -> list[Route]:
        """Return the routes."""
        return [
            build_page_route(f"/{CONSENT_PATH}", runner, self.answer, "GET", "POST"),
            build_page_route(f"/{BUY_PATH}", runner, self.buy, "GET", "POST"),
        ]

    async def answer(self, request: Request) -> Response:
        """Show a request, or approve or deny it."""
        if request.method != "POST":
            return await self._show(request)
        form = await read_form(request, CONSENT_FIELDS)
        pending = await self.pending_requests.get(form.get("request", ""))
        action = form.get("action")
        if action == "deny":
            # Whoever knows the id can deny: a visitor who cannot sign in must be able to leave.
            return self._send_back(await self.authorizations.deny(pending))
        if action not in ("allow", "allow_as_owner"):
            raise invalid_parameter_error(
                "action: is missing or not accepted; accepted: allow, deny. Open the page again."
            )
        viewer = await self.sessions.find_viewer(request)
        if action == "allow_as_owner":
            if not self._is_owner(request, viewer):
                raise ApiError(
                    "invalid_parameter",
                    "Only the owner of this service can allow this, signed in as owner or in a "
                    "browser on the machine that runs it. Sign in instead.",
                    403,
                )
            if viewer is not None and viewer.is_owner:
                check_form_token(form, viewer)
            return self._send_back(await self.authorizations.approve(pending, None))
        if viewer is None:
            return redirect_to(request, build_consent_path(pending))
        check_form_token(form, viewer)
        plan, payment, _ = await self._find_funding(viewer)
        if plan is None and payment is not None:
            # The payment that the page showed, not one that came since.
            await self.members.redeem(viewer.email, form.get("payment", ""), None)
            plan, _, _ = await self._find_funding(viewer)
        if plan is None:
            return redirect_to(request, build_consent_path(pending))
        try:
            return self._send_back(await self.authorizations.approve(pending, plan))
        except ApiError as error:
            if error.status != 409:
                raise
            return self._show_problem(request, pending, viewer, error.message, 409)

    async def buy(self, request: Request) -> Response:
        """Show the form to buy the plan, or open the checkout."""
        if not self.context.sells_keys:
            raise ApiError("invalid_parameter", ASK_OPERATOR_HINT, 404, names_operator=True)
        if request.method != "POST":
            pending = await self.pending_requests.get(request.query_params.get("request", ""))
            return await self._show_order_form(request, pending)
        form = await read_form(request, {"request": MAX_TOKEN_CHARS, **ORDER_FIELDS})
        pending = await self.pending_requests.get(form.get("request", ""))
        body, errors = parse_order(form, self.purchases.check_email)
        opened = None
        try:
            if body is not None:
                opened = await self.purchases.checkout(body, get_address(request))
        except ApiError as error:
            if error.status != 400:
                raise
            errors = {EMAIL_FIELD: EMAIL_ERROR}
        if opened is None:
            return await self._show_order_form(
                request, pending, status=400, form=form, errors=errors
            )
        return self._render(
            request, pending, "connect_checkout.html", "Checkout", leads_to=opened.checkout_url
        )

    async def _show_order_form(
        self, request: Request, pending: PendingAuthorization, **values: Any
    ) -> Response:
        viewer = await self.sessions.find_viewer(request)
        title, values = "Buy the plan", {**values, "prices": PRICES_USD, "periods": PERIODS}
        return self._render(request, pending, "connect_buy.html", title, viewer, **values)

    async def _show(self, request: Request) -> Response:
        """Show what the visitor has to do next: answer, sign in, buy, or make room for a key."""
        pending = await self.pending_requests.get(request.query_params.get("request", ""))
        viewer = await self.sessions.find_viewer(request)
        plan, payment, is_payment_known = await self._find_funding(viewer)
        if plan is not None and not plan.has_room:
            problem = (
                f"Your plan got {MAX_NEW_KEYS_PER_DAY} keys in the last 24 hours, and a connected "
                "program counts as one. Try again tomorrow."
            )
            if len(plan.live_keys) >= MAX_LIVE_KEYS:
                problem = (
                    f"All {MAX_LIVE_KEYS} keys of your plan are in use, and a connected program "
                    "counts as one. Revoke a key that you no longer use, then try again."
                )
            return self._show_problem(request, pending, viewer, problem, 200)
        template, title, action = "connect.html", "Connect a program", "allow"
        if not (plan or payment):
            if self._is_owner(request, viewer):
                template, action = "connect_owner.html", "allow_as_owner"
            elif viewer is None:
                template, title = "sign_in.html", "Sign in"
            else:
                template, title = "connect_no_plan.html", "You have no plan yet"
        return self._render(
            request,
            pending,
            template,
            title,
            viewer,
            action=action,
            payment=payment,
            is_payment_known=is_payment_known,
        )

    def _show_problem(
        self,
        request: Request,
        pending: PendingAuthorization,
        viewer: Viewer | None,
        problem: str,
        status: int,
    ) -> Response:
        title = "No room for another key"
        return self._render(
            request, pending, "connect_full.html", title, viewer, status=status, problem=problem
        )

    def _is_owner(self, request: Request, viewer: Viewer | None) -> bool:
        return (viewer is not None and viewer.is_owner) or is_owner(request.scope, self.owner_uid)

    async def _find_funding(
        self, viewer: Viewer | None
    ) -> tuple[MemberPlan | None, ClaimRow | None, bool]:
        """Return the newest active plan, one with room if there is one, else a paid checkout.

        The last value is false if the processor could not say whether there is a payment.
        """
        if viewer is None or viewer.is_owner:
            return None, None, True
        live = [plan for plan in await self.members.list_plans(viewer.email) if plan.is_live]
        if live:
            return max(reversed(live), key=lambda plan: plan.has_room), None, True
        unclaimed = await self.members.list_unclaimed(viewer.email)
        return None, unclaimed[0] if unclaimed else None, unclaimed is not None

    def _send_back(self, url: str) -> Response:
        response = RedirectResponse(url, 303, PRIVATE_HEADERS)
        self.pending_requests.cookie.delete(response)
        return response

    def _render(
        self,
        request: Request,
        pending: PendingAuthorization,
        template: str,
        title: str,
        viewer: Viewer | None = None,
        *,
        status: int = 200,
        **values: Any,
    ) -> Response:
        response = render_page(
            request,
            template,
            status=status,
            title=title,
            viewer=viewer,
            pending=pending,
            client=describe_client(pending),
            daily_limit=self.context.daily_limit,
            home_path=HOME_PATH,
            is_elsewhere="elsewhere" in request.query_params,
            ask_operator=ASK_OPERATOR_HINT,
            minutes=LINK_MINUTES,
            **values,
        )
        allow_redirect(response, pending)
        if "elsewhere" not in request.query_params:
            self.pending_requests.cookie.set(response, pending.id)
        return response
