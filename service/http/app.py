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
from access.quota import Admissions
from access.sign_in import SignIn
from access.throttle import DEFAULT_LIMIT, Limit, Throttle
from access.webhooks import Webhooks
from mcp_server.endpoint import PATHS, McpEndpoint
from mcp_server.tools.registry import TOOLS
from rest_shim.endpoints import CHECKOUT, CLAIM, REQUEST_ACCESS
from rest_shim.error_responses import failure_handlers
from rest_shim.purchases import Submissions
from rest_shim.routes import Read, routes
from rest_shim.webhooks import webhook_route
from schemas.clock import Clock
from schemas.errors import ApiError
from schemas.vocabulary import DAILY_LIMIT
from service.http.health import Readiness, health_routes
from service.http.pages import page_routes
from serving.context import Context
from serving.forwarded_for import ClientAddress, parse_proxies
from serving.host_origin import Gate
from serving.snapshot_cache import Boards
from serving.tool_runner import Calls, Observed
from store.access_protocol import AccessStore
from store.errors import MarketStore, StoreError

Sold = Callable[[str, str], None]
Submit = Callable[[Any, str], Coroutine[Any, Any, Any]]


def create_app(
    market: MarketStore,
    access: AccessStore,
    provider: Provider,
    mailer: Mailer,
    *,
    base_url: str,
    clock: Clock,
    observed: Observed = lambda tool, outcome, seconds: None,
    sold: Sold = lambda operation, outcome: None,
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
    docs = f"{base_url}/api/v1"
    admissions = Admissions(access, clock, mode=provider.mode, daily_limit=daily_limit)
    context = Context(Boards(market), base_url, docs, clock, provider.mode, daily_limit)
    calls = Calls(admissions, context, observed)
    claims = Claims(access, provider, clock)
    submissions = _submissions(
        access, provider, claims, context, checkout_limit, access_request_limit, sold
    )
    members = MemberKeys(access, provider, claims, clock)
    asking = Throttle(access, clock, "sign-in", sign_in_limit)
    sign_in = SignIn(access, provider, claims, mailer, asking, clock, base_url=base_url)
    endpoint = McpEndpoint(calls, TOOLS)
    app = Starlette(
        routes=[
            *(Route(path, endpoint) for path in PATHS),
            *routes(calls, submissions),
            *page_routes(calls, provider, members, sign_in, outbox),
            *health_routes(Readiness(context.boards, access, clock)),
            *_reports(access, provider, clock, calls),
        ],
        exception_handlers=failure_handlers(calls),
    )
    app.router.redirect_slashes = False
    gate = Gate(
        Shortcut(app.build_middleware_stack(), app.routes),
        base_url=base_url,
        docs=docs,
        allowed_hosts=allowed_hosts,
        allowed_origins=allowed_origins,
    )
    trusted = parse_proxies(trusted_proxies)
    app.middleware_stack = ClientAddress(gate, trusted=trusted, store=access, clock=clock)
    return app


class Shortcut:
    """Takes calls of tools past Starlette's own middleware and routing, which cost as much."""

    def __init__(self, routed: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._routed = routed
        self._apps: dict[tuple[str | None, str | None], ASGIApp] = {
            (method, route.path): route.app
            for route in routes
            if isinstance(route, Route) and isinstance(route.endpoint, McpEndpoint | Read)
            for method in route.methods or ("POST",)
        }

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Hand a request to the app of its method and path, to Starlette where it has none."""
        app = self._apps.get((scope.get("method"), scope.get("path")), self._routed)
        return app(scope, receive, send)


def _submissions(
    access: AccessStore,
    provider: Provider,
    claims: Claims,
    context: Context,
    checkout_limit: Limit,
    access_request_limit: Limit,
    sold: Sold,
) -> Submissions:
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
    requests = AccessRequests(
        access,
        Throttle(access, clock, "access-request", access_request_limit),
        clock,
        takes_special_use_email=provider.takes_special_use_email,
    )
    return {
        CHECKOUT.operation_id: _told("checkout", purchases.checkout, sold),
        CLAIM.operation_id: _told("claim", purchases.claim, sold),
        REQUEST_ACCESS.operation_id: requests.put,
    }


def _told(operation: str, submit: Submit, sold: Sold) -> Submit:
    """Return the same submission, of which what it came to is told."""

    async def answer(body: Any, address: str) -> Any:
        try:
            answer = await submit(body, address)
        except ApiError as refusal:
            sold(operation, refusal.code)
            raise
        except StoreError:
            sold(operation, "unavailable")
            raise
        sold(operation, answer.status)
        return answer

    return answer


def _reports(access: AccessStore, provider: Provider, clock: Clock, calls: Calls) -> list[Route]:
    """Return the address that the payment processor reports to, where it has one."""
    if provider.name != "stripe":
        return []
    return [webhook_route(Webhooks(access, provider, clock), calls)]
