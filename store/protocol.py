"""What a store must do, in about fifteen verbs, and the rows that pass through them.

Times of bars are epoch seconds, times of rows epoch milliseconds, both UTC. Two Protocols, since
market data and access never share a transaction.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.coverage import Coverage
from schemas.vocabulary import Timeframe

MAX_OFFSET = 2**63 - 1


class StoreError(Exception):
    """An operator's mistake about the store, told in one line."""


class LockTakenError(StoreError):
    """Another process computes on this store."""


class DamagedError(StoreError):
    """The store holds what no commit wrote."""


class BarRow(NamedTuple):
    """One stepped bar as the source gave it; `timeframe` is that of the source's bar."""

    ticker: str
    timeframe: Timeframe
    open_time: int
    open: float
    high: float
    low: float
    close: float
    volume: float


@dataclass(frozen=True, slots=True, eq=False)
class BarBlock:
    """Stepped bars of one asset and native timeframe, oldest first, at least one.

    `open_time` has shape (bars,), `values` (bars, 5): open, high, low, close, volume.
    """

    ticker: str
    timeframe: Timeframe
    open_time: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.open_time)

    def rows(self) -> Iterator[BarRow]:
        """Yield the bars one by one, for people and tests."""
        places = repeat(self.ticker), repeat(self.timeframe)
        columns = self.open_time.tolist(), *self.values.T.tolist()
        return map(BarRow, *places, *columns)


class FundingRow(NamedTuple):
    """One funding settlement of a perpetual: the rate as a fraction, not annualised."""

    ticker: str
    settled_at: int
    funding_rate: float


class ChangeRow(NamedTuple):
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


class CarryRow(NamedTuple):
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
class WatermarkRow:
    """An asset whose source had delivered bars up to `watermark` (epoch s) alone at a pass.

    `is_late` says that more was due.
    """

    ticker: str
    watermark: int
    is_late: bool


@dataclass(frozen=True, slots=True)
class PassRow:
    """One committed pass and its place in the digest chain; digests are 32 bytes.

    `market_time` is nominal; `written_at` is the market clock then, None where it was nominal too.
    """

    number: int
    market_time: int
    written_at: int | None
    first_created_at: int | None
    last_created_at: int | None
    bars_digest: bytes
    changes_digest: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class Pass:
    """Everything one transaction writes: all of it or nothing.

    `bars` holds at most one block per asset and timeframe, later than all that is stored of them.
    `publish_from` names every ticker new to the store and the market time (ms) from which its
    changes are published; `watermarks` every asset that the pass could not wait for.
    """

    market_time: int
    bars: Sequence[BarBlock] = ()
    funding: Sequence[FundingRow] = ()
    changes: Sequence[ChangeRow] = ()
    carries: Sequence[CarryRow] = ()
    epochs: Sequence[EpochRow] = ()
    publish_from: Mapping[str, int] = field(default_factory=dict)
    watermarks: Sequence[WatermarkRow] = ()
    written_at: int | None = None


@dataclass(frozen=True, slots=True)
class PassContent:
    """What a pass wrote, in the order of its digests, as far as it is still stored."""

    bars: list[BarBlock]
    funding: list[FundingRow]
    watermarks: list[WatermarkRow]
    changes: list[ChangeRow]


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

    `readings` maps ticker to stored key (indicator id or `dexter`) to timeframe to +1, 0, -1;
    `late` are the tickers whose bars were due at the last pass and had not come.
    """

    version: int
    coverage: Coverage | None
    market_time: int | None
    last_created_at: int
    readings: dict[str, dict[str, dict[Timeframe, int]]]
    late: tuple[str, ...] = ()


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
        """Take the compute lock until close; LockTakenError naming the holder where it is taken."""

    def unlock(self) -> None:
        """Let go of the compute lock; idempotent."""

    async def adopt_source(self, source: str, started_at: int) -> int:
        """Remember where the bars come from and when that began (market clock, epoch ms).

        Return when it began; StoreError where the store knows another source.
        """

    async def publish_coverage(self, coverage: Coverage) -> None:
        """Replace the published coverage."""

    async def progress(self) -> Progress:
        """Return how far the store has come."""

    async def commit(self, work: Pass) -> None:
        """Write a pass in one transaction, with its link in the digest chain."""

    async def bars(self, ticker: str | None = None, after: int = -1) -> list[BarBlock]:
        """Return stored bars that open after a time: a block per ticker and timeframe, sorted."""

    async def funding(self, ticker: str | None = None, after: int = -1) -> list[FundingRow]:
        """Return stored settlements after a time, by ticker and time."""

    async def carries(self) -> list[CarryRow]:
        """Return every stored carry."""

    async def readings(self) -> list[ReadingRow]:
        """Return the board of current readings."""

    async def watermarks(self) -> list[WatermarkRow]:
        """Return the assets for which the last pass could not wait, by ticker."""

    async def epochs(self) -> list[EpochRow]:
        """Return every epoch, oldest first."""

    async def publish_from(self) -> dict[str, int]:
        """Return per ticker the market time (ms) from which its changes are published."""

    async def passes(self) -> list[PassRow]:
        """Return the digest chain, oldest first."""

    async def pass_content(self, number: int) -> PassContent:
        """Return what a pass wrote; StoreError for an unknown pass, DamagedError where it can't."""

    async def orphans(self) -> int:
        """Return how many bars, settlements and watermarks belong to no pass."""

    def changes(self) -> AsyncIterator[ChangeRow]:
        """Yield every stored change, published or not, oldest first."""

    async def prune(self) -> int:
        """Delete rows beyond retention but each cell's newest such row; return how many.

        Many short transactions, so that nobody waits for long.
        """

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
