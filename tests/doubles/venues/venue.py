"""One venue of the double: what it lists, what it was asked, how it misbehaves.

How it talks is its dialect's, one file a venue.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from schemas.clock import Clock
from tests.doubles.venues.market import EVER, Market

FailureKind = Literal[
    "rate_limited", "banned", "restricted", "unavailable", "truncated", "dropped", "hanging"
]
RANDOM_FAILURES: tuple[FailureKind, ...] = ("unavailable", "rate_limited", "truncated", "dropped")
Answer = tuple[int, Any]


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


@dataclass
class Listing:
    """A symbol on a venue, from a time until another (epoch ms)."""

    symbol: Symbol
    market: Market
    since_ms: int
    until_ms: int = EVER * 1000

    def is_listed(self, now_ms: int) -> bool:
        return self.since_ms <= now_ms < self.until_ms


@dataclass
class VenueRequest:
    """A request: `key` is the venue's own name of what it asks for, or several after commas."""

    host: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    at_ms: int
    key: str | None = None
    weight: int = 1

    def get_integer(self, name: str, default: int) -> int:
        return int(self.query.get(name) or default)

    def get_seconds(self, name: str, default: int) -> int:
        """Return a time given in ms as the first whole second not before it."""
        return -(-self.get_integer(name, default * 1000) // 1000)


@dataclass
class Failure:
    """What goes wrong with the next `times` requests (None: all) of a symbol or a path."""

    kind: FailureKind
    symbol: str | None
    path: str | None
    times: int | None
    status: int | None
    headers: Mapping[str, str]
    released: asyncio.Event = field(default_factory=asyncio.Event)


class Dialect(Protocol):
    """How a venue talks."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names it is reached under."""

    @property
    def failures(self) -> Mapping[FailureKind, Answer]:
        """Its answers when it misbehaves: HTTP status and body."""

    def to_key(self, symbol: Symbol) -> str:
        """Return the venue's own name of a symbol."""

    def fill_in_key(self, asked: VenueRequest) -> None:
        """Set what a request names, and its path where the body says more."""

    def answer(self, venue: "VenueDouble", asked: VenueRequest) -> Any:
        """Return the body of an answer and set the request's weight; RefusedError otherwise."""


class VenueDouble:
    """Markets under one name. `skew_ms` is what its clock is ahead of the double's.

    `failed` counts the calls that `fails` has chosen.
    """

    def __init__(self, dialect: Dialect, clock: Clock) -> None:
        self.dialect = dialect
        self.skew_ms = 0
        self.requests: list[VenueRequest] = []
        self._clock = clock
        self._listings: dict[str, Listing] = {}
        self._failures: list[Failure] = []
        self.failed = 0
        self._failure_share = 0.0, 0
        self._counts = Counter[str]()

    @property
    def now_ms(self) -> int:
        return self._clock() + self.skew_ms

    @property
    def now(self) -> int:
        """The venue's time in whole seconds."""
        return self.now_ms // 1000

    def add_listing(self, symbol: str, market: Market, *, at_ms: int = 0) -> Market:
        """List a market under a unified symbol, from a time on."""
        parts = Symbol.parse(symbol)
        self._listings[self.dialect.to_key(parts)] = Listing(parts, market, at_ms)
        return market

    def remove_listing(self, symbol: str, *, at_ms: int | None = None) -> None:
        """Take a symbol off the list, at once or from a time on."""
        self.get_listing(symbol).until_ms = self.now_ms if at_ms is None else at_ms

    def get_listing(self, symbol: str) -> Listing:
        return self._listings[self.dialect.to_key(Symbol.parse(symbol))]

    def get_market(self, symbol: str) -> Market:
        return self.get_listing(symbol).market

    def list_ever_listed(self) -> list[tuple[str, Listing]]:
        """Return the venue's own names and listings that there are or were, in a fixed order."""
        found = self._listings.items()
        return [(key, one) for key, one in found if one.since_ms <= self.now_ms]

    def list_tradable(self) -> list[tuple[str, Listing]]:
        """Return what can be traded now."""
        return [(key, one) for key, one in self.list_ever_listed() if one.is_listed(self.now_ms)]

    def find_ever_listed(self, asked: VenueRequest) -> Listing | None:
        """Return what a request names, None where it was never listed."""
        listing = self._listings.get(asked.key or "")
        return listing if listing and listing.since_ms <= self.now_ms else None

    def find_listed(self, asked: VenueRequest) -> Listing | None:
        """Return what a request names, None where it is not listed now."""
        listing = self.find_ever_listed(asked)
        return listing if listing and listing.is_listed(self.now_ms) else None

    def add_failure(
        self,
        kind: FailureKind,
        *,
        symbol: str | None = None,
        path: str | None = None,
        times: int | None = 1,
        status: int | None = None,
        retry_after_s: int | None = None,
    ) -> Failure:
        """Trouble the next requests of a symbol, or whose path contains a text.

        `times` None is until `behaves`. `status` replaces the dialect's HTTP status. A hanging
        request is answered once `released` is set.
        """
        headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        trouble = Failure(kind, symbol, path, times, status, headers)
        self._failures.append(trouble)
        return trouble

    def set_failure_share(self, share: float, seed: int) -> None:
        """Fail a share of all calls, each chosen by what it asks and how often that was asked."""
        self._failure_share = share, seed
        self._counts.clear()

    def clear_failures(self) -> None:
        """End every trouble; what hangs is answered."""
        self._failure_share = 0.0, 0
        for trouble in self._failures:
            trouble.released.set()
        self._failures.clear()

    def count_requests(self, path: str = "", *, symbol: str | None = None) -> int:
        """Return how many requests came whose path contains a text."""
        return len(self._find_requests(path, symbol))

    def sum_weights(self, path: str = "") -> int:
        """Return what they weigh in the venue's own accounting of limits."""
        return sum(asked.weight for asked in self._find_requests(path, None))

    def take_failure(self, asked: VenueRequest) -> Failure | None:
        """Return what goes wrong with a request, and use it up."""
        for trouble in self._failures:
            if trouble.times != 0 and self._matches(asked, trouble.path or "", trouble.symbol):
                trouble.times = None if trouble.times is None else trouble.times - 1
                return trouble
        return self._draw_failure(asked)

    def _draw_failure(self, asked: VenueRequest) -> Failure | None:
        share, seed = self._failure_share
        if not share:
            return None
        what = f"{seed} {asked.host}/{asked.path} {asked.key}"
        self._counts[what] += 1
        digest = hashlib.sha256(f"{what} {self._counts[what]}".encode()).digest()
        if int.from_bytes(digest[:4], "big") >= share * 2**32:
            return None
        self.failed += 1
        return Failure(RANDOM_FAILURES[digest[4] % len(RANDOM_FAILURES)], None, None, 1, None, {})

    def _find_requests(self, path: str, symbol: str | None) -> list[VenueRequest]:
        return [asked for asked in self.requests if self._matches(asked, path, symbol)]

    def _matches(self, asked: VenueRequest, path: str, symbol: str | None) -> bool:
        if path not in asked.path or symbol is None:
            return path in asked.path
        return self.dialect.to_key(Symbol.parse(symbol)) in (asked.key or "").split(",")
