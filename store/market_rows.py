"""The rows that pass through a store, and what a pass and a snapshot are made of.

Times of bars are epoch seconds, times of rows epoch milliseconds, both UTC.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from schemas.coverage import Coverage
from schemas.vocabulary import Action, Timeframe

if TYPE_CHECKING:  # Commands about keys do without the library.
    import numpy as np
    from numpy.typing import NDArray

MAX_OFFSET = 2**63 - 1


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

    `open_time` has shape (bars,), `values` (bars, 5): open, high, low, close, volume. A history
    that is restated is of the asset's next revision, the first one being 0.
    """

    ticker: str
    timeframe: Timeframe
    open_time: "NDArray[np.int64]"
    values: "NDArray[np.float64]"
    revision: int = 0

    def __len__(self) -> int:
        return len(self.open_time)

    def iter_rows(self) -> Iterator[BarRow]:
        """Yield the bars one by one, for people and tests."""
        labels = repeat(self.ticker), repeat(self.timeframe)
        columns = self.open_time.tolist(), *self.values.T.tolist()
        return map(BarRow, *labels, *columns)


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


class AlertRow(NamedTuple):
    """One published action of an alert engine, with close and price of the bar it fired on."""

    created_at: int
    ticker: str
    indicator: str
    timeframe: Timeframe
    close_time: int
    epoch: int
    action: Action
    price: float

    @property
    def id(self) -> str:
        """The deterministic id of the row: equal bars give equal ids on every machine."""
        engine = f"{self.ticker}.{self.indicator}.{self.timeframe}"
        return f"alerts.{engine}.{self.close_time}.{self.action}.{self.epoch}"


FeedRow = ChangeRow | AlertRow


class CarryRow(NamedTuple):
    """What an indicator or its alert engine remembers of one asset and timeframe.

    `version` and `layout` say of which code; an engine's `indicator` is its key in ENGINE_KEYS.
    """

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
    revision: int
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
class CommitRow:
    """One committed pass and its place in the digest chain; digests are 32 bytes.

    `market_time` is nominal; `written_at` is the market clock then, None where it was nominal too.
    `alerts_digest` is None where no alert was written.
    """

    number: int
    market_time: int
    written_at: int | None
    first_created_at: int | None
    last_created_at: int | None
    bars_digest: bytes
    changes_digest: bytes
    alerts_digest: bytes | None
    digest: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything one transaction writes: all of it or nothing.

    `bars` holds at most one block per asset and timeframe, later than all that is stored of them in
    its revision, which is the asset's newest or the next.
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
    alerts: Sequence[AlertRow] = ()


@dataclass(frozen=True, slots=True)
class CommitContent:
    """What a pass wrote, in the order of its digests, as far as it is still stored."""

    bars: list[BarBlock]
    funding: list[FundingRow]
    watermarks: list[WatermarkRow]
    changes: list[ChangeRow]
    alerts: list[AlertRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a store has come; `market_time` is None before the first pass.

    Changes created before `pruned_before`, and alerts before theirs, may have been pruned.
    """

    source: str | None
    market_time: int | None
    last_created_at: int
    commit_count: int
    pruned_before: int
    alerts_pruned_before: int


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """One version of everything latest, read in one transaction; never changed afterwards.

    `readings` maps ticker to stored key (indicator id or `dexter`) to timeframe to +1, 0, -1;
    `late` are the tickers whose bars were due at the last pass and had not come, or never have;
    `past_from` is the earliest time (epoch ms) of which the store can tell what was latest then,
    None without a pass.
    """

    coverage: Coverage | None
    market_time: int | None
    last_created_at: int
    readings: dict[str, dict[str, dict[Timeframe, int]]]
    late_tickers: tuple[str, ...] = ()
    history_starts_at: int | None = None


@dataclass(frozen=True, slots=True)
class FeedQuery:
    """One page of published rows in (`after`, `until`], by `created_at`; times in epoch ms.

    `direction` is 1, -1, or 0 for what is neither: neutral of changes, exit of alerts.
    """

    after: int
    until: int
    limit: int
    offset: int
    ticker: str | None = None
    indicator: str | None = None
    timeframe: Timeframe | None = None
    direction: int | None = None
    oldest_first: bool = False


@dataclass(frozen=True, slots=True)
class Statistics:
    """How many rows a window of a tier holds, by indicator, timeframe and new reading or action.

    `oldest` is the `created_at` of the oldest row that the feed still shows, None without rows.
    """

    counts: Mapping[tuple[str, Timeframe, int | str], int]
    oldest: int | None
