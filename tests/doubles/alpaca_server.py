"""An Alpaca on a loopback port, in the test's own event loop, that tests fill and trouble.

    async with alpaca_double(clock) as alpaca:
        venue = AlpacaVenue(KEY_ID, SECRET_KEY, data_address=alpaca.address, ...)

It answers as the documentation of its market data and trading APIs says: bars of 30 minutes by
symbol, then time, in pages; the newest 15 minutes withheld; asset list and clock.
"""

import asyncio
import base64
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from compute.bars import RawBar
from compute.sources.alpaca import AlpacaVenue
from schemas.vocabulary import Clock
from tests.support.running_service import open_loopback_socket, run_app

KEY_ID, SECRET_KEY = "PKDOUBLE0KEY", "double/secret+key"
HALF_S, WITHHELD_S = 1800, 900
RIGHT_BODY = object()
SYMBOL = re.compile(r"[A-Z]{1,5}(\.[A-Z])?")
BARS_PARAMETERS = {
    "symbols",
    "timeframe",
    "start",
    "end",
    "adjustment",
    "limit",
    "sort",
    "page_token",
}


@dataclass(frozen=True)
class Failure:
    """An answer given instead of the right one: a status, a share of its body, or another body."""

    status: int = 200
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    sent_share: float = 1.0
    is_dropped: bool = False
    body: Any = RIGHT_BODY


class DroppedResponse(Response):
    """An answer that breaks off: the connection is closed in the middle of it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"100")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


class AlpacaDouble:
    """What a venue holds and how it behaves; `clock` tells epoch ms.

    Where it `is_disorderly`, bars come newest first and each of them twice. `withheld_s` is 0 with
    a paid plan.
    """

    def __init__(self, clock: Clock) -> None:
        self.address = ""
        self.bars: dict[str, dict[int, RawBar]] = {}
        self.assets: dict[str, str] = {}
        self.page_size = 10_000
        self.is_disorderly = False
        self.withheld_s = WITHHELD_S
        self.requests: list[tuple[str, dict[str, str]]] = []
        self._clock = clock
        self._troubles: deque[Failure] = deque()
        self._open = asyncio.Event()
        self._open.set()

    @property
    def requested_symbols(self) -> list[list[str]]:
        """The symbols of each request for bars, in order."""
        return [given["symbols"].split(",") for path, given in self.requests if "symbols" in given]

    def create_venue(self, **options: Any) -> AlpacaVenue:
        """Return a client of this double, by default with the right key and without pauses."""
        given = {"data_address": self.address, "trading_address": self.address, "spacing_s": 0.0}
        key = options.pop("key_id", KEY_ID), options.pop("secret_key", SECRET_KEY)
        return AlpacaVenue(*key, **given | options)

    def add_bars(self, symbol: str, bars: Iterable[RawBar] = (), status: str = "active") -> None:
        """Put bars of 30 minutes on record for a symbol, which is listed from then on."""
        self.assets[symbol] = status
        self.bars.setdefault(symbol, {}).update((bar.open_time, bar) for bar in bars)

    def add_failures(self, *troubles: Failure) -> None:
        """Answer the next requests so."""
        self._troubles.extend(troubles)

    def hold(self) -> None:
        """Let requests wait until `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def build_app(self) -> Starlette:
        return Starlette(routes=[Route("/v2/{path:path}", self._answer)])

    async def _answer(self, request: Request) -> Response:
        given = dict(request.query_params)
        self.requests.append((request.path_params["path"], given))
        await self._open.wait()
        key = [request.headers.get(f"apca-api-{name}") for name in ("key-id", "secret-key")]
        if key != [KEY_ID, SECRET_KEY]:
            return _build_error(403, "forbidden.")
        trouble = self._troubles.popleft() if self._troubles else Failure()
        if trouble.is_dropped:
            return DroppedResponse()
        if trouble.status != 200:
            return _build_error(trouble.status, trouble.message, trouble.headers)
        if trouble.body is not RIGHT_BODY:
            return JSONResponse(trouble.body)
        answer = self._answer_correctly(request.path_params["path"], given)
        kept = int(len(answer.body) * trouble.sent_share)
        return Response(bytes(answer.body)[:kept], answer.status_code, media_type="text/json")

    def _answer_correctly(self, path: str, given: dict[str, str]) -> Response:
        if path == "stocks/bars":
            return self._answer_bars(given)
        if path == "clock":
            told = datetime.fromtimestamp(self._clock() / 1000, UTC).isoformat()
            return JSONResponse({"timestamp": told, "is_open": True})
        if path == "assets":
            assert given == {"status": "active", "asset_class": "us_equity"}
            return JSONResponse(
                [_format_asset(*a) for a in self.assets.items() if a[1] == "active"]
            )
        symbol = path.removeprefix("assets/")
        if symbol not in self.assets:
            return JSONResponse({"code": 40410000, "message": f"asset not found for {symbol}"}, 404)
        return JSONResponse(_format_asset(symbol, self.assets[symbol]))

    def _answer_bars(self, given: dict[str, str]) -> Response:
        assert given.keys() <= BARS_PARAMETERS
        assert (given["timeframe"], given["adjustment"], given["sort"]) == ("30Min", "split", "asc")
        start, end = (int(datetime.fromisoformat(given[n]).timestamp()) for n in ("start", "end"))
        symbols = given["symbols"].split(",")
        invalid = [symbol for symbol in symbols if not SYMBOL.fullmatch(symbol)]
        if invalid:
            return _build_error(400, f"invalid symbol: {invalid[0]}")
        if end > self._clock() / 1000 - self.withheld_s:
            return _build_error(403, "subscription does not permit querying recent SIP data")
        openings = range(-(-start // HALF_S) * HALF_S, end + 1, HALF_S)
        held = [(symbol, self.bars.get(symbol, {})) for symbol in sorted(symbols)]
        found = [(symbol, bars[at]) for symbol, bars in held for at in openings if at in bars]
        if self.is_disorderly:
            found = [row for row in reversed(found) for _ in range(2)]
        return self._build_page(found, given)

    def _build_page(self, found: list[tuple[str, RawBar]], given: dict[str, str]) -> Response:
        size = min(self.page_size, int(given["limit"]))
        begin = int(base64.b64decode(given.get("page_token", "")) or 0)
        page: dict[str, list[dict[str, Any]]] = {}
        for symbol, bar in found[begin : begin + size]:
            page.setdefault(symbol, []).append(_format_bar(bar))
        is_last = begin + size >= len(found)
        token = None if is_last else base64.b64encode(str(begin + size).encode()).decode()
        return JSONResponse({"bars": page, "next_page_token": token})


def _format_bar(bar: RawBar) -> dict[str, Any]:
    opened = datetime.fromtimestamp(bar.open_time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    prices = {"o": bar.open, "h": bar.high, "l": bar.low, "c": bar.close}
    return {"t": opened, **prices, "v": int(bar.volume), "n": 100, "vw": bar.close}


def _format_asset(symbol: str, status: str) -> dict[str, Any]:
    return {"class": "us_equity", "symbol": symbol, "status": status, "tradable": True}


def _build_error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"message": message}, status, headers)


@asynccontextmanager
async def run_alpaca_double(clock: Clock) -> AsyncIterator[AlpacaDouble]:
    """Serve an Alpaca until the block ends."""
    double = AlpacaDouble(clock)
    with open_loopback_socket() as bound:
        double.address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with run_app(double.build_app(), bound):
            try:
                yield double
            finally:
                double.release()
