"""Rows of the market store, and the batches, commits and snapshots made of them.

Bar times (open, close, watermark, settlement) are epoch seconds; row times (`created_at`,
`market_time`, `written_at`) are epoch milliseconds; both are UTC.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from schemas.coverage import Coverage
from schemas.vocabulary import Action, Timeframe

if TYPE_CHECKING:  # `signals keys` loads this module and must start without NumPy.
    import numpy as np
    from numpy.typing import NDArray

    from store.change_table import ChangeTable


History = Literal["followed", "building", "built"]


@dataclass(frozen=True, slots=True, eq=False)
class BarBlock:
    """Stepped bars of one asset and native timeframe, oldest first, at least one.

    `open_time` has shape (bars,), `values` (bars, 5): open, high, low, close, volume. `revision`
    starts at 0 and grows by one each time the asset's history is restated. `source` is set in a
    batch: where the bars come from, as a venue and symbol or as the kind of source.
    """

    ticker: str
    timeframe: Timeframe
    open_time: "NDArray[np.int64]"
    values: "NDArray[np.float64]"
    revision: int = 0
    source: str | None = None

    def __len__(self) -> int:
        return len(self.open_time)


class AssetBars(NamedTuple):
    """Stored bars of an asset by native timeframe, of its newest revision.

    `number` is that of the last commit. `stepped` has the close (epoch s) of the last bar of each
    timeframe that readings rest on.
    """

    number: int | None
    blocks: Mapping[Timeframe, BarBlock]
    stepped: Mapping[Timeframe, int]


class RecentBars(NamedTuple):
    """The last bars of many assets, and the number of the last commit."""

    number: int | None
    blocks: Sequence[BarBlock]


class SourceRow(NamedTuple):
    """The source of one revision of an asset's bars, written by the commit `number`."""

    ticker: str
    revision: int
    listing: str
    number: int


class FundingRow(NamedTuple):
    """One funding settlement of a perpetual; the rate is a fraction per settlement."""

    ticker: str
    settled_at: int
    funding_rate: float


class ChangeRow(NamedTuple):
    """One change of one stored reading; `before` is None for a cell's first reading.

    `indicator` may be `dexter`. The universe feed shows only rows that are `published`.
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
        """The deterministic id of the row: the same bars give the same id on every machine."""
        cell = f"{self.ticker}.{self.indicator}.{self.timeframe}"
        return f"universe.{cell}.{self.close_time}.{self.epoch}"


class AlertRow(NamedTuple):
    """One published action of an alert engine, with close time and price of the bar that fired."""

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
        """The deterministic id of the row: the same bars give the same id on every machine."""
        engine = f"{self.ticker}.{self.indicator}.{self.timeframe}"
        return f"alerts.{engine}.{self.close_time}.{self.action}.{self.epoch}"


FeedRow = ChangeRow | AlertRow


class CarryRow(NamedTuple):
    """The packed carry of an indicator or alert engine for one asset and timeframe.

    `version` and `layout` identify the code that can read `data`. `indicator` is a stored key, or a
    key of ENGINE_KEYS if the carry belongs to an alert engine.
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
    """The first bar from which a cell's readings come from a version and revision, and why."""

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
    """The current reading of one cell."""

    ticker: str
    timeframe: Timeframe
    indicator: str
    reading: int


@dataclass(frozen=True, slots=True)
class WatermarkRow:
    """An asset whose source had delivered bars only up to `watermark` (epoch s) at a commit.

    `late` has the timeframes whose expected candle was not stepped by then, although it was due; a
    bar that came late may still wait there for the next run of its timeframe, which makes the row
    even if the watermark is that of the run. `history` is "building" while runs do not wait for an
    asset because its history is built between them, and "built" in the commit that ends this. In
    both, the commit steps each of the asset's bars at its own close, as a first start does. Such an
    asset is late only if it had its whole history before.
    """

    ticker: str
    watermark: int
    late: tuple[Timeframe, ...] = ()
    history: History = "followed"

    def get_built_hour(self, run: int) -> int:
        """Return up to which hour the commit of a run has built the asset's history."""
        return self.watermark if self.history == "building" else run


class MissingBarsRow(NamedTuple):
    """The number of bars that an asset's new bars lack for good, and the range of their closes.

    The closes are epoch seconds, both included. `revision` is that of the bars around them.
    """

    ticker: str
    revision: int
    bars: int
    first_close: int
    last_close: int


@dataclass(frozen=True, slots=True)
class CommitRow:
    """One committed batch and its place in the digest chain; digests are 32 bytes.

    `market_time` is nominal (:03:00 of the run's hour). `written_at` is the market clock when
    the bars were stepped, or None for backfill and replay, whose rows carry nominal times.
    `alerts_digest` is None if the batch wrote no alert.
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
    context_digest: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything that one transaction writes: all of it or nothing.

    `bars` holds at most one block per asset and timeframe. A block belongs to the asset's newest
    revision, whose stored bars it follows, or starts the next one. All blocks of a revision have
    one source.
    `publish_from` maps every ticker new to the store to the market time (ms) from which its changes
    are published. `watermarks` lists the assets whose bars were incomplete when the batch was made,
    `missing_bars` those whose new bars have holes that stay. `held_bars` counts the implausible
    bars that the source began to hold back; it is not stored.
    """

    market_time: int
    bars: Sequence[BarBlock] = ()
    funding: Sequence[FundingRow] = ()
    changes: "Sequence[ChangeRow] | ChangeTable" = ()
    carries: Sequence[CarryRow] = ()
    epochs: Sequence[EpochRow] = ()
    publish_from: Mapping[str, int] = field(default_factory=dict)
    watermarks: Sequence[WatermarkRow] = ()
    written_at: int | None = None
    alerts: Sequence[AlertRow] = ()
    missing_bars: Sequence[MissingBarsRow] = ()
    held_bars: int = 0


@dataclass(frozen=True, slots=True)
class CommitInputs:
    """The inputs of one commit, in the order of its digest."""

    bars: list[BarBlock]
    funding: list[FundingRow]
    watermarks: list[WatermarkRow]
    sources: list[SourceRow]


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest state of a store; `market_time` is None before the first commit.

    `started_at` is the time of its first start, whose commits can be of any time before it.
    `first_market_time` is that of the first commit. Changes created before `pruned_before`, and
    alerts created before `alerts_pruned_before`, may have been pruned. `outage` says why the source
    cannot be read, None if it can.
    """

    source: str | None
    started_at: int | None
    market_time: int | None
    first_market_time: int | None
    last_created_at: int
    commit_count: int
    pruned_before: int
    alerts_pruned_before: int
    outage: str | None

    @property
    def last_known_time(self) -> int | None:
        """The latest time at which the clock was believed, None before the first commit."""
        return None if self.market_time is None else max(self.market_time, self.started_at or 0)


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """The latest state as of one store version, read in one transaction and never modified.

    `readings` maps ticker to stored key (indicator id or `dexter`) to timeframe to +1, 0 or -1.
    `late` maps the assets whose expected candle was due at the last commit and was not stepped, or
    that never had any, to the timeframes of such candles. The history of `building_tickers` is
    being built; those that are not late never had all of it, and `unbuilt_tickers` are those of a
    first start. `history_starts_at` is the earliest time (epoch ms) for which the store can rebuild
    a snapshot, None before the first commit. `last_closes` maps ticker to the close (epoch s) of
    its newest bar, `missing_bars` to the number of bars that its history lacks. `number` is that of
    the last commit if the state is the latest one. `is_sample` marks the state that visitors see,
    which never changes.
    """

    coverage: Coverage | None
    market_time: int | None
    last_created_at: int
    readings: dict[str, dict[str, dict[Timeframe, int]]]
    late: Mapping[str, tuple[Timeframe, ...]] = field(default_factory=dict)
    building_tickers: tuple[str, ...] = ()
    unbuilt_tickers: tuple[str, ...] = ()
    history_starts_at: int | None = None
    last_closes: Mapping[str, int] = field(default_factory=dict)
    missing_bars: Mapping[str, int] = field(default_factory=dict)
    number: int | None = field(default=None, compare=False)
    is_sample: bool = False


class LastChange(NamedTuple):
    """The last change of a cell: when it was created (epoch ms), and the price then.

    `is_current` is false if the asset's history was restated since, so that prices of now and then
    cannot be compared.
    """

    ticker: str
    indicator: str
    timeframe: Timeframe
    created_at: int
    price: float
    is_current: bool


class PastKey(NamedTuple):
    """The state that was served at a time: that of a commit, or of an hourly run inside one.

    `number` is that of the commit, None for a run inside one. Later commits never change the
    readings of a key.
    """

    number: int | None
    market_time: int
    last_created_at: int


class LeafRow(NamedTuple):
    """The leaf of a published row in the transparency log, and its 16 bytes of salt."""

    leaf: int
    created_at: int
    salt: bytes


class LogHead(NamedTuple):
    """The log as it is stored: its newest signed checkpoint, and the tree of all leaves.

    `proof` is the consistency proof from an older size; empty from 0, and from the whole tree.
    """

    checkpoint: "CheckpointRow"
    size: int
    root: bytes
    proof: Sequence[bytes]


class CheckpointRow(NamedTuple):
    """The newest signed checkpoint of the log: its size, the signed note, and its key.

    Before the first one, the size is 0 and the others are None. `refusal` is the reason why no
    newer one is signed, None if nothing is wrong.
    """

    size: int = 0
    note: str | None = None
    vkey: str | None = None
    refusal: str | None = None
