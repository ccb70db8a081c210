"""A Stripe on a loopback port, in the test's own event loop, that tests control.

    async with stripe_double(clock) as stripe:
        billing = StripeBilling(..., api_base=stripe.base_url)

Stripe's real library is its client. It can fail, drop, hold and count requests, and it signs
webhooks with its own HMAC.
"""

import asyncio
import hmac
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from schemas.vocabulary import Clock
from tests.doubles.stripe.api import ApiRequest, RefusalError, StripeApi, format_event, read_request
from tests.doubles.stripe.records import Object, Status, StripeRecords
from tests.support.running_service import open_loopback_socket, run_app

API_KEY = "sk_test_51DoubleKey"
WEBHOOK_SECRET = "whsec_double"
MONTHLY, YEARLY = "price_monthly", "price_yearly"


@dataclass(frozen=True)
class Failure:
    """A failure: status None drops the connection; `is_executed` if it follows the execution."""

    status: int | None
    is_executed: bool


class DroppedResponse(Response):
    """A response during which the server closes the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"100")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})


class StripeDouble:
    """One account, in test mode unless `livemode`, with a monthly and a yearly price.

    Methods that change an object return its event.
    """

    def __init__(self, clock: Clock, *, livemode: bool = False) -> None:
        self.api_key = API_KEY.replace("test", "live") if livemode else API_KEY
        self.webhook_secret = WEBHOOK_SECRET
        self.prices = {"monthly": MONTHLY, "yearly": YEARLY}
        self.books = StripeRecords(clock, livemode=livemode)
        self.books.add_price(MONTHLY, 129_00, "month")
        self.books.add_price(YEARLY, 1_199_00, "year")
        self.books.set_up_portal()
        self.requests: list[ApiRequest] = []
        self._clock = clock
        self._api = StripeApi(self.books, self.api_key)
        self._troubles: deque[Failure | Callable[[], Response]] = deque()
        self._delays: dict[str, Callable[[], Awaitable[object]]] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._stuck = asyncio.Event()

    @property
    def base_url(self) -> str:
        """The base URL of the API and of pay pages."""
        return self._api.address

    def build_app(self, address: str) -> Starlette:
        """Return the ASGI app; its pay pages are below `address`."""
        self._api.address = address
        methods = ["GET", "POST", "DELETE"]
        return Starlette(
            routes=[
                Route("/c/pay/{session}", self._pay_page, methods=["GET", "POST"]),
                Route("/v1/{path:path}", self._answer, methods=methods),
            ]
        )

    def pay(self, session: str, *, is_delayed: bool = False) -> Object:
        """Pay a checkout; with a delayed method the payment arrives with `settle`."""
        return self.books.complete(self.books.objects[session], is_delayed=is_delayed)

    def settle(self, session: str) -> Object:
        return self.books.settle(self.books.objects[session])

    def expire(self, session: str) -> Object:
        return self.books.expire(self.books.objects[session])

    def cancel_subscription(self, subscription: str) -> Object:
        return self.set_status(subscription, "canceled")

    def set_status(self, subscription: str, status: Status) -> Object:
        return self.books.set_status(self.books.objects[subscription], status)

    def refund(self, charge: str, amount: int | None = None) -> Object:
        """Refund an amount in cents, or the rest of the charge if there is none."""
        self.books.refund(self.books.objects[charge], amount)
        return self.events[0]

    def dispute(
        self, charge: str, status: str = "needs_response", case_type: str = "chargeback"
    ) -> Object:
        return self.books.dispute(self.books.objects[charge], status, case_type)

    @property
    def events(self) -> list[Object]:
        """Every event, newest first."""
        return self.books.list_objects("event")

    def sessions(self) -> list[Object]:
        """Every checkout, newest first."""
        return self.books.list_objects("checkout.session")

    def subscription_of(self, session: str) -> str:
        subscription: str = self.books.objects[session]["subscription"]
        return subscription

    def charge_of(self, session: str) -> str:
        """Return the id of the newest charge of a paid checkout's customer."""
        customer = self.books.objects[session]["customer"]
        charge: str = self.books.list_objects("charge", customer=customer)[0]["id"]
        return charge

    def fail(self, status: int, *, times: int = 1, is_executed: bool = False) -> None:
        """Answer the next requests with a status, before or after executing them."""
        self._troubles.extend([Failure(status, is_executed)] * times)

    def drop(self, *, times: int = 1, is_executed: bool = False) -> None:
        """Drop the connection of the next requests, before or after executing them."""
        self._troubles.extend([Failure(None, is_executed)] * times)

    def respond(self, build: Callable[[], Response]) -> None:
        """Answer the next request with any response, without executing it."""
        self._troubles.append(build)

    def hold(self) -> None:
        """Hold requests until `release`."""
        self._open.clear()

    def delay_answer(self, path: str, work: Callable[[], Awaitable[object]]) -> None:
        """Await `work` between execution and answer of the next request to a path, by its start."""
        self._delays[path] = work

    def release(self) -> None:
        self._open.set()
        self._stuck.set()

    def recover(self) -> None:
        """Answer new requests, while those that are held stay so until `release`."""
        self._stuck, self._open = self._open, asyncio.Event()
        self._open.set()

    def sign(
        self, event: Object, *, at: int | None = None, secret: str | None = None
    ) -> tuple[bytes, str]:
        """Return body and Stripe-Signature of a webhook signed `at` (epoch seconds)."""
        payload = format_event(event)
        return payload, sign_payload(payload, at or self._clock() // 1000, secret or WEBHOOK_SECRET)

    async def send(self, url: str, event: Object, *, at: int | None = None) -> httpx.Response:
        """Post an event to a webhook endpoint, as Stripe does."""
        payload, signed = self.sign(event, at=at)
        headers = {"Content-Type": "application/json", "Stripe-Signature": signed}
        async with httpx.AsyncClient(verify=False, timeout=30) as client:
            return await client.post(url, content=payload, headers=headers)

    async def _answer(self, request: Request) -> Response:
        try:
            self._api.authenticate(request.headers.get("authorization"))
            call = await read_request(request)
        except RefusalError as refusal:
            return JSONResponse(refusal.body, refusal.status)
        self.requests.append(call)
        trouble = self._troubles.popleft() if self._troubles else None
        await self._open.wait()
        if trouble is None:
            answer = self._api.answer(call)
            for path in [path for path in self._delays if call.path.startswith(path)]:
                await self._delays.pop(path)()
            return answer
        if not isinstance(trouble, Failure):
            return trouble()
        if trouble.is_executed:
            self._api.answer(call)
        return DroppedResponse() if trouble.status is None else _build_failure(trouble)

    async def _pay_page(self, request: Request) -> Response:
        session = self.books.objects[request.path_params["session"]]
        if request.method == "POST":
            self.pay(session["id"])
            return RedirectResponse(
                session["success_url"].replace("{CHECKOUT_SESSION_ID}", session["id"]), 303
            )
        return Response(
            "<form method=post><button>Subscribe</button></form>", media_type="text/html"
        )


def sign_payload(payload: bytes, at: int, secret: str) -> str:
    """Return the Stripe-Signature of a body: HMAC-SHA256 over time (epoch seconds) and body."""
    digest = hmac.digest(secret.encode(), f"{at}.".encode() + payload, "sha256").hex()
    return f"t={at},v1={digest},v0={'0' * 64}"


def _build_failure(trouble: Failure) -> Response:
    """Return an error response as Stripe's; an executed request can be retried at once."""
    status = trouble.status or 500
    if status == 429:
        error = RefusalError(429, "Request rate limit exceeded.", code="rate_limit")
    else:
        error = RefusalError(status, "An unknown error occurred.")
    retry = "true" if trouble.is_executed else "false"
    headers = {"Stripe-Should-Retry": retry, "Request-Id": "req_double"}
    return JSONResponse(error.body, status, headers)


@asynccontextmanager
async def run_stripe_double(clock: Clock, *, livemode: bool = False) -> AsyncIterator[StripeDouble]:
    """Run a Stripe until the block ends; `clock` returns epoch ms."""
    double = StripeDouble(clock, livemode=livemode)
    with open_loopback_socket() as bound:
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with run_app(double.build_app(address), bound):
            try:
                yield double
            finally:
                double.release()
