"""One venue of the double: its listings, its requests and its failures.

Its formats are in a `Dialect`.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from compute.bars import RawBar
from schemas.vocabulary import Clock
from tests.doubles.venues.market import EVER, Market

FailureKind = Literal[
    "rate_limited",
    "banned",
    "restricted",
    "non_compliant",
    "unavailable",
    "maintenance",
    "truncated",
    "dropped",
    "hanging",
    "garbled",
]
# What each venue documents, in the shape of ccxt's recorded responses: its errors, the entries of a
# pair and a contract, and by ccxt's methods an answer and what ccxt makes of it.
RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("venues.json").read_text("utf-8"))


class RefusedError(Exception):
    """An error as the venue documents it: HTTP status and body."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


def format_decimal(value: float) -> str:
    """Return the shortest decimal that reads back as the same number, without an exponent."""
    text = repr(value).removesuffix(".0")
    return np.format_float_positional(value, trim="-") if "e" in text else text


def to_texts(bar: RawBar) -> list[str]:
    return [format_decimal(value) for value in bar[1:]]


@dataclass(frozen=True)
class Symbol:
    """A unified symbol and its parts: BTC/USDT, BTC/USDT:USDT, XYZ-GOLD/USDC:USDC, NVDA."""

    text: str
    base: str
    quote: str
    settle: str

    @classmethod
    def parse(cls, text: str) -> "Symbol":
        pair, _, settle = text.partition(":")
        base, _, quote = pair.partition("/")
        return cls(text, base, quote or "USD", settle)

    def fill(self, template: Any) -> Any:
        """Return a template of JSON with the parts of this symbol in its texts."""
        if isinstance(template, str):
            return template.format(base=self.base, quote=self.quote, settle=self.settle)
        if isinstance(template, Mapping):
            return {name: self.fill(value) for name, value in template.items()}
        return [self.fill(value) for value in template] if isinstance(template, list) else template


@dataclass
class Listing:
    """A symbol on a venue, from the beginning until a time (epoch ms)."""

    symbol: Symbol
    market: Market
    until_ms: int = EVER * 1000


@dataclass
class VenueRequest:
    """A request; `key` is the venue's own name of the symbol, or several separated by commas."""

    host: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    key: str | None = None
    weight: int = 1

    def get_integer(self, name: str, default: int) -> int:
        return int(self.query.get(name) or default)

    def get_seconds(self, name: str, default: int) -> int:
        """Return a time given in ms as the first whole second not before it."""
        return -(-self.get_integer(name, default * 1000) // 1000)

    def get_window(self, first: str, last: str) -> tuple[int, int]:
        """Return the whole seconds between two times given in ms, which may be missing."""
        return self.get_seconds(first, 0), self.get_integer(last, EVER * 1000) // 1000

    def get_limit(self, default: int, most: int) -> int:
        return min(self.get_integer("limit", default), most)


@dataclass
class Failure:
    """A failure of the next `times` requests (None: all) for a symbol or a path.

    A garbled answer is the right one, replaced by what `garble` makes of it.
    """

    kind: FailureKind
    symbol: str | None
    path: str | None
    times: int | None
    status: int | None
    headers: Mapping[str, str]
    garble: Callable[[Any], Any] = lambda body: body
    released: asyncio.Event = field(default_factory=asyncio.Event)


class Dialect:
    """How a venue answers; `RECORDED` has the data of each, by its `name`."""

    name: str
    serves_delisted = False

    def __init__(self) -> None:
        recorded = RECORDED[self.name]
        self.hosts: list[str] = recorded["hosts"]
        self.key_name: str = recorded["key_name"]
        self.errors: dict[str, Any] = recorded["errors"]
        markets = recorded.get("markets", {})
        self.pair, self.contract = markets.get("pair"), markets.get("contract")

    def refuse(self, kind: str, **changes: Any) -> RefusedError:
        """Return a recorded error, with some changed fields in its body."""
        error = self.errors[kind]
        body = error["httpResponse"]
        return RefusedError(error["status"], body | changes if changes else body)

    def to_key(self, symbol: Symbol) -> str:
        """Return the venue's own name of a symbol."""
        raise NotImplementedError

    def fill_in_key(self, request: VenueRequest) -> None:
        """Set a request's key, and its path if the body decides it."""
        request.key = request.query.get(self.key_name)

    def answer(self, venue: "VenueDouble", request: VenueRequest) -> Any:
        """Return the response body and set the request's weight; raise RefusedError to refuse."""
        raise NotImplementedError

    def find_listing(self, venue: "VenueDouble", request: VenueRequest) -> Listing:
        """Return the listing that a request names, or refuse the request."""
        listing = venue.listings.get(request.key or "")
        if listing is None or not (self.serves_delisted or venue.now_ms < listing.until_ms):
            raise self.refuse("unknown_symbol")
        return listing

    def find_market(
        self,
        venue: "VenueDouble",
        request: VenueRequest,
        kind: str = "invalid_request",
        **asked: str,
    ) -> Market:
        """Return the market that a request names; refuse one with other parameters than asked."""
        listing = self.find_listing(venue, request)
        if not asked.items() <= request.query.items():
            raise self.refuse(kind)
        return listing.market

    def list_settlements(
        self,
        venue: "VenueDouble",
        request: VenueRequest,
        first: str,
        last: str,
        until: int | None = None,
    ) -> list[tuple[int, float]]:
        """Return the settlements between the times of two parameters, in ms."""
        market = self.find_listing(venue, request).market
        return market.list_settlements(until or venue.now, *request.get_window(first, last))


class VenueDouble:
    """The markets of one venue, whose clock is `skew_ms` ahead of the double's."""

    def __init__(self, dialect: Dialect, clock: Clock) -> None:
        self.dialect = dialect
        self.skew_ms = 0
        self.requests: list[VenueRequest] = []
        self._clock = clock
        # By the venue's own names, past ones included.
        self.listings: dict[str, Listing] = {}
        self._failures: list[Failure] = []

    @property
    def now_ms(self) -> int:
        return self._clock() + self.skew_ms

    @property
    def now(self) -> int:
        """The venue's time in whole seconds."""
        return self.now_ms // 1000

    def add_listing(self, symbol: str, market: Market) -> Market:
        parts = Symbol.parse(symbol)
        self.listings[self.dialect.to_key(parts)] = Listing(parts, market)
        return market

    def remove_listing(self, symbol: str) -> None:
        self.listings[self.dialect.to_key(Symbol.parse(symbol))].until_ms = self.now_ms

    def get_market(self, symbol: str) -> Market:
        return self.listings[self.dialect.to_key(Symbol.parse(symbol))].market

    def list_symbols(self) -> list[tuple[str, Symbol]]:
        """Return the venue's own names and the symbols that can be traded now."""
        listed = self.listings.items()
        return [(key, one.symbol) for key, one in listed if self.now_ms < one.until_ms]

    def add_failure(
        self,
        kind: FailureKind,
        *,
        symbol: str | None = None,
        path: str | None = None,
        times: int | None = 1,
        status: int | None = None,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] = {},
        garble: Callable[[Any], Any] = lambda body: body,
    ) -> Failure:
        """Fail the next requests for a symbol, or with a path that contains a text.

        If `times` is None, they fail until `clear_failures`. `status` replaces the dialect's HTTP
        status. A hanging request is answered once `released` is set.
        """
        wait = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        trouble = Failure(kind, symbol, path, times, status, {**headers, **wait}, garble)
        self._failures.append(trouble)
        return trouble

    def end_failure(self, failure: Failure) -> None:
        """End one failure; requests that hang are answered."""
        failure.times = 0
        failure.released.set()

    def clear_failures(self) -> None:
        """End all failures; hanging requests are answered."""
        for trouble in self._failures:
            trouble.released.set()
        self._failures.clear()

    def count_requests(self, path: str = "", *, symbol: str | None = None) -> int:
        return len(self._find_requests(path, symbol))

    def sum_weights(self, path: str = "") -> int:
        """Return the weight of these requests by the venue's own limits."""
        return sum(request.weight for request in self._find_requests(path, None))

    def take_failure(self, request: VenueRequest) -> Failure | None:
        """Return the failure of a request, if any, and count it as used."""
        for trouble in self._failures:
            if trouble.times != 0 and self._matches(request, trouble.path or "", trouble.symbol):
                trouble.times = None if trouble.times is None else trouble.times - 1
                return trouble
        return None

    def _find_requests(self, path: str, symbol: str | None) -> list[VenueRequest]:
        return [request for request in self.requests if self._matches(request, path, symbol)]

    def _matches(self, request: VenueRequest, path: str, symbol: str | None) -> bool:
        if path not in request.path or symbol is None:
            return path in request.path
        return self.dialect.to_key(Symbol.parse(symbol)) in (request.key or "").split(",")
