"""The part of Stripe's HTTP API that purchases use: form-encoded requests, JSON responses."""

import asyncio
import hmac
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from schemas.vocabulary import Clock
from tests.doubles.stripe.records import COLLECTIONS, Object, StripeRecords
from tests.support.running_service import serve_app

KINDS = {path: kind for kind, path in COLLECTIONS.items()}
EXPANDABLE = {"customer", "line_items", "subscription", "charge"}
FILTERS = {"charge", "customer", "payment_intent", "subscription", "type", "status"}
SESSION_PARAMETERS = {
    "adaptive_pricing",
    "allow_promotion_codes",
    "cancel_url",
    "client_reference_id",
    "customer_email",
    "expand",
    "expires_at",
    "line_items",
    "metadata",
    "mode",
    "subscription_data",
    "success_url",
}


class RefusalError(Exception):
    """An error that Stripe documents, with its HTTP status."""

    def __init__(self, status: int, message: str, **fields: str) -> None:
        super().__init__(message)
        self.status = status
        kind = "api_error" if status >= 500 else "invalid_request_error"
        self.body = {"error": {"message": message, "type": kind} | fields}


@dataclass(frozen=True)
class ApiRequest:
    """One request, its bracketed parameters parsed into dicts and lists."""

    method: str
    path: str
    parameters: Object
    idempotency_key: str | None


def parse_form(text: str) -> Object:
    """Parse a form: `a[b][0]=c` becomes {"a": {"b": ["c"]}}."""
    root: Object = {}
    for key, value in parse_qsl(text, keep_blank_values=True):
        *path, last = re.findall(r"[^\[\]]+", key) + (["0"] if key.endswith("[]") else [])
        place = root
        for part in path:
            place = place.setdefault(part, {})
        while key.endswith("[]") and last in place:
            last = str(int(last) + 1)
        place[last] = value
    return {key: _convert_indices(value) for key, value in root.items()}


def _convert_indices(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value and all(key.isdecimal() for key in value):
        return [_convert_indices(value[key]) for key in sorted(value, key=int)]
    return {key: _convert_indices(one) for key, one in value.items()}


async def read_request(request: Request) -> ApiRequest:
    """Parse a request; raise RefusalError if it is not form-encoded."""
    body = (await request.body()).decode()
    if body and request.headers.get("content-type") != "application/x-www-form-urlencoded":
        raise RefusalError(400, "Invalid request (check that your POST content type is right).")
    return ApiRequest(
        request.method,
        request.url.path.removeprefix("/v1/"),
        parse_form(body if request.method == "POST" else request.url.query),
        request.headers.get("idempotency-key"),
    )


API_KEY = "sk_test_51DoubleKey"
WEBHOOK_SECRET = "whsec_double"
MONTHLY, YEARLY = "price_monthly", "price_yearly"


class DroppedResponse(Response):
    """A response during which the server closes the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"100")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})


class StripeDouble(StripeRecords):
    """One account, in test mode unless `livemode`, with a monthly and a yearly price."""

    def __init__(self, clock: Clock, *, livemode: bool = False) -> None:
        super().__init__(clock, livemode=livemode)
        self.api_key = API_KEY.replace("test", "live") if livemode else API_KEY
        self.webhook_secret = WEBHOOK_SECRET
        self.prices = {"monthly": MONTHLY, "yearly": YEARLY}
        self.add_price(MONTHLY, 129_00, "month")
        self.add_price(YEARLY, 1_199_00, "year")
        portal = {"active": True, "is_default": True}
        self._add("billing_portal.configuration", self._new_id("bpc"), **portal)
        self.requests: list[ApiRequest] = []
        self.base_url = ""
        self._answered: dict[str, tuple[ApiRequest, Object]] = {}
        self._troubles: deque[tuple[Callable[[], Response], bool]] = deque()
        self._delays: dict[str, Callable[[], Awaitable[object]]] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._stuck = asyncio.Event()

    def build_app(self, address: str) -> Starlette:
        """Return the ASGI app; it names pay pages below `address`, which do not exist."""
        self.base_url = address
        return Starlette(
            routes=[Route("/v1/{path:path}", self._answer, methods=["GET", "POST"])],
            exception_handlers={
                RefusalError: lambda request, error: JSONResponse(error.body, error.status)
            },
        )

    @property
    def events(self) -> list[Object]:
        """Every event, newest first."""
        return self.list_objects("event")

    def sessions(self) -> list[Object]:
        """Every checkout, newest first."""
        return self.list_objects("checkout.session")

    def subscription_of(self, session: str) -> str:
        return str(self.objects[session]["subscription"])

    def charge_of(self, session: str) -> str:
        """Return the id of the newest charge of a paid checkout's customer."""
        customer = self.objects[session]["customer"]
        return str(self.list_objects("charge", customer=customer)[0]["id"])

    def fail(self, status: int, *, times: int = 1, is_executed: bool = False) -> None:
        """Answer the next requests with a status, before or after executing them."""
        error = RefusalError(status, "An unknown error occurred.")
        if status == 429:
            error = RefusalError(429, "Request rate limit exceeded.", code="rate_limit")
        # An executed request can be retried at once.
        retry = "true" if is_executed else "false"
        headers = {"Stripe-Should-Retry": retry, "Request-Id": "req_double"}
        for _ in range(times):
            self.respond(lambda: JSONResponse(error.body, status, headers), is_executed=is_executed)

    def respond(self, build: Callable[[], Response], *, is_executed: bool = False) -> None:
        """Answer the next request with any response, without executing it or after that."""
        self._troubles.append((build, is_executed))

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
        payload = json.dumps(event, indent=2).encode()
        return payload, sign_payload(payload, at or self._clock() // 1000, secret or WEBHOOK_SECRET)

    async def send(self, url: str, event: Object, *, at: int | None = None) -> httpx.Response:
        payload, signed = self.sign(event, at=at)
        headers = {"Content-Type": "application/json", "Stripe-Signature": signed}
        async with httpx.AsyncClient(verify=False, timeout=30) as client:
            return await client.post(url, content=payload, headers=headers)

    async def _answer(self, request: Request) -> Response:
        self._authenticate(request.headers.get("authorization"))
        call = await read_request(request)
        self.requests.append(call)
        trouble = self._troubles.popleft() if self._troubles else None
        await self._open.wait()
        if trouble is None:
            answer = self._execute_once(call)
            for path in [path for path in self._delays if call.path.startswith(path)]:
                await self._delays.pop(path)()
            return answer
        build, is_executed = trouble
        if is_executed:
            self._execute_once(call)
        return build()

    def _authenticate(self, authorization: str | None) -> None:
        """Raise RefusalError for a wrong key, masked as Stripe masks it."""
        if authorization != f"Bearer {self.api_key}":
            sent = (authorization or "").removeprefix("Bearer ")
            masked = f"{sent[:8]}{'*' * 8}{sent[-4:]}"
            raise RefusalError(401, f"Invalid API Key provided: {masked}")

    def _execute_once(self, call: ApiRequest) -> Response:
        """Answer a request; a POST with a known idempotency key gets the first response again."""
        key = call.idempotency_key if call.method == "POST" else None
        first, body = self._answered.get(key or "", (call, None))
        assert first == call, "a repeated request has the same parameters"
        body = body or self._execute(call)
        if key is not None:
            self._answered[key] = (call, body)
        return JSONResponse(body)

    def _execute(self, call: ApiRequest) -> Object:
        """Execute a request and return a copy, so that later changes do not alter the response."""
        expand = call.parameters.get("expand", [])
        if call.method == "POST" and call.path == "checkout/sessions":
            return self._expand(self._open_session(call.parameters), expand)
        if call.method == "POST" and call.path == "billing_portal/sessions":
            customer = self._find("customer", call.parameters.get("customer", ""), "customer")
            return self.open_portal(customer, call.parameters.get("return_url"), self.base_url)
        if call.method == "GET" and call.path in KINDS:
            return self._list(KINDS[call.path], call)
        collection, _, id_ = call.path.rpartition("/")
        if call.method == "GET" and collection in KINDS:
            return self._expand(self._find(KINDS[collection], id_), expand)
        raise RefusalError(404, f"Unrecognized request URL ({call.method}: /v1/{call.path}).")

    def _open_session(self, given: Object) -> Object:
        for name in given:
            if name not in SESSION_PARAMETERS:
                message = f"Received unknown parameter: {name}"
                raise RefusalError(400, message, code="parameter_unknown", param=name)
        self._find("price", given["line_items"][0].get("price", ""), "line_items[0][price]")
        email = given.get("customer_email", "a@example.com")
        if "@" not in email or email.endswith("@refused.example.com"):
            message = f"Invalid email address: {email}"
            raise RefusalError(400, message, code="email_invalid", param="customer_email")
        return self.open_session(given, self.base_url)

    def _find(self, kind: str, id_: str, param: str | None = None) -> Object:
        found = self.objects.get(id_)
        if found is None or found["object"] != kind:
            raise RefusalError(
                400 if param else 404,
                f"No such {kind}: '{id_}'",
                code="resource_missing",
                doc_url="https://stripe.com/docs/error-codes/resource-missing",
                param=param or kind.rpartition(".")[2],
            )
        return found

    def _list(self, kind: str, call: ApiRequest) -> Object:
        limit = int(call.parameters.get("limit", 10))
        if not 1 <= limit <= 100:
            raise RefusalError(400, "This value must be between 1 and 100.", param="limit")
        wanted = {name: value for name, value in call.parameters.items() if name in FILTERS}
        rows = self.list_objects(kind, **wanted)
        if (after := call.parameters.get("starting_after")) is not None:
            rows = rows[[row["id"] for row in rows].index(after) + 1 :]
        data = [self._expand(row, []) for row in rows[:limit]]
        return {"object": "list", "data": data, "has_more": len(rows) > limit}

    def _expand(self, found: Object, expand: list[str]) -> Object:
        """Return a copy of an object with some fields expanded from ids to objects."""
        shown = deepcopy(found)
        for name in expand:
            if name not in EXPANDABLE or (name not in found and name != "line_items"):
                raise RefusalError(
                    400, f"This property cannot be expanded ({name}).", param="expand"
                )
            if name == "line_items":
                items = deepcopy(self.line_items[found["id"]])
                shown[name] = {"object": "list", "data": items, "has_more": False}
            elif found[name] is not None:
                shown[name] = deepcopy(self.objects[found[name]])
        return shown


def sign_payload(payload: bytes, at: int, secret: str) -> str:
    """Return the Stripe-Signature of a body: HMAC-SHA256 over time (epoch seconds) and body."""
    digest = hmac.digest(secret.encode(), f"{at}.".encode() + payload, "sha256").hex()
    return f"t={at},v1={digest},v0={'0' * 64}"


@asynccontextmanager
async def run_stripe_double(clock: Clock, *, livemode: bool = False) -> AsyncIterator[StripeDouble]:
    """Run a Stripe until the block ends; `clock` returns epoch ms."""
    double = StripeDouble(clock, livemode=livemode)
    async with serve_app(double.build_app):
        try:
            yield double
        finally:
            double.release()
