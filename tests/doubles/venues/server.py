"""Every venue on one loopback port, in the test's event loop, with failures on demand.

    async with run_venues_double(clock) as double:
        double.get_venue("binance").add_listing("BTC/USDT", market)

A venue's real host is the first part of the path: BASE/api.binance.com/api/v3/time.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.vocabulary import Clock
from tests.doubles.stripe.server import DroppedResponse
from tests.doubles.venues.alpaca import Alpaca
from tests.doubles.venues.dialects import (
    Binance,
    Bybit,
    Coinbase,
    Gate,
    Hyperliquid,
    Kraken,
    Kucoin,
    Okx,
)
from tests.doubles.venues.market import NOW
from tests.doubles.venues.venue import (
    Dialect,
    Failure,
    FailureKind,
    RefusedError,
    VenueDouble,
    VenueRequest,
)
from tests.support.running_service import ManualClock, serve_app

DIALECTS: dict[str, Callable[[], Dialect]] = {
    dialect.name: dialect
    for dialect in (Alpaca, Binance, Bybit, Coinbase, Gate, Hyperliquid, Kraken, Kucoin, Okx)
}
# The page of a proxy before the venue, for errors that its documentation does not word.
_PAGES: dict[FailureKind, int] = {"unavailable": 503, "maintenance": 503, "restricted": 403}


class VenuesDouble:
    """All venues; `clock` returns epoch ms, `base_url` is the prefix of their hosts."""

    def __init__(self, clock: Clock) -> None:
        self.base_url = ""
        self.clock = clock
        self._venues = {name: VenueDouble(make(), clock) for name, make in DIALECTS.items()}
        self._hosts = {host: one for one in self._venues.values() for host in one.dialect.hosts}

    def get_venue(self, name: str) -> VenueDouble:
        return self._venues[name]

    def clear_failures(self) -> None:
        for venue in self._venues.values():
            venue.clear_failures()

    def build_app(self, address: str) -> Starlette:
        """Return the ASGI app, which is served at the given address."""
        self.base_url = address
        return Starlette(
            routes=[Route("/{host}/{path:path}", self._answer, methods=["GET", "POST"])]
        )

    async def _answer(self, request: Request) -> Response:
        venue = self._hosts.get(request.path_params["host"])
        if venue is None:
            return Response("no such host", 404)
        venue_request = await _read_request(request, venue)
        venue.requests.append(venue_request)
        trouble = venue.take_failure(venue_request)
        if trouble is None:
            return _answer_correctly(venue, venue_request)
        return await _answer_failure(venue, venue_request, trouble)


async def _read_request(request: Request, venue: VenueDouble) -> VenueRequest:
    query = dict(request.query_params)
    if request.method == "POST":
        body = await request.json()
        query = {name: str(value) for name, value in (body | body.get("req", {})).items()}
    path, host = request.path_params["path"], request.path_params["host"]
    venue_request = VenueRequest(host, path, query, request.headers)
    venue.dialect.fill_in_key(venue_request)
    return venue_request


def _answer_correctly(venue: VenueDouble, venue_request: VenueRequest) -> Response:
    try:
        return _build_response(200, venue.dialect.answer(venue, venue_request))
    except RefusedError as refused:
        return _build_response(refused.status, refused.body)


async def _answer_failure(
    venue: VenueDouble, venue_request: VenueRequest, trouble: Failure
) -> Response:
    if trouble.kind == "hanging":
        await trouble.released.wait()
        return _answer_correctly(venue, venue_request)
    if trouble.kind == "dropped":
        return DroppedResponse()
    if trouble.kind == "truncated":
        whole = _answer_correctly(venue, venue_request)
        return Response(whole.body[: len(whole.body) // 2], media_type="application/json")
    if trouble.kind == "garbled":
        right = _answer_correctly(venue, venue_request)
        garbled = json.dumps(trouble.garble(json.loads(bytes(right.body))))
        status = trouble.status or right.status_code
        return Response(garbled, status, trouble.headers, media_type="application/json")
    if trouble.kind in venue.dialect.errors:
        refused = venue.dialect.refuse(trouble.kind)
        return _build_response(trouble.status or refused.status, refused.body, trouble.headers)
    status = trouble.status or _PAGES[trouble.kind]
    return _build_response(status, "<html><title>Sorry</title></html>", trouble.headers)


def _build_response(status: int, body: Any, headers: Any = None) -> Response:
    """Return a JSON response; text stands for the page of a proxy before the venue."""
    if isinstance(body, str):
        return Response(body, status, headers, media_type="text/html")
    printed = json.dumps(body, separators=(",", ":"))
    return Response(printed, status, headers, media_type="application/json")


@asynccontextmanager
async def run_venues_double(clock: Clock) -> AsyncIterator[VenuesDouble]:
    """Serve every venue until the block ends; `clock` returns epoch ms."""
    double = VenuesDouble(clock)
    async with serve_app(double.build_app):
        try:
            yield double
        finally:
            double.clear_failures()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW * 1000)


@pytest.fixture
async def double(clock: ManualClock, use_single_ca: None) -> AsyncIterator[VenuesDouble]:
    """Every venue at a fixed hour."""
    async with run_venues_double(clock) as running:
        yield running
