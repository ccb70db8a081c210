"""Prices for pages, from the stored bars of the latest snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from schemas.vocabulary import Timeframe

if TYPE_CHECKING:  # So that client commands such as `signals stdio` do not import NumPy.
    from serving.snapshot_cache import SnapshotCache


class BarColumns(NamedTuple):
    """Bars of one asset and timeframe as columns of equal length, oldest first.

    `open_times` are epoch ms. A bar of 4h or 1d opens on its UTC boundary.
    """

    open_times: Sequence[int]
    opens: Sequence[float]
    highs: Sequence[float]
    lows: Sequence[float]
    closes: Sequence[float]
    volumes: Sequence[float]


NO_COLUMNS = BarColumns((), (), (), (), (), ())


@dataclass(frozen=True, slots=True)
class PriceSummary:
    """The last close of an asset, its time (epoch ms), and the week before it.

    `day_change` is a fraction of the last close at or before 24 hours earlier, None if there is
    none. `closes` are up to 42 four-hourly closes of the 7 days up to `closed_at`, oldest first, and
    end with `last_close`.
    """

    last_close: float
    closed_at: int
    day_change: float | None
    closes: Sequence[float]


class Prices:
    """Reads bars and summaries of prices; they are those of the latest snapshot, never newer."""

    def __init__(self, snapshots: "SnapshotCache") -> None:
        self._snapshots = snapshots

    async def load_bars(self, ticker: str, timeframe: Timeframe, since_ms: int) -> BarColumns:
        """Return the stepped bars of an asset that open at or after a time, none if it has none."""
        return NO_COLUMNS

    async def load_summaries(self) -> Mapping[str, PriceSummary]:
        """Return the summary of every asset with bars by ticker, computed once per snapshot."""
        return {}
