"""The pages on which a person lets a program use their plan (OAuth): consent, and buying a plan.

`/oauth/authorize` stores a client's request and sends the browser here. All that follows, signing
in and paying included, names the request only by its id.

Who may approve is decided as follows.

- Opening a page or a mailed link approves nothing. Only the Allow button does, with the form token
  of the viewer's session, or for the owner with the id of the request, which other sites don't know.
- The mailed link works in any browser, because some programs open a window of their own that the
  mail program does not use. Approving there is safe for the program's user: the code goes to the
  program's own address, and only the program that began has the PKCE verifier for it. But anyone
  could make us mail a member a link to a request of theirs. So in a browser that did not begin the
  request, the page warns and advises to cancel.
- A visitor who is made to sign in as someone else would let their program use that person's plan.
  Other sites cannot submit our forms, and the page names the account.
"""

import re
import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from access.member_billing import MemberBilling
from access.member_keys import MAX_LIVE_KEYS, MemberKeys, MemberPlan
from access.oauth.authorizations import Authorizations
from access.plan import ASK_OPERATOR_HINT, PRICES_USD
from access.sign_in import LINK_MINUTES
from schemas.errors import ApiError, invalid_parameter_error
from schemas.purchase import CheckoutBody, CheckoutResponse
from schemas.vocabulary import Billing
from serving.host_origin import LOCAL_HOSTS
from serving.http import CACHE_NO_STORE
from serving.tool_runner import ToolRunner
from store.access_rows import ClaimRow
from store.oauth_rows import PendingAuthorization
from web.forms import read_form
from web.owner import is_owner
from web.pages import (
    SECURITY_HEADERS,
    build_page_route,
    format_minute,
    redirect_to,
    render_page,
)
from web.pending_requests import CONSENT_PATH, PendingRequests, build_consent_path
from web.sessions import HOME_PATH, Sessions, Viewer, check_form_token

BUY_PATH = "oauth/buy"
MAX_NAME_CHARS = 80
# Opens a checkout for (body, the client's IP address, an Idempotency-Key).
Checkout = Callable[[CheckoutBody, str, str | None], Awaitable[CheckoutResponse]]
Form = dict[str, str]


@dataclass(frozen=True, slots=True)
class _Funding:
    """What a member can connect a program with: an active plan, or a payment that starts one."""

    plan: MemberPlan | None = None
    payment: ClaimRow | None = None

    @property
    def is_full(self) -> bool:
        """Whether the plan has no room for another key."""
        return self.plan is not None and len(self.plan.live_keys) >= MAX_LIVE_KEYS


def build_consent_routes(
    authorizations: Authorizations,
    requests: PendingRequests,
    sessions: Sessions,
    members: MemberKeys,
    billing: MemberBilling,
    checkout: Checkout,
    runner: ToolRunner,
    owner_uid: int | None,
) -> list[Route]:
    """Return the routes; `owner_uid` is the user whose own machine this is, None if it is public."""
    pages = _ConsentPages(
        authorizations, requests, sessions, members, billing, checkout, runner, owner_uid
    )
    return [
        build_page_route(f"/{CONSENT_PATH}", runner, pages.answer, "GET", "POST"),
        build_page_route(f"/{BUY_PATH}", runner, pages.buy, "GET", "POST"),
    ]


class _ConsentPages:
    def __init__(
        self,
        authorizations: Authorizations,
        requests: PendingRequests,
        sessions: Sessions,
        members: MemberKeys,
        billing: MemberBilling,
        checkout: Checkout,
        runner: ToolRunner,
        owner_uid: int | None,
    ) -> None:
        self._authorizations = authorizations
        self._requests = requests
        self._sessions = sessions
        self._members = members
        self._billing = billing
        self._checkout = checkout
        self._daily_limit = runner.context.daily_limit
        self._sells_keys = runner.context.sells_keys
        self._owner_uid = owner_uid

    async def answer(self, request: Request) -> Response:
        """Show a request, or approve or deny it."""
        if request.method != "POST":
            pending = await self._requests.get(request.query_params.get("request", ""))
            return await self._show(request, pending)
        form = await read_form(request)
        pending = await self._requests.get(form.get("request", ""))
        action = form.get("action")
        if action == "deny":
            # Whoever knows the id can deny: a visitor who cannot sign in must be able to leave.
            return self._send_back(await self._authorizations.deny(pending.id))
        if action == "allow_as_owner":
            return await self._approve_as_owner(request, pending)
        if action == "allow":
            return await self._approve(request, pending, form)
        raise invalid_parameter_error(
            "action: is missing or not accepted; accepted: allow, deny. Open the page again."
        )

    async def buy(self, request: Request) -> Response:
        """Show the form to buy the plan, or open the checkout."""
        if request.method != "POST":
            pending = await self._requests.get(request.query_params.get("request", ""))
            viewer = await self._sessions.find_viewer(request)
            return self._render(
                request, pending, "connect_buy.html", "Buy the plan", viewer, prices=PRICES_USD
            )
        form = await read_form(request)
        pending = await self._requests.get(form.get("request", ""))
        address = request.client.host if request.client else "unknown"
        opened = await self._checkout(_parse_order(form), address, None)
        # Not a redirect: the page's policy would refuse the processor's host, see redirect_to_portal.
        response = self._render(
            request, pending, "connect_checkout.html", "Checkout", url=opened.checkout_url
        )
        response.headers["Refresh"] = f"0; url={opened.checkout_url}"
        return response

    async def _show(self, request: Request, pending: PendingAuthorization) -> Response:
        """Show what the visitor has to do next: sign in, buy, make room for a key, or answer."""
        viewer = await self._sessions.find_viewer(request)
        funding = _Funding() if viewer is None else await self._find_funding(viewer)
        if funding.plan is None and is_owner(request.scope, self._owner_uid):
            return self._render(
                request, pending, "connect.html", "Connect a program", viewer, action="allow_as_owner"
            )
        if viewer is None:
            return self._render(
                request,
                pending,
                "sign_in.html",
                "Sign in",
                minutes=LINK_MINUTES,
                sells_keys=self._sells_keys,
                ask_operator=ASK_OPERATOR_HINT,
            )
        return self._show_to_member(request, pending, viewer, funding)

    def _show_to_member(
        self, request: Request, pending: PendingAuthorization, viewer: Viewer, funding: _Funding
    ) -> Response:
        if funding.is_full:
            problem = f"All {MAX_LIVE_KEYS} keys of your plan are in use."
            return self._show_problem(request, pending, viewer, problem, 200)
        if funding.plan is None and funding.payment is None:
            return self._render(
                request,
                pending,
                "connect_no_plan.html",
                "You have no plan yet",
                viewer,
                sells_keys=self._sells_keys,
                ask_operator=ASK_OPERATOR_HINT,
            )
        return self._render(
            request,
            pending,
            "connect.html",
            "Connect a program",
            viewer,
            action="allow",
            payment=funding.payment,
        )

    def _show_problem(
        self,
        request: Request,
        pending: PendingAuthorization,
        viewer: Viewer,
        problem: str,
        status: int,
    ) -> Response:
        """Show why the plan has no room for the connection."""
        title = "No room for another key"
        return self._render(
            request, pending, "connect_full.html", title, viewer, status=status, problem=problem
        )

    async def _approve(
        self, request: Request, pending: PendingAuthorization, form: Form
    ) -> Response:
        viewer = await self._sessions.find_viewer(request)
        if viewer is None:
            return redirect_to(request, build_consent_path(pending))
        check_form_token(form, viewer)
        funding = await self._find_funding(viewer)
        if funding.plan is None and funding.payment is not None:
            # The payment that the page showed, not one that came since.
            await self._members.activate(viewer.email, form.get("payment", ""))
            funding = await self._find_funding(viewer)
        if funding.plan is None:
            return redirect_to(request, build_consent_path(pending))
        try:
            return self._send_back(await self._authorizations.approve(pending.id, funding.plan))
        except ApiError as error:
            if error.status != 409:
                raise
            return self._show_problem(request, pending, viewer, error.message, 409)

    async def _approve_as_owner(self, request: Request, pending: PendingAuthorization) -> Response:
        if not is_owner(request.scope, self._owner_uid):
            raise ApiError(
                "invalid_parameter",
                "Only the owner of this service can allow this, in a browser on the machine that "
                "runs it. Sign in instead.",
                403,
            )
        return self._send_back(await self._authorizations.approve_as_owner(pending.id))

    async def _find_funding(self, viewer: Viewer) -> _Funding:
        """Return the newest active plan, one with room if there is one, else a paid checkout."""
        live = [plan for plan in await self._members.list_plans(viewer.email) if plan.is_live]
        if live:
            return _Funding(max(live, key=lambda plan: len(plan.live_keys) < MAX_LIVE_KEYS))
        unclaimed = await self._billing.list_unclaimed(viewer.email)
        return _Funding(payment=unclaimed[0]) if unclaimed else _Funding()

    def _send_back(self, url: str) -> Response:
        """Redirect the browser to the client's address."""
        response = RedirectResponse(
            url, 303, {**SECURITY_HEADERS, "Cache-Control": CACHE_NO_STORE}
        )
        self._requests.forget(response)
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
            daily_limit=self._daily_limit,
            home_path=HOME_PATH,
            buy_path=BUY_PATH,
            consent_path=CONSENT_PATH,
            is_elsewhere="elsewhere" in request.query_params,
            **{"payment": None, "action": None, **values},
        )
        # Browsers apply `form-action` to the redirect after the form, and to those of the client's
        # page that follow it. So the policy allows the scheme: a host could not be told beforehand.
        scheme = urlsplit(pending.redirect_uri).scheme
        response.headers["Content-Security-Policy"] = SECURITY_HEADERS[
            "Content-Security-Policy"
        ].replace("form-action 'self'", f"form-action 'self' https: {scheme}:")
        if "elsewhere" not in request.query_params:
            self._requests.remember(response, pending)
        return response


@dataclass(frozen=True, slots=True)
class ClientDescription:
    """A client as a page shows it: its own unverified `name`, and hosts that are facts."""

    name: str
    described_at: str | None
    destination: str


def describe_client(pending: PendingAuthorization) -> ClientDescription:
    """Describe the client of a request in text that is safe to show."""
    host = pending.redirect_host
    scheme = urlsplit(pending.redirect_uri).scheme
    if scheme == "http" and (host in LOCAL_HOSTS or host == "::1"):
        destination = "a program on this computer"
    elif scheme in {"http", "https"}:
        destination = host
    else:
        destination = f"the program on this computer that opens {host} links"
    document_host = urlsplit(pending.client_id).hostname if _is_document(pending) else None
    return ClientDescription(_clean_name(pending.client_name), document_host, destination)


def _is_document(pending: PendingAuthorization) -> bool:
    return pending.client_id.startswith("https://")


def _clean_name(name: str) -> str:
    """Return a client's name as one short line without invisible or direction-changing marks."""
    # Without them, no name can turn around or hide the text next to it.
    visible = "".join(
        " " if unicodedata.category(char)[0] in "CZ" else char
        for char in unicodedata.normalize("NFKC", name)
    )
    text = re.sub(r" +", " ", visible).strip()
    return f"{text[:MAX_NAME_CHARS]}…" if len(text) > MAX_NAME_CHARS else text or "(no name)"


def _parse_order(form: Form) -> CheckoutBody:
    """Return the order of a form; ApiError 400 if the billing period is not offered."""
    periods: dict[str, Billing] = {billing: billing for billing in PRICES_USD}
    if form.get("billing") not in periods:
        raise invalid_parameter_error(
            f"billing: is missing or not accepted; accepted: {', '.join(periods)}."
        )
    email = form.get("contact_email", "")
    return CheckoutBody.model_construct(
        contact_email=email, billing=periods[form["billing"]], agent_name=None
    )
