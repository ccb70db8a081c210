"""The pages for people, put together from parts that are handed in."""

from pathlib import Path

from starlette.routing import Route

from access.billing.provider import Provider
from access.billing.sandbox import SandboxBilling
from access.member_billing import MemberBilling
from access.member_keys import MemberKeys
from access.sign_in import SignIn
from serving.tool_runner import Calls
from web.api_access import api_access_routes
from web.asset_page import asset_page_routes
from web.board import board_routes
from web.checkout_return_pages import return_page_routes
from web.pages import static_routes
from web.pay_page import pay_page_routes
from web.reference import reference_routes
from web.sessions import Sessions
from web.sign_in_pages import sign_in_routes


def page_routes(
    calls: Calls, provider: Provider, members: MemberKeys, sign_in: SignIn, outbox: Path | None
) -> list[Route]:
    """Return the routes of every page; `outbox` is where mail stays, told to whoever signs in."""
    sessions = Sessions(sign_in, members, calls.context.base_url)
    billing = MemberBilling(members, provider, calls.context.clock)
    return [
        *_checkout_pages(provider, calls),
        *reference_routes(calls),
        *sign_in_routes(sign_in, sessions, calls, outbox),
        *api_access_routes(members, billing, sessions, calls),
        *static_routes(),
        *board_routes(calls, sessions.viewer),
        *asset_page_routes(calls, sessions.viewer),
    ]


def _checkout_pages(provider: Provider, calls: Calls) -> list[Route]:
    """Return the pages that buyers see here: the sandbox's own, or where Stripe sends them back."""
    if isinstance(provider, SandboxBilling):
        return pay_page_routes(provider, calls)
    return return_page_routes() if provider.name == "stripe" else []
