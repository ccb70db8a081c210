"""The routes of all HTML pages, and of the files that programs find the service by."""

from pathlib import Path

from starlette.routing import Route

from access.billing.provider import Provider
from access.billing.sandbox import SandboxBilling
from access.members import MemberBilling, MemberKeys, Watchlists
from access.oauth.authorizations import Authorizations
from access.sign_in import SignIn
from rest_shim.purchases import PurchaseHandlers
from serving.tool_runner import ToolRunner
from store.sql.access_store import AccessStore
from web.api_access import build_api_access_routes
from web.asset_page import build_asset_list_routes, build_asset_page_routes
from web.board import build_board_routes
from web.buy_pages import (
    BuyPages,
    Checkouts,
    CheckoutSteps,
    OwnPurchases,
    build_pay_page_routes,
    build_return_page_routes,
)
from web.consent_pages import ConsentPages
from web.discovery import build_crawler_routes, build_discovery_routes
from web.docs import build_docs_routes
from web.feed_pages import build_log_proof_routes, build_view_routes
from web.operations import Doctor, build_operations_routes
from web.pages import build_static_routes
from web.pending_requests import PendingRequests
from web.sessions import Sessions
from web.sign_in_pages import build_sign_in_routes


def build_page_routes(
    runner: ToolRunner,
    provider: Provider,
    member_keys: MemberKeys,
    sign_in: SignIn,
    outbox: Path | None,
    authorizations: Authorizations | None,
    purchases: PurchaseHandlers,
    checkouts: Checkouts,
    owner_uid: int | None,
    access: AccessStore,
    doctor: Doctor | None,
) -> list[Route]:
    """Return the routes of all pages; the sign-in page names the `outbox` folder if given.

    Without `authorizations`, no page connects programs. `owner_uid` is the user who may connect
    programs without a plan, None for nobody. `doctor` are the checks that the owner can run.
    """
    pending = PendingRequests(authorizations, runner.context.base_url)
    sessions = Sessions(sign_in, member_keys, runner.context.base_url)
    billing = MemberBilling(member_keys, provider, runner.context.clock)
    context = runner.context
    own = OwnPurchases(checkouts, context.base_url)
    consent_routes = (
        []
        if authorizations is None
        else ConsentPages(
            authorizations,
            pending,
            sessions,
            member_keys,
            billing,
            purchases.checkout,
            context,
            owner_uid,
        ).build_routes(runner)
    )
    return [
        *_build_checkout_routes(provider, CheckoutSteps(own, pending), runner),
        *BuyPages(purchases, own, sessions, sign_in, context).build_routes(runner),
        *build_docs_routes(runner, sessions.find_viewer),
        *build_discovery_routes(runner),
        *build_sign_in_routes(sign_in, sessions, pending, runner, outbox),
        *consent_routes,
        *build_api_access_routes(member_keys, billing, sessions, runner),
        *build_operations_routes(access, billing, sessions, runner, doctor),
        *build_static_routes(),
        *build_crawler_routes(runner),
        *build_board_routes(runner, sessions, Watchlists(access, context.clock)),
        *build_view_routes(runner, sessions.find_viewer),
        *build_asset_list_routes(runner, sessions.find_viewer),
        *build_asset_page_routes(runner, sessions.find_viewer),
        *build_log_proof_routes(runner, sessions),
    ]


def _build_checkout_routes(
    provider: Provider, steps: CheckoutSteps, runner: ToolRunner
) -> list[Route]:
    """Return the sandbox's pay page, or the pages that Stripe sends buyers back to."""
    if isinstance(provider, SandboxBilling):
        return build_pay_page_routes(provider, steps, runner)
    return build_return_page_routes(steps, runner) if provider.name == "stripe" else []
