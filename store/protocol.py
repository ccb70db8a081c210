"""What a store must do, in about fifteen verbs, and the rows that pass through them.

Times of bars are epoch seconds, times of rows epoch milliseconds, both UTC. Two Protocols, since
market data and access never share a transaction.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from schemas.coverage import Coverage
from schemas.vocabulary import Timeframe

MAX_OFFSET = 2**63 - 1


class StoreError(Exception):
    """An operator's mistake about the store, told in one line."""


@dataclass(frozen=True, slots=True)
class BarRow:
    """One stepped bar as the source gave it; `timeframe` is that of the source's bar."""

    ticker: str
    timeframe: Timeframe
    open_time: int
    open: float
    high: float
    low: float
    close: float
    volume: float


@dataclass(frozen=True, slots=True)
class FundingRow:
    """One funding settlement of a perpetual: the rate as a fraction, not annualised."""

    ticker: str
    settled_at: int
    funding_rate: float


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One change of one stored reading; `before` is None for a first reading.

    `indicator` may be `dexter`. `published` marks what the universe feed shows.
    """

    created_at: int
    ticker: str
    indicator: str
    timeframe: Timeframe
    close_time: int
    epoch: int
    before: int | None
    after: int
    price: float
    published: bool

    @property
    def id(self) -> str:
        """The deterministic id of the row: equal bars give equal ids on every machine."""
        cell = f"{self.ticker}.{self.indicator}.{self.timeframe}"
        return f"universe.{cell}.{self.close_time}.{self.epoch}"


@dataclass(frozen=True, slots=True)
class CarryRow:
    """What an indicator remembers of one asset and timeframe, and the code it belongs to."""

    ticker: str
    timeframe: Timeframe
    indicator: str
    version: int
    layout: str
    epoch: int
    close_time: int
    data: bytes


@dataclass(frozen=True, slots=True)
class EpochRow:
    """From which bar on a cell's readings come from which version, and why."""

    ticker: str
    timeframe: Timeframe
    indicator: str
    epoch: int
    version: int
    generation: int
    from_close_time: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReadingRow:
    """One cell of the board of current readings."""

    ticker: str
    timeframe: Timeframe
    indicator: str
    reading: int


@dataclass(frozen=True, slots=True)
class PassRow:
    """One committed pass and its place in the digest chain; digests are 32 bytes."""

    number: int
    market_time: int
    first_created_at: int | None
    last_created_at: int | None
    bars_digest: bytes
    changes_digest: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class Pass:
    """Everything one transaction writes: all of it or nothing.

    `publish_from` names every ticker new to the store and the market time (ms) from which its
    changes are published.
    """

    market_time: int
    bars: Sequence[BarRow]
    funding: Sequence[FundingRow]
    changes: Sequence[ChangeRow]
    carries: Sequence[CarryRow]
    epochs: Sequence[EpochRow] = ()
    publish_from: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a store has come; `market_time` is None before the first pass.

    Rows created before `pruned_before` may have been pruned.
    """

    source: str | None
    market_time: int | None
    last_created_at: int
    passes: int
    pruned_before: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of everything latest, read in one transaction; never changed afterwards.

    `readings` maps ticker to stored key (indicator id or `dexter`) to timeframe to +1, 0, -1.
    """

    version: int
    coverage: Coverage | None
    market_time: int | None
    last_created_at: int
    readings: dict[str, dict[str, dict[Timeframe, int]]]


@dataclass(frozen=True, slots=True)
class FeedQuery:
    """One page of published rows in (`after`, `until`], newest first; times in epoch ms."""

    after: int
    until: int
    limit: int
    offset: int
    ticker: str | None = None
    indicator: str | None = None
    timeframe: Timeframe | None = None
    direction: int | None = None


@dataclass(frozen=True, slots=True)
class Statistics:
    """How many rows a window of the feed holds, by indicator, timeframe and new reading.

    `oldest` is the `created_at` of the oldest row that the feed still shows, None without rows.
    """

    counts: Mapping[tuple[str, Timeframe, int], int]
    oldest: int | None


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One API key, without the key."""

    id: int
    label: str
    created_at: int
    revoked_at: int | None


class MarketStore(Protocol):
    """Bars, carries, readings, changes and what the compute job says of itself.

    One writer at a time: `lock` refuses a second one. Every verb raises StoreError for what the
    operator can mend.
    """

    async def close(self) -> None:
        """Close every connection; idempotent."""

    def lock(self) -> None:
        """Take the compute lock until close; StoreError naming the holder where it is taken."""

    async def adopt_source(self, source: str) -> None:
        """Remember where the bars come from; StoreError where the store knows another source."""

    async def publish_coverage(self, coverage: Coverage) -> None:
        """Replace the published coverage."""

    async def progress(self) -> Progress:
        """Return how far the store has come."""

    async def commit(self, work: Pass) -> None:
        """Write a pass in one transaction, with its link in the digest chain."""

    async def bars(self, ticker: str | None = None, after: int = -1) -> list[BarRow]:
        """Return stored bars that open after a time, by ticker and open time."""

    async def funding(self, ticker: str | None = None, after: int = -1) -> list[FundingRow]:
        """Return stored settlements after a time, by ticker and time."""

    async def carries(self) -> list[CarryRow]:
        """Return every stored carry."""

    async def readings(self) -> list[ReadingRow]:
        """Return the board of current readings."""

    async def epochs(self) -> list[EpochRow]:
        """Return every epoch, oldest first."""

    async def publish_from(self) -> dict[str, int]:
        """Return per ticker the market time (ms) from which its changes are published."""

    async def passes(self) -> list[PassRow]:
        """Return the digest chain, oldest first."""

    async def pass_content(
        self, number: int
    ) -> tuple[list[BarRow], list[FundingRow], list[ChangeRow]]:
        """Return what a pass wrote, in the order of its digests, as far as it is still stored."""

    async def orphans(self) -> int:
        """Return how many bars and settlements belong to no pass."""

    def changes(self) -> AsyncIterator[ChangeRow]:
        """Yield every stored change, published or not, oldest first."""

    async def prune(self) -> int:
        """Delete rows beyond retention but each cell's newest such row; return how many."""

    async def version(self) -> int:
        """Return a number that moves whenever anything committed."""

    async def snapshot(self) -> Snapshot:
        """Return the latest state, read in one transaction."""

    async def feed(self, query: FeedQuery) -> list[ChangeRow]:
        """Return one page of published rows, newest first, read by index."""

    async def statistics(self, after: int, until: int, kept_after: int) -> Statistics:
        """Count the published rows in (`after`, `until`]; all three bounds are epoch ms.

        `oldest` is that of (`kept_after`, `until`].
        """


class AccessStore(Protocol):
    """Keys, stored as SHA-256 only."""

    async def close(self) -> None:
        """Close every connection; idempotent."""

    async def create_key(self, key_hash: bytes, label: str, created_at: int) -> int:
        """Store a key durably and return its id."""

    async def find_key(self, key_hash: bytes) -> KeyRow | None:
        """Return the key with this hash, revoked or not."""

    async def list_keys(self) -> list[KeyRow]:
        """Return every key, oldest first."""

    async def revoke_key(self, key_id: int, revoked_at: int) -> bool:
        """Revoke a key for good; False where no such key exists."""
