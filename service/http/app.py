"""The serving side put together from parts that are handed in; it opens and closes nothing."""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from access.access_requests import AccessRequests
from access.billing.provider import Provider
from access.claims import Claims
from access.mail.mailer import Mailer
from access.member_keys import MemberKeys
from access.purchases import Purchases
from access.quota import QuotaGuard
from access.sign_in import SignIn
from access.throttle import DEFAULT_LIMIT, Limit, Throttle
from access.webhooks import WebhookHandler
from mcp_server.endpoint import PATHS, McpEndpoint
from mcp_server.tools.registry import TOOLS
from rest_shim.endpoints import CLAIM_KEY, CREATE_CHECKOUT, REQUEST_ACCESS
from rest_shim.error_responses import build_exception_handlers
from rest_shim.purchases import PurchaseHandlers
from rest_shim.routes import ToolRoute, build_routes
from rest_shim.webhooks import build_webhook_route
from schemas.clock import Clock
from schemas.errors import ApiError
from schemas.vocabulary import DAILY_LIMIT
from service.http.health import Readiness, build_health_routes
from service.http.pages import build_page_routes
from serving.context import Context
from serving.forwarded_for import ForwardedForMiddleware, parse_proxies
from serving.host_origin import HostOriginMiddleware
from serving.snapshot_cache import SnapshotCache
from serving.tool_runner import OnCall, ToolRunner
from store.access_protocol import AccessStore
from store.errors import MarketStore, StoreError

OnSale = Callable[[str, str], None]
PurchaseHandler = Callable[[Any, str], Coroutine[Any, Any, Any]]


def create_app(
    market: MarketStore,
    access: AccessStore,
    provider: Provider,
    mailer: Mailer,
    *,
    base_url: str,
    clock: Clock,
    on_call: OnCall = lambda tool, outcome, seconds: None,
    on_sale: OnSale = lambda operation, outcome: None,
    daily_limit: int = DAILY_LIMIT,
    checkout_limit: Limit = DEFAULT_LIMIT,
    access_request_limit: Limit = DEFAULT_LIMIT,
    sign_in_limit: Limit = DEFAULT_LIMIT,
    trusted_proxies: Sequence[str] = (),
    allowed_hosts: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
    outbox: Path | None = None,
) -> Starlette:
    """Return the ASGI app of both faces; `clock` gives the wall clock in epoch ms.

    `outbox` is the folder that mail stays in, told to whoever signs in. `observed` hears of each
    call, `sold` of each checkout and claim and what it came to.

    `trusted_proxies` are addresses or networks whose X-Forwarded-For is believed; ValueError names
    one that is neither.
    """
    base_url = base_url.rstrip("/")
    docs_url = f"{base_url}/api/v1"
    quota_guard = QuotaGuard(access, clock, mode=provider.mode, daily_limit=daily_limit)
    context = Context(SnapshotCache(market), base_url, docs_url, clock, provider.mode, daily_limit)
    runner = ToolRunner(quota_guard, context, on_call)
    claims = Claims(access, provider, clock)
    purchase_handlers = _build_purchase_handlers(
        access, provider, claims, context, checkout_limit, access_request_limit, on_sale
    )
    member_keys = MemberKeys(access, provider, claims, clock)
    sign_in_throttle = Throttle(access, clock, "sign-in", sign_in_limit)
    sign_in = SignIn(access, provider, claims, mailer, sign_in_throttle, clock, base_url=base_url)
    endpoint = McpEndpoint(runner, TOOLS)
    app = Starlette(
        routes=[
            *(Route(path, endpoint) for path in PATHS),
            *build_routes(runner, purchase_handlers),
            *build_page_routes(runner, provider, member_keys, sign_in, outbox),
            *build_health_routes(Readiness(context.snapshots, access, clock)),
            *_build_webhook_routes(access, provider, clock, runner),
        ],
        exception_handlers=build_exception_handlers(runner),
    )
    app.router.redirect_slashes = False
    host_origin = HostOriginMiddleware(
        FastPathRouter(app.build_middleware_stack(), app.routes),
        base_url=base_url,
        docs=docs_url,
        allowed_hosts=allowed_hosts,
        allowed_origins=allowed_origins,
    )
    trusted_networks = parse_proxies(trusted_proxies)
    app.middleware_stack = ForwardedForMiddleware(
        host_origin, trusted=trusted_networks, store=access, clock=clock
    )
    return app


class FastPathRouter:
    """Takes calls of tools past Starlette's own middleware and routing, which cost as much."""

    def __init__(self, fallback: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._fallback = fallback
        self._apps_by_route: dict[tuple[str | None, str | None], ASGIApp] = {
            (method, route.path): route.app
            for route in routes
            if isinstance(route, Route) and isinstance(route.endpoint, McpEndpoint | ToolRoute)
            for method in route.methods or ("POST",)
        }

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Hand a request to the app of its method and path, to Starlette where it has none."""
        app = self._apps_by_route.get((scope.get("method"), scope.get("path")), self._fallback)
        return app(scope, receive, send)


def _build_purchase_handlers(
    access: AccessStore,
    provider: Provider,
    claims: Claims,
    context: Context,
    checkout_limit: Limit,
    access_request_limit: Limit,
    on_sale: OnSale,
) -> PurchaseHandlers:
    """Return who answers each of the purchase routes."""
    clock = context.clock
    purchases = Purchases(
        access,
        provider,
        claims,
        Throttle(access, clock, "checkout", checkout_limit),
        clock,
        base_url=context.base_url,
        daily_limit=context.daily_limit,
    )
    access_requests = AccessRequests(
        access,
        Throttle(access, clock, "access-request", access_request_limit),
        clock,
        accepts_special_use_email=provider.accepts_special_use_email,
    )
    return {
        CREATE_CHECKOUT.operation_id: _wrap_purchase_handler(
            "checkout", purchases.create_checkout, on_sale
        ),
        CLAIM_KEY.operation_id: _wrap_purchase_handler("claim", purchases.claim, on_sale),
        REQUEST_ACCESS.operation_id: access_requests.submit_request,
    }


def _wrap_purchase_handler(
    operation: str, handler: PurchaseHandler, on_sale: OnSale
) -> PurchaseHandler:
    """Return the same submission, of which what it came to is told."""

    async def handle(body: Any, address: str) -> Any:
        try:
            response = await handler(body, address)
        except ApiError as refusal:
            on_sale(operation, refusal.code)
            raise
        except StoreError:
            on_sale(operation, "unavailable")
            raise
        on_sale(operation, response.status)
        return response

    return handle


def _build_webhook_routes(
    access: AccessStore, provider: Provider, clock: Clock, runner: ToolRunner
) -> list[Route]:
    """Return the address that the payment processor reports to, where it has one."""
    if provider.name != "stripe":
        return []
    return [build_webhook_route(WebhookHandler(access, provider, clock), runner)]
