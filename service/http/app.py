"""Builds the ASGI app from open resources: routes, pages, OAuth, middleware."""

import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from access.billing.provider import SandboxBilling
from access.call_log import CallLog
from access.contact import normalize_email, submit_access_request
from access.keys_and_quota import QuotaGuard
from access.maintenance import handle_webhook
from access.members import MemberKeys
from access.oauth.authorizations import Authorizations
from access.oauth.clients import ClientRegistry
from access.oauth.parameters import can_serve_oauth
from access.oauth.tokens import AccessTokens, TokenIssuer
from access.purchases import ClaimResult, Claims, Purchases
from access.sign_in import SignIn
from access.throttle import Throttle
from mcp_server.endpoint import PATHS, McpEndpoint
from mcp_server.protected_endpoint import PATHS as PROTECTED_PATHS, ProtectedMcpEndpoint
from mcp_server.tools.tool_table import TOOLS
from rest_shim.endpoints import ENDPOINTS
from rest_shim.oauth import OAuthEndpoints, build_oauth_routes
from rest_shim.purchase_routes import PurchaseHandlers, build_webhook_route
from rest_shim.routes import ToolRoute, build_exception_handlers, build_routes
from rest_shim.sample import build_sample_runner
from schemas.errors import ApiError
from schemas.purchase import CheckoutResponse
from service.commands.doctor import build_doctor
from service.config.providers import choose_visible_outbox
from service.config.setting_types import split_commas
from service.config.settings import Settings
from service.http.health import Readiness, build_health_routes
from service.http.metrics import Metrics
from service.http.resources import NoticeKeeper, Resources, WatchedMailer, watch_webhooks
from serving.context import Context
from serving.fair_share import FairShare, KeysFirstMiddleware
from serving.forwarded_for import ForwardedForMiddleware, parse_proxies
from serving.host_origin import HostOriginMiddleware
from serving.prices import Prices, decide_prices
from serving.snapshot_cache import SnapshotCache
from serving.tool_runner import OnCall, OnKeyCall, ToolRunner
from store.store_errors import StoreError
from web.api_access import build_api_access_routes
from web.asset_page import AssetPages
from web.board import BoardPages
from web.buy_pages import (
    BuyPages,
    OwnPurchases,
    build_pay_page_routes,
    build_return_page_routes,
)
from web.chat_documents import build_chat_views
from web.consent_pages import ConsentPages, build_authorize_route
from web.discovery import DISCOVERY_PATHS, build_crawler_routes, build_discovery_routes
from web.docs import build_docs_routes
from web.feed_pages import build_log_routes, build_view_routes
from web.operations import Doctor, build_operations_routes
from web.pages import Site, build_refusal_renderer, build_static_routes
from web.sessions import HOME_PATH as API_ACCESS_PATH, PendingRequests, Sessions, SignInPages

# Prefixes of the paths that pages of other origins may call, as `HostOriginMiddleware` says. The
# pages for people are not among them, because their forms contain tokens.
API_PATHS = ("/api/v1", "/legal")
TOKEN_PATHS = ("/mcp",)
# Clients that run in a browser exchange codes and tokens there, which no page has by itself.
OAUTH_PATHS = ("/oauth/register", "/oauth/token", "/oauth/revoke")
PUBLIC_PATHS = ("/.well-known/", *OAUTH_PATHS, *DISCOVERY_PATHS)
# The reads without a key, whole paths. Whoever can open them anywhere may read them from a page.
OPEN_READS = frozenset(
    path
    for endpoint in ENDPOINTS
    if endpoint.method == "GET" and endpoint.auth == "none"
    for path in endpoint.paths
)
# Errors of these paths, and of all below them, are never pages.
PROGRAM_PATHS = ("/api", "/legal", *TOKEN_PATHS, *PUBLIC_PATHS)
FAST_ENDPOINTS = McpEndpoint | ProtectedMcpEndpoint | ToolRoute
# Called after each checkout and claim with (operation, status or error code).
OnSale = Callable[[str, str], None]
ParamsT = ParamSpec("ParamsT")
SaleT = TypeVar("SaleT", bound=CheckoutResponse | ClaimResult)


def build_app(
    settings: Settings, resources: Resources, metrics: Metrics, call_log: CallLog
) -> Starlette:
    """Return the ASGI app that the settings describe; it counts calls and sales in `metrics`."""
    return create_app(
        settings,
        replace(
            resources,
            mailer=WatchedMailer(
                resources.mailer, NoticeKeeper(resources.access, resources.clock), metrics.on_mail
            ),
        ),
        on_call=metrics.on_call,
        on_sale=metrics.on_sale,
        on_key_call=call_log.add,
        outbox=choose_visible_outbox(settings),
        owner_uid=os.getuid() if settings.is_local else None,
        doctor=build_doctor(settings, resources.market, resources.access, resources.clock),
        are_runs_failing=lambda: metrics.are_runs_failing,
    )


def create_app(
    settings: Settings,
    resources: Resources,
    *,
    on_call: OnCall = lambda tool, outcome, seconds: None,
    on_sale: OnSale = lambda operation, outcome: None,
    on_key_call: OnKeyCall = lambda key_hash, call: None,
    fair_share: FairShare | None = None,
    outbox: Path | None = None,
    owner_uid: int | None = None,
    doctor: Doctor | None = None,
    are_runs_failing: Callable[[], bool] = lambda: False,
) -> Starlette:
    """Return the ASGI app of both transports and the pages over open resources.

    `outbox` is the folder of undelivered mail that the sign-in page names. `owner_uid` is the user
    whose own machine this is, who may connect programs without a plan; None if others can reach
    the service. The owner can run the checks of `doctor` on a page.
    """
    access, provider, clock = resources.access, resources.provider, resources.clock
    base_url, daily_limit = settings.address, settings.daily_limit

    # The reads, over both transports.
    snapshots = SnapshotCache(resources.market, loads_ledger=True)
    shows_prices, _ = decide_prices(
        settings.show_prices, resources.source, settings.source, is_local=settings.is_local
    )
    context = Context(
        snapshots,
        base_url,
        f"{base_url}/api/v1",
        clock,
        provider.mode,
        daily_limit,
        operator=settings.operator,
        prices=Prices(snapshots) if shows_prices else None,
    )
    quota_guard = QuotaGuard(
        access,
        clock,
        mode=context.mode,
        daily_limit=daily_limit,
        keys_url=f"{base_url}/{API_ACCESS_PATH}",
    )
    fair_share = fair_share or FairShare()
    runner = ToolRunner(quota_guard, context, on_call, on_key_call, fair_share)
    sample = build_sample_runner(runner)
    endpoint = McpEndpoint(runner, TOOLS, build_chat_views())
    authorizations: Authorizations | None = None
    oauth_routes = list[Route]()
    if can_serve_oauth(base_url):
        clients = ClientRegistry(access, resources.client_documents, clock)
        limit = settings.oauth_limit
        authorizations = Authorizations(
            access,
            clients,
            Throttle(access, clock, "authorization", limit),
            clock,
            issuer=base_url,
        )
        oauth_endpoints = OAuthEndpoints(
            clients,
            TokenIssuer(access, clients, clock, issuer=base_url),
            Throttle(access, clock, "token", limit),
        )
        protected = ProtectedMcpEndpoint(
            endpoint, AccessTokens(access, clock, issuer=base_url), runner
        )
        oauth_routes = [
            *(Route(path, protected) for path in PROTECTED_PATHS),
            *build_oauth_routes(oauth_endpoints, runner),
            build_authorize_route(authorizations, runner),
        ]

    # The sale of keys.
    claims = Claims(access, provider, clock)
    sales = Purchases(
        access,
        provider,
        claims,
        Throttle(access, clock, "checkout", settings.checkout_limit),
        clock,
        base_url=base_url,
        daily_limit=daily_limit,
    )
    accepts_special_use = provider.accepts_special_use_email
    purchases = PurchaseHandlers(
        check_email=partial(normalize_email, accepts_special_use=accepts_special_use),
        checkout=_report_outcome("checkout", sales.create_checkout, on_sale),
        claim=_report_outcome("claim", sales.claim, on_sale),
        request_access=partial(
            submit_access_request,
            access,
            Throttle(access, clock, "access-request", settings.access_request_limit),
            clock,
            accepts_special_use,
        ),
    )

    # The pages.
    pending = PendingRequests(authorizations, base_url)
    own = OwnPurchases(sales, pending, base_url)
    # The sandbox's pay page; or the pages that Stripe sends buyers back to, and what it reports to.
    processor_routes = list[Route]()
    if isinstance(provider, SandboxBilling):
        processor_routes = build_pay_page_routes(provider, own, runner)
    elif provider.name == "stripe":
        handle_watched = watch_webhooks(
            partial(handle_webhook, access, provider, clock),
            NoticeKeeper(access, clock),
            partial(on_sale, "webhook"),
        )
        processor_routes = build_return_page_routes(own, runner)
        processor_routes.append(build_webhook_route(handle_watched, runner))
    sign_in = SignIn(
        access,
        provider,
        claims,
        resources.mailer,
        Throttle(access, clock, "sign-in", settings.sign_in_limit),
        clock,
        resources.sleep,
        base_url=base_url,
        operator=settings.operator,
    )
    member_keys = MemberKeys(access, provider, claims, clock)
    sessions = Sessions(sign_in, member_keys, base_url)
    consent_routes = list[Route]()
    if authorizations is not None:
        consent_routes = ConsentPages(
            authorizations, pending, sessions, member_keys, purchases, context, owner_uid
        ).build_routes(runner)
    buy_pages = BuyPages(purchases, own, claims, sessions, sign_in, context)
    sign_in_pages = SignInPages(sign_in, sessions, pending, outbox)
    # A board without a column of prices has none for visitors either.
    sample_prices = sample.context.prices if shows_prices else None
    sample_board = sample.with_context(sample.context._replace(prices=sample_prices))
    board_pages = BoardPages(context, sample_board.context, sessions, access)
    asset_pages = AssetPages(context, sample.context, sessions.find_viewer)

    site = Site(base_url, settings.operator, context.sells_keys)
    render_refusal = build_refusal_renderer(site, PROGRAM_PATHS)
    app = Starlette(
        routes=[
            *(Route(path, endpoint) for path in PATHS),
            *oauth_routes,
            *build_routes(runner, purchases),
            *processor_routes,
            *buy_pages.build_routes(runner),
            *build_docs_routes(runner, sessions.find_viewer),
            *build_discovery_routes(runner),
            *sign_in_pages.build_routes(runner),
            *consent_routes,
            *build_api_access_routes(member_keys, sessions, runner),
            *build_operations_routes(access, sessions, runner, doctor),
            *build_static_routes(),
            *build_crawler_routes(runner),
            *board_pages.build_routes(runner),
            *build_view_routes(runner, sample, sessions.find_viewer),
            *asset_pages.build_routes(runner),
            *build_log_routes(runner, sessions),
            *build_health_routes(Readiness(snapshots, access, clock, are_runs_failing)),
        ],
        exception_handlers=build_exception_handlers(runner, render_refusal),
    )
    app.state.site = site
    # Starlette would redirect /state/ to /state; here a path that no route has is 404.
    app.router.redirect_slashes = False
    host_origin = HostOriginMiddleware(
        FastPathRouter(app.build_middleware_stack(), app.routes),
        base_url=base_url,
        docs=context.docs_url,
        allowed_hosts=split_commas(settings.allowed_hosts),
        allowed_origins=split_commas(settings.allowed_origins),
        api_paths=API_PATHS,
        token_paths=TOKEN_PATHS,
        public_paths=PUBLIC_PATHS,
        open_reads=OPEN_READS,
        checks_host=settings.checks_host,
        render_page=render_refusal,
        operator=settings.operator,
    )
    app.middleware_stack = ForwardedForMiddleware(
        KeysFirstMiddleware(host_origin, fair_share),
        trusted=parse_proxies(split_commas(settings.trusted_proxies)),
        store=access,
        clock=clock,
    )
    return app


class FastPathRouter:
    """ASGI app: routes tool calls past Starlette's middleware and routing."""

    # Starlette's middleware and routing cost as much as a tool call itself.

    def __init__(self, fallback: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._fallback = fallback
        self._routes: dict[tuple[str | None, str | None], Route] = {
            (method, route.path): route
            for route in routes
            if isinstance(route, Route) and isinstance(route.endpoint, FAST_ENDPOINTS)
            for method in route.methods or ("POST",)
        }

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass a request to the app of its method and path, else to Starlette."""
        route = self._routes.get((scope.get("method"), scope.get("path")))
        if route is None:
            return self._fallback(scope, receive, send)
        # Starlette adds it too; the log reads it.
        scope["route"] = route
        return route.app(scope, receive, send)


def _report_outcome(
    operation: str, handler: Callable[ParamsT, Awaitable[SaleT]], on_sale: OnSale
) -> Callable[ParamsT, Coroutine[Any, Any, SaleT]]:
    """Wrap a purchase handler and report its outcome to `on_sale`."""

    async def handle(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> SaleT:
        try:
            response = await handler(*args, **kwargs)
        except ApiError as refusal:
            on_sale(operation, refusal.code)
            raise
        except StoreError:
            on_sale(operation, "unavailable")
            raise
        on_sale(operation, response.status)
        return response

    return handle
